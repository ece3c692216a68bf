# SPDX-License-Identifier: Apache-2.0
"""oslo.messaging, made ready for our clients and servers.

The only place that knows how a message carries its context, which methods
may be called from outside, and what a failure of the broker means for a
caller.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import kombu.exceptions
import oslo_messaging
from oslo_config import cfg
from oslo_messaging.rpc import dispatcher

from cyborg import context as cyborg_context
from cyborg import exception
from cyborg import metrics
from cyborg import service

LOG = logging.getLogger(__name__)

SEND_RETRIES = 2
"""How often sending is tried again while the broker cannot be reached.

oslo.messaging's own default is for ever, which would hold the caller's
thread until the broker is back."""

CONNECT_SECONDS = 5.0
"""How long a call waits for the first connection to the broker."""

AUTOMATIC = "auto"
"""A pin that pins nothing: each call says itself which version it needs."""

MONITOR_SECONDS = 15
"""How long a call that takes long may go without a sign of life."""


def get_transport(conf: cfg.ConfigOpts) -> oslo_messaging.RPCTransport:
    """The transport of `[DEFAULT] transport_url`; connects when used.

    Raises service.Mistake where the URL cannot be used.
    """
    try:
        transport = oslo_messaging.get_rpc_transport(
            conf, allowed_remote_exmods=["cyborg.exception"]
        )
        url = oslo_messaging.TransportURL.parse(conf)
    except _BAD_URL as error:
        # The library's message may hold the URL, and so a password.
        raise service.Mistake(
            f"[DEFAULT] transport_url: {type(error).__name__}, not a URL "
            "such as rabbit://user:password@host:5672/vhost"
        ) from None
    refuse_misread(url)
    return transport


def refuse_misread(url: oslo_messaging.TransportURL) -> None:
    """Raises service.Mistake where the library would take a part of the
    password for something else, which its errors then tell."""
    if any("/" in f"{host.username}{host.password}" for host in url.hosts):
        raise service.Mistake(
            "[DEFAULT] transport_url: oslo.messaging takes no user or "
            "password with a slash in it"
        )
    if not url.hosts and "@" in (url.virtual_host or ""):
        raise service.Mistake(
            "[DEFAULT] transport_url: two slashes come before the user"
        )


def get_client(
    transport: oslo_messaging.RPCTransport,
    target: oslo_messaging.Target,
    version_cap: str | None = None,
) -> oslo_messaging.RPCClient:
    """A client of the servers at `target`; wrap calls in `translated`.

    `version_cap` is the newest RPC version that they all know.
    """
    return oslo_messaging.get_rpc_client(
        transport,
        target,
        version_cap=None if version_cap == AUTOMATIC else version_cap,
        serializer=ContextSerializer(),
        retry=SEND_RETRIES,
        transport_options=oslo_messaging.TransportOptions(at_least_once=True),
    )


class Caller:
    """Calls the servers of one topic, in bounded time.

    oslo.messaging makes a process's reply queue at its first call, and
    tries that for ever.  That is done here beforehand, in a thread: a
    caller waits for some seconds and is then told that nobody answers.
    """

    def __init__(
        self,
        transport: oslo_messaging.RPCTransport,
        target: oslo_messaging.Target,
        version_cap: str | None = None,
    ) -> None:
        self._client = get_client(transport, target, version_cap)
        self._topic = target.topic
        self._replies = _replies_to(transport)

    def call(
        self,
        context: cyborg_context.RequestContext,
        what: str,
        method: str,
        arguments: Mapping[str, Any],
        **options: Any,
    ) -> Any:
        """The answer, or the other side's error.

        `what` names the other side for people: "the conductor".
        `options` are those of `RPCClient.prepare`.
        """
        with self._noted(method), translated(what):
            if not self._replies.ready(CONNECT_SECONDS):
                raise exception.Unavailable(f"{what} cannot be reached")
            client = self._client.prepare(**options)
            return client.call(context, method, **arguments)

    def cast(
        self,
        context: cyborg_context.RequestContext,
        what: str,
        method: str,
        **options: Any,
    ) -> None:
        """Send and do not wait; errors of the broker alone are seen."""
        with self._noted(method), translated(what):
            self._client.prepare(**options).cast(context, method)

    @contextlib.contextmanager
    def _noted(self, method: str) -> Iterator[None]:
        """Count and time a call, by how it ends."""
        with metrics.rpc_called(self._topic, method) as outcome:
            try:
                yield
            except exception.CyborgError as error:
                outcome.label = _outcome(error)
                raise


class _Replies:
    """The reply queue of a transport, made in the background."""

    def __init__(self, make: Callable[[], object] | None) -> None:
        self._make = make
        self._made = threading.Event()
        self._lock = threading.Lock()
        self._maker: threading.Thread | None = None
        if make is None:
            self._made.set()

    def ready(self, seconds: float) -> bool:
        """Whether the queue is there, after so many seconds at most."""
        if self._made.is_set():
            return True
        with self._lock:
            if self._maker is None or not self._maker.is_alive():
                self._maker = threading.Thread(
                    target=self._run, name="reply-queue", daemon=True
                )
                self._maker.start()
        return self._made.wait(seconds)

    def _run(self) -> None:
        if self._make is None:
            return
        try:
            self._make()
        except Exception:
            # Outermost frame of the thread; the next call tries again.
            LOG.warning("The broker did not take our reply queue.")
            LOG.debug("It was refused thus:", exc_info=True)
        else:
            self._made.set()


_all_replies: weakref.WeakKeyDictionary[Any, _Replies] = (
    weakref.WeakKeyDictionary()
)
_all_replies_lock = threading.Lock()


def _replies_to(transport: oslo_messaging.RPCTransport) -> _Replies:
    """The one `_Replies` of a transport."""
    with _all_replies_lock:
        if transport not in _all_replies:
            # There is no public way to it; the in-process driver has none.
            make = getattr(transport._driver, "_get_reply_q", None)  # noqa: SLF001
            _all_replies[transport] = _Replies(make)
        return _all_replies[transport]


def get_server(
    transport: oslo_messaging.RPCTransport,
    target: oslo_messaging.Target,
    endpoints: Sequence[object],
) -> oslo_messaging.MessageHandlingServer:
    """A server of the methods that `oslo_messaging.expose` marks."""
    return oslo_messaging.get_rpc_server(
        transport,
        target,
        [_Endpoint(endpoint) for endpoint in endpoints],
        serializer=ContextSerializer(),
        access_policy=dispatcher.ExplicitRPCAccessPolicy,
    )


class ContextSerializer(oslo_messaging.Serializer):  # type: ignore[misc]
    """Carries a RequestContext; the user's token stays at home."""

    def serialize_entity(self, context: Any, entity: Any) -> Any:
        """Arguments and results are plain data already."""
        return entity

    def deserialize_entity(self, context: Any, entity: Any) -> Any:
        """Arguments and results are plain data already."""
        return entity

    def serialize_context(
        self, context: cyborg_context.RequestContext
    ) -> dict[str, Any]:
        """What the other side has to know of who asks."""
        values = context.to_dict()
        values.pop("auth_token", None)
        return values

    def deserialize_context(
        self, context: Mapping[str, Any]
    ) -> cyborg_context.RequestContext:
        """Who asks; the calling thread logs with it from now on."""
        return cyborg_context.RequestContext.from_dict(context)


class _Endpoint:
    """Lets an endpoint's refusals travel without a traceback in the log.

    An error of ours is an answer; oslo.messaging logs every other one.
    """

    def __init__(self, endpoint: object) -> None:
        self._endpoint = endpoint

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._endpoint, name)
        return _refusing(value) if hasattr(value, "exposed") else value


def _refusing(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with metrics.rpc_served(method.__name__) as outcome:
            try:
                return _answer(method, *args, **kwargs)
            except exception.CyborgError as error:
                outcome.label = _outcome(error)
                raise oslo_messaging.ExpectedException from error

    return call


def _answer(method: Any, *args: Any, **kwargs: Any) -> Any:
    """What the method returns, or an error of ours.

    oslo.messaging would rebuild a built-in exception at the caller, who
    could not tell it from one of its own.
    """
    try:
        return method(*args, **kwargs)
    except exception.CyborgError:
        raise
    except Exception as error:
        # Outermost frame of the request: nobody else would log it.
        LOG.exception("%s failed.", method.__name__)
        raise exception.CyborgError("the service failed") from error


def _outcome(error: exception.CyborgError) -> str:
    """What became of a call that ended so, in a word."""
    if isinstance(error, exception.Timeout):
        return "timeout"
    if isinstance(error, exception.Unavailable):
        return "unavailable"
    return "failed" if error.code >= 500 else "refused"


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what oslo.messaging raises into our errors.

    `what` names the other side for people: "the conductor".
    """
    try:
        yield
    except exception.CyborgError as error:
        raise _original(error) from None
    except oslo_messaging.MessagingTimeout as error:
        raise exception.Timeout(f"{what} did not answer in time") from error
    except _UNREACHABLE as error:
        raise exception.Unavailable(f"{what} cannot be reached") from error
    except _TOO_NEW as error:
        raise _older(what) from error
    except oslo_messaging.RemoteError as error:
        if error.exc_type in _TOO_NEW_NAMES:
            raise _older(what) from error
        raise exception.CyborgError(f"{what} failed") from error


_SEEN_TO = (
    "Can not send reply",
    "Failed to process incoming message",
    "ignoring duplicate message",
)
"""What oslo.messaging says with a traceback when the broker is away, which
it tries again, or brings a message twice, which it leaves out."""


def _without_trace(record: logging.LogRecord) -> bool:
    """What is seen to is one line."""
    if str(record.msg).startswith(_SEEN_TO):
        record.exc_info = None
    return True


def _listening_again(record: logging.LogRecord) -> bool:
    """So is that a listener lost it, and goes on when it is back."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, oslo_messaging.MessageDeliveryFailure):
        record.msg, record.args = "Listening is tried again: %s", (error,)
        record.exc_info = None
    return True


for _name in (
    "oslo_messaging.rpc.server",
    "oslo_messaging._drivers.amqpdriver",
):
    logging.getLogger(_name).addFilter(_without_trace)
logging.getLogger("oslo_utils.excutils").addFilter(_listening_again)


def is_silence(error: exception.Timeout) -> bool:
    """Whether no answer came; else the other side says that it took long."""
    return isinstance(error.__cause__, oslo_messaging.MessagingTimeout)


def _older(what: str) -> exception.Conflict:
    return exception.Conflict(
        f"{what} is of an older release, which cannot do this"
    )


_BAD_URL = (
    ValueError,
    oslo_messaging.DriverLoadFailure,
    oslo_messaging.InvalidTransportURL,
)

_TOO_NEW = (
    oslo_messaging.UnsupportedVersion,
    oslo_messaging.RPCVersionCapError,
)
"""What is asked is newer than the other side, or than what
`[upgrade_levels]` says of it."""
_TOO_NEW_NAMES = frozenset(error.__name__ for error in _TOO_NEW)
"""So it is called where it crosses a broker."""

_UNREACHABLE = (
    oslo_messaging.MessageDeliveryFailure,
    oslo_messaging.MessageUndeliverable,
    oslo_messaging.ClientSendError,
    kombu.exceptions.OperationalError,
    OSError,
)
"""What oslo.messaging raises, and what the libraries below it do: it lets
theirs through where a connection breaks while it is being made."""


def _original(error: exception.CyborgError) -> exception.CyborgError:
    """The error as the other side raised it.

    oslo.messaging makes a subclass whose text holds the remote traceback,
    which is nothing for a client to read.
    """
    for cls in type(error).__mro__:
        if cls.__module__ == exception.__name__:
            result: exception.CyborgError = cls(error.message)
            return result
    return error

# SPDX-License-Identifier: Apache-2.0
"""Notices published as oslo.messaging notifications.

They are for billing, dashboards and audit trails, and never hold up what
they tell of: a broker that is away costs the notices that find no more room,
and a line in the log.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple
from typing import Protocol

import oslo_messaging
from oslo_config import cfg

from cyborg import context as cyborg_context
from cyborg import notification
from cyborg.rpc import transport as rpc_transport

LOG = logging.getLogger(__name__)

ROOM = 10_000
"""Notices that wait for the broker, at most."""

STOP_SECONDS = 3.0
"""How long an end waits for the broker."""

OFF = frozenset({"", "noop"})
"""Values of `[oslo_messaging_notifications] driver` that publish nothing."""


class Publisher(Protocol):
    """What we need of `oslo_messaging.Notifier`."""

    def info(self, ctxt: object, event_type: str, payload: object) -> None:
        """Publish what happened."""

    def error(self, ctxt: object, event_type: str, payload: object) -> None:
        """Publish what failed."""


class _Waiting(NamedTuple):
    context: cyborg_context.RequestContext
    notice: notification.Notice


class Sender:
    """Publishes in a thread of its own, in the order it was told."""

    def __init__(self, publisher: Publisher, room: int = ROOM) -> None:
        self._publisher = publisher
        self._room = room
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._busy = False
        self._lost = 0
        self._thread = threading.Thread(
            target=self._run, name="notifications", daemon=True
        )

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def send(self, told: Iterable[notification.Notice]) -> None:
        """Have these published soon, as caused by the current request."""
        context = cyborg_context.current()
        with self._changed:
            for notice in told:
                if self._stopped:
                    _say_unpublished(notice, "the service stops")
                elif len(self._waiting) < self._room:
                    self._waiting.append(_Waiting(context, notice))
                else:
                    self._lose()
            self._changed.notify_all()

    def stop(self, seconds: float) -> None:
        """Take no more, and give what waits that long to go."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: not (self._waiting or self._busy), seconds
            )
            left = len(self._waiting) + self._busy
            self._waiting.clear()
        if left:
            LOG.warning("%d notifications were not published", left)

    def _lose(self) -> None:
        if not self._lost:
            LOG.warning(
                "Notifications are lost: %d wait for their broker already"
                " ([oslo_messaging_notifications] transport_url)",
                self._room,
            )
        self._lost += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if not self._waiting:
                    return
                waiting = self._waiting.popleft()
                self._busy = True
                lost, self._lost = self._lost, 0
            if lost:
                LOG.warning("%d notifications were lost", lost)
            self._publish(waiting)

    def _publish(self, waiting: _Waiting) -> None:
        event, payload = waiting.notice.event, waiting.notice.payload
        say = self._publisher.error if event.is_error else self._publisher.info
        try:
            say(waiting.context, event.value, notification.encode(payload))
        except Exception as error:
            # Outermost loop of the thread.
            _say_unpublished(waiting.notice, type(error).__name__)
            LOG.debug("It failed thus:", exc_info=True)


def _say_unpublished(notice: notification.Notice, why: str) -> None:
    LOG.warning(
        "Notification %s of %s was not published: %s",
        notice.event.value,
        notice.payload.uuid,
        why,
    )


class Telling(Protocol):
    """What tells its listener what it did: a database."""

    listener: Callable[[list[notification.Notice]], None] | None


@contextlib.contextmanager
def telling(
    conf: cfg.ConfigOpts, teller: Telling, service: str
) -> Iterator[None]:
    """Publishes meanwhile what is told, as `sender` says."""
    made = sender(conf, service)
    if made is None:
        yield
        return
    made.start()
    teller.listener = made.send
    try:
        yield
    finally:
        teller.listener = None
        made.stop(STOP_SECONDS)


def sender(conf: cfg.ConfigOpts, service: str) -> Sender | None:
    """A sender as `[oslo_messaging_notifications]` says; None where nobody
    is to be told, or where a broker cannot be used that way: then the log
    says so, for a notification is never worth a service.
    """
    group = conf.oslo_messaging_notifications
    drivers: Sequence[str] = group.driver
    if OFF.issuperset(drivers):
        return None
    try:
        rpc_transport.refuse_misread(
            oslo_messaging.TransportURL.parse(conf, group.transport_url)
        )
        publisher = oslo_messaging.Notifier(
            oslo_messaging.get_notification_transport(conf),
            publisher_id=f"{service}:{conf.host}",
            serializer=rpc_transport.ContextSerializer(),
        )
    except Exception as error:
        # A driver's library may raise what it likes when it is loaded, and
        # its message may hold the URL, and so a password.
        LOG.warning(
            "Notifications are off: [oslo_messaging_notifications] driver or"
            " transport_url cannot be used (%s)",
            type(error).__name__,
        )
        LOG.debug("It was refused thus:", exc_info=True)
        return None
    return Sender(publisher)

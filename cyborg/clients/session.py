# SPDX-License-Identifier: Apache-2.0
"""How we log in to the other services of the cloud and call them.

Everything of keystoneauth is confined to this file and its exceptions never
leave it: a caller meets an answer, `exception.Unavailable`, or at start a
`Unconfigured` that names group and option.  It knows nothing of what the
services do.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

import requests
from keystoneauth1 import adapter as ks_adapter
from keystoneauth1 import exceptions as ks_exceptions
from keystoneauth1 import loading
from keystoneauth1 import plugin
from oslo_config import cfg

from cyborg import context as cyborg_context
from cyborg import exception
from cyborg import metrics
from cyborg import service

LOG = logging.getLogger(__name__)

SERVICE_TYPES = {
    "placement": "placement",
    "nova": "compute",
    "glance": "image",
}
"""Configuration group -> what Keystone's catalogue calls that service."""

INTERFACES = ("public", "internal", "admin")

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
"""How long to wait where `timeout` is not configured."""


class Unconfigured(cfg.Error, service.Mistake):
    """A service cannot be reached by what the configuration says.

    The message names the group and the option.
    """


def adapter(conf: cfg.ConfigOpts, group: str) -> ks_adapter.Adapter:
    """Our way to the service that `group` configures.

    Nothing is sent yet.  The adapter may be used by many threads and should
    be kept: it holds the token and the open connections.  Raises
    Unconfigured.
    """
    options = conf[group]
    try:
        auth = _auth(conf, group)
        session = loading.load_session_from_conf_options(
            conf, group, auth=auth, timeout=options.timeout or READ_SECONDS
        )
    except (ValueError, TypeError) as error:
        raise Unconfigured(f"[{group}]: {error}") from error
    return ks_adapter.Adapter(
        session,
        service_type=options.service_type or SERVICE_TYPES[group],
        service_name=options.service_name,
        interface=_interfaces(conf, group),
        region_name=options.region_name,
        endpoint_override=options.endpoint_override,
        connect_retries=options.connect_retries,
        status_code_retries=options.status_code_retries,
    )


def _auth(conf: cfg.ConfigOpts, group: str) -> plugin.BaseAuthPlugin:
    section = conf[group].auth_section or group
    loading.register_auth_conf_options(conf, section)
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
    except ks_exceptions.MissingRequiredOptions as error:
        missing = ", ".join(
            option.name.replace("-", "_") for option in error.options
        )
        raise Unconfigured(
            f"[{section}] lacks {missing}, which its auth_type needs"
        ) from error
    except ks_exceptions.NoMatchingPlugin as error:
        raise Unconfigured(
            f"[{section}] auth_type = {error.name} is not known"
        ) from error
    if auth is None:
        switch = ""
        if "enabled" in conf[group]:
            switch = f"; [{group}] enabled = false says that there is none"
        raise Unconfigured(
            f"[{section}] auth_type is not set: without it (and auth_url, "
            f"username, password, ...) the {SERVICE_TYPES[group]} service "
            f"cannot be called{switch}"
        )
    return auth


def _interfaces(conf: cfg.ConfigOpts, group: str) -> list[str]:
    """Which endpoints to try, in order.

    `interface` and `endpoint_type` are older names that deployers still
    write; they count where `valid_interfaces` is not set.
    """
    options = conf[group]
    found = list(options.valid_interfaces or ())
    for legacy in ("interface", "endpoint_type"):
        if not found and legacy in options and options[legacy]:
            found = str(options[legacy]).split(",")
    found = [name.strip().removesuffix("URL") for name in found]
    for name in found:
        if name not in INTERFACES:
            raise Unconfigured(
                f"[{group}] valid_interfaces: {name!r} is none of "
                f"{', '.join(INTERFACES)}"
            )
    return found or ["internal", "public"]


class Service:
    """One service of the cloud, called with bounded patience.

    `name` is what people call it; `error` is raised where it does not do
    its work: no answer, a 5xx, or our credential refused.  The log says so
    once, and once again when it is back.
    """

    def __init__(
        self,
        adapter: ks_adapter.Adapter,
        name: str,
        error: type[exception.Unavailable] = exception.Unavailable,
    ) -> None:
        self._adapter = adapter
        self._name = name
        self._error = error
        self._down_since: float | None = None
        timeout = getattr(adapter.session, "timeout", None) or READ_SECONDS
        self._timeout = (min(CONNECT_SECONDS, timeout), timeout)

    def call(
        self,
        method: str,
        path: str,
        *,
        version: str = "",
        body: object = None,
        params: Mapping[str, str] | None = None,
        stream: bool = False,
        patience: float | None = None,
    ) -> requests.Response:
        """The answer, where it says something of the request.

        `version` is a microversion with its service (`compute 2.82`);
        `path` may be a whole URL; `patience` is for how many seconds it may
        be silent, where that is less than usual.  A streamed answer must be
        closed by the caller.
        """
        headers = {"Accept": "application/json"}
        if stream:  # the bytes as they are stored, so that lengths are true
            headers = {"Accept": "*/*", "Accept-Encoding": "identity"}
        headers["X-OpenStack-Request-ID"] = cyborg_context.current().global_id
        if version:
            headers["OpenStack-API-Version"] = version
        connect, read = self._timeout
        if patience is not None:
            patience = max(0.1, patience)
            connect, read = min(connect, patience), min(read, patience)
        with metrics.requested(self._name, method) as outcome:
            try:
                response = self._adapter.request(
                    path,
                    method,
                    json=body,
                    params=params or {},
                    stream=stream,
                    headers=headers,
                    raise_exc=False,
                    timeout=(connect, read),
                )
            except ks_exceptions.ClientException as error:
                outcome.label = "none"
                raise self.failed("does not answer", error) from error
            outcome.label = str(response.status_code)
        if _is_failure(response.status_code):
            response.close()
            raise self.failed(f"answered {response.status_code}")
        since, self._down_since = self._down_since, None
        if since is not None:
            LOG.info(
                "%s answers again, after %.0f s",
                self._name,
                time.monotonic() - since,
            )
        return response

    def endpoint(self) -> str:
        """The URL that paths are appended to, without a final slash."""
        try:
            found = self._adapter.get_endpoint()
        except ks_exceptions.ClientException as error:
            raise self.failed("does not answer", error) from error
        if not found:
            raise self.failed("is not in the catalogue")
        return found.rstrip("/")

    def decoded(self, response: requests.Response) -> dict[str, object]:
        """The JSON object of an answer."""
        try:
            found = json.loads(response.content)
        except ValueError as error:
            raise self.failed("answered what is not JSON", error) from error
        if not isinstance(found, dict):
            raise self.failed("answered what is not an object")
        return found

    def failed(
        self, what: str, cause: Exception | None = None
    ) -> exception.Unavailable:
        """The error to raise, after a line in the log."""
        level = logging.DEBUG
        if self._down_since is None:
            level = logging.WARNING
            self._down_since = time.monotonic()
        LOG.log(
            level,
            "%s %s%s",
            self._name,
            what,
            f": {cause}" if cause is not None else "",
        )
        return self._error(f"{self._name} {what}")


def _is_failure(status: int) -> bool:
    """Whether a status says nothing of the request, but of the service."""
    return status >= 500 or status in (401, 403, 408, 429)

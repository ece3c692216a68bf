# SPDX-License-Identifier: Apache-2.0
"""Who calls: what authentication left in the request.

With `auth_strategy = noauth` there is none, and the caller is an
administrator and a service.  Labs and tests can play others by headers:
`X-Project-Id` and `X-User-Id` choose the project and the user; `X-Roles`
gives exactly those roles, and then the request counts as a service's only
with a service role in `X-Service-Roles`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import Any

from cyborg import exception
from cyborg.api import envelope
from cyborg.api.settings import Settings
from cyborg.context import RequestContext

AUTHENTICATED = "keystone.token_auth"
"""Environ: keystonemiddleware's mark, which no header can forge."""

TOLD = "keystone.token_info"
"""Environ: what Keystone says of the user's token."""

ADMIN_ROLES = frozenset({"admin"})


@dataclasses.dataclass(frozen=True)
class Caller:
    """The identity of a request, and whose things exist for it."""

    context: RequestContext
    authenticated: bool
    everywhere: bool
    """Whether accelerator requests of every project exist for it."""
    far: bool = False
    """Whether it would be anybody, but is not on this machine."""

    @classmethod
    def of(cls, settings: Settings, environ: dict[str, Any]) -> Caller:
        """The caller of the request."""
        if settings.noauth:
            return _anybody(settings, environ)
        confirmed = (
            AUTHENTICATED in environ
            and environ.get("HTTP_X_IDENTITY_STATUS") == "Confirmed"
        )
        if not confirmed:
            return cls(RequestContext(overwrite=False), False, False)
        vouched = environ.get(
            "HTTP_X_SERVICE_IDENTITY_STATUS"
        ) == "Confirmed" and _is_service(settings, environ)
        # Of a request with a service token the header of the scope tells the
        # service's, not the user's.
        known = {"system_scope": "all"} if _is_systems(environ) else {}
        return _caller(settings, environ, vouched, **known)

    def require_identity(self) -> None:
        """Raises NotAuthenticated where nobody is known to call, Forbidden
        where anybody may but from this machine."""
        if self.far:
            raise exception.Forbidden(
                "Without authentication only this machine is served, unless "
                "[api] noauth_anywhere says otherwise."
            )
        if not self.authenticated:
            raise exception.NotAuthenticated(
                "The request you have made requires authentication."
            )

    @property
    def project_scope(self) -> str | None:
        """The only project whose accelerator requests exist for the
        caller; None where every project's do."""
        if self.everywhere:
            return None
        return self.context.project_id or ""


def _is_systems(environ: dict[str, Any]) -> bool:
    """Whether the user's token is one for the whole system."""
    told = environ.get(TOLD) or {}
    return bool(told.get("token", {}).get("system"))


def _is_service(settings: Settings, environ: dict[str, Any]) -> bool:
    """Whether the service token has a role that makes it count."""
    roles = _names(environ.get("HTTP_X_SERVICE_ROLES"))
    return not roles.isdisjoint(settings.service_roles)


def _names(text: str | None) -> frozenset[str]:
    return frozenset(
        name.strip() for name in (text or "").split(",") if name.strip()
    )


def _caller(
    settings: Settings,
    environ: dict[str, Any],
    service_request: bool,
    **known: Any,
) -> Caller:
    context = RequestContext.from_environ(
        environ,
        service_request=service_request,
        request_id=environ[envelope.REQUEST_ID],
        global_request_id=environ.get(envelope.GLOBAL_REQUEST_ID),
        **known,
    )
    everywhere = bool(context.is_admin) or not (
        ADMIN_ROLES | settings.service_roles
    ).isdisjoint(context.roles)
    return Caller(context, True, everywhere)


def _is_near(environ: dict[str, Any]) -> bool:
    """Whether the request comes from this machine.

    A WSGI server's own listening address is not known here; one without
    an address is a local socket.
    """
    text = environ.get("REMOTE_ADDR")
    if not text:
        return True
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _anybody(settings: Settings, environ: dict[str, Any]) -> Caller:
    if not (settings.noauth_anywhere or _is_near(environ)):
        return Caller(RequestContext(overwrite=False), False, False, far=True)
    roles = environ.get("HTTP_X_ROLES")
    if roles is None:
        return _caller(
            settings,
            environ,
            True,
            roles=["admin", "manager", "member", "reader"],
            is_admin=True,
        )
    return _caller(settings, environ, _is_service(settings, environ))

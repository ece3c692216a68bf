# SPDX-License-Identifier: Apache-2.0
"""Keystone's token check, as deployers' pipelines name it.

keystonemiddleware does the work; this lets the public paths through, and
makes every refusal an error of the form that all errors have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Iterable
from typing import TYPE_CHECKING

from keystoneauth1 import exceptions as keystone_exceptions
from keystonemiddleware import auth_token
from oslo_config import cfg

from cyborg import exception
from cyborg import metrics_listener
from cyborg import service
from cyborg.api import envelope
from cyborg.api import settings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from _typeshed.wsgi import WSGIApplication
    from _typeshed.wsgi import WSGIEnvironment

LOG = logging.getLogger(__name__)

KEYSTONE_SECONDS = 15
"""How long Keystone may be silent where `http_connect_timeout` does not say:
without a limit one that says nothing would hold every thread of the API."""

KEYSTONE_RETRIES = 1
"""How often it is asked again where `http_request_max_retries` does not say:
with the three of keystonemiddleware a client would wait for a minute."""

PUBLIC = frozenset({"/", "/v2", "/healthcheck", "/v2/openapi.json"})
"""Paths that need no token, whatever a pipeline's file lists."""


class AuthTokenMiddleware:
    """Lets a request through with a good token, or to a public path."""

    def __init__(
        self,
        application: WSGIApplication,
        conf: cfg.ConfigOpts,
        public: Iterable[str] = (),
    ) -> None:
        self._application = application
        self._public = PUBLIC | {
            envelope.path_of({"PATH_INFO": path}) for path in public
        }
        settings.register(conf)
        for name, value in (
            ("http_connect_timeout", KEYSTONE_SECONDS),
            ("http_request_max_retries", KEYSTONE_RETRIES),
        ):
            conf.set_default(name, value, "keystone_authtoken")
        self._metrics_door = metrics_listener.Door(conf)
        self._checked: WSGIApplication = auth_token.AuthProtocol(
            application, {"oslo_config_config": conf}
        )

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Pass a request on, or raise why not."""
        if envelope.path_of(
            environ
        ) in self._public or envelope.is_for_metrics(
            environ, self._metrics_door
        ):
            return self._application(environ, start_response)
        try:
            return self._checked(environ, start_response)
        except keystone_exceptions.ClientException as error:
            LOG.warning("Keystone cannot be asked about a token: %s", error)
            raise exception.Unavailable(
                "The identity service cannot be asked about the token."
            ) from error

    @classmethod
    def wrap(
        cls,
        application: WSGIApplication,
        conf: cfg.ConfigOpts,
        public: Iterable[str] = (),
    ) -> WSGIApplication:
        """The application behind the check that `auth_strategy` asks for."""
        if conf.auth_strategy == "noauth":
            LOG.warning(
                "auth_strategy = noauth: whoever can reach this API may do"
                " everything."
            )
            return application
        return envelope.Envelope(cls(application, conf, public))

    @classmethod
    def factory(
        cls, _global_config: dict[str, str] | None, **local: str
    ) -> Callable[[WSGIApplication], WSGIApplication]:
        """PasteDeploy's entry; `acl_public_routes` lists public paths."""
        listed = local.get("acl_public_routes", "").replace(",", " ")
        public = [path for path in listed.split() if path.startswith("/")]

        def check(application: WSGIApplication) -> WSGIApplication:
            return cls.wrap(application, service.configuration(), public)

        return check

# SPDX-License-Identifier: Apache-2.0
"""The API in front of a real conductor, on SQLite and `fake://`.

Instead of Keystone there is a filter that knows a handful of tokens, one
for each persona, and leaves in the request what keystonemiddleware leaves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webob
from oslo_config import cfg

from cyborg import inventory
from cyborg import service
from cyborg.api import app
from cyborg.api import envelope
from cyborg.api.middleware import auth_token
from cyborg.conductor.service import ConductorService
from cyborg.context import admin_context
from cyborg.db import engine
from cyborg.db import models
from cyborg.rpc import conductor as rpc_conductor
from cyborg.rpc import transport as rpc_transport
from tests import described

PROJECT = "11111111aaaa4bbb8ccc222222222222"
OTHER_PROJECT = "33333333aaaa4bbb8ccc444444444444"
HOST = "compute-1"
IMAGE = "5d0b1c1e-9f30-4a5e-8f0e-0d9c5d8a6b11"


@dataclasses.dataclass(frozen=True)
class Persona:
    """What Keystone would say of a token."""

    roles: str
    project: str | None = PROJECT
    system: bool = False


PERSONAS = {
    "no-role": Persona(""),
    "reader": Persona("reader"),
    "member": Persona("member,reader"),
    "manager": Persona("manager,member,reader"),
    "admin": Persona("admin,manager,member,reader"),
    "service": Persona("service", "service-project"),
    "other": Persona("member,reader", OTHER_PROJECT),
    "system": Persona("admin,manager,member,reader", None, system=True),
}
"""Tokens of users."""

SERVICES = {"nova": "service,admin", "stranger": "admin"}
"""Service tokens, and their roles."""


class Keystone:
    """The filter in place of keystonemiddleware's."""

    def __init__(self, application: Any) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        public = environ["PATH_INFO"] in auth_token.PUBLIC
        persona = PERSONAS.get(environ.get("HTTP_X_AUTH_TOKEN", ""))
        forged = ("HTTP_X_SERVICE_IDENTITY", "HTTP_X_SERVICE_R", "HTTP_X_ROLE")
        for name in [name for name in environ if name.startswith(forged)]:
            del environ[name]
        if public:
            return self._application(environ, start)
        if persona is None:
            start(
                "401 Unauthorized",
                [("WWW-Authenticate", 'Keystone uri="http://keystone"')],
            )
            return [b"<html>who are you?</html>"]
        environ["keystone.token_auth"] = object()
        environ["HTTP_X_IDENTITY_STATUS"] = "Confirmed"
        environ["HTTP_X_ROLES"] = persona.roles
        environ["HTTP_X_USER_ID"] = "user-of-a-test"
        if persona.project is not None:
            environ["HTTP_X_PROJECT_ID"] = persona.project
        if persona.system:
            environ["HTTP_OPENSTACK_SYSTEM_SCOPE"] = "all"
        roles = SERVICES.get(environ.get("HTTP_X_SERVICE_TOKEN", ""))
        if roles is not None:
            environ["HTTP_X_SERVICE_IDENTITY_STATUS"] = "Confirmed"
            environ["HTTP_X_SERVICE_ROLES"] = roles
        return self._application(environ, start)


class Lab:
    """One deployment: `call` sends a request to its API."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf
        self.database = engine.Database(conf)
        models.Base.metadata.create_all(self.database.engine)
        self._transport = rpc_transport.get_transport(conf)
        self.conductor = rpc_conductor.ConductorClient(self._transport, conf)
        self._service = ConductorService(conf, self.database, self._transport)
        application = app.make_app(conf, self.database, self.conductor)
        if conf.auth_strategy == "keystone":
            application = envelope.Envelope(Keystone(application))
        self.application = application

    def start(self) -> None:
        self._service.start()
        self.report()

    def stop(self) -> None:
        self._service.stop()
        self._transport.cleanup()
        self.database.dispose()

    def report(self, host: str = HOST, accelerators: int = 16) -> None:
        """Let a host with one simulated FPGA report itself."""
        self.conductor.report_host(
            admin_context(), host_report(host, accelerators)
        )

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        persona: str | None = "admin",
        service_token: str | None = None,
        version: str | None = "2.4",
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> webob.Response:
        """Send a request, and check what holds for every answer."""
        sent = dict(headers or {})
        if persona is not None:
            sent["X-Auth-Token"] = persona
        if service_token is not None:
            sent["X-Service-Token"] = service_token
        if version is not None:
            sent["OpenStack-API-Version"] = f"accelerator {version}"
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        request = webob.Request.blank(path, method=method)
        request.headers.update(sent)
        if data is not None:
            request.body = data
        response = request.get_response(self.application)
        check(request, response)
        return response

    def create_profile(
        self, name: str = "dp-one", amount: int = 1, **more: str
    ) -> dict[str, Any]:
        """Store a profile of one group over FPGAs."""
        answer = self.call(
            "POST",
            "/v2/device_profiles",
            [
                {
                    "name": name,
                    "groups": [{"resources:FPGA": str(amount), **more}],
                }
            ],
        )
        assert answer.status_int == 201, answer.text
        result: dict[str, Any] = answer.json
        return result

    def create_arqs(
        self, profile: str = "dp-one", persona: str = "member"
    ) -> list[str]:
        """Make the requests of a profile; their uuids."""
        answer = self.call(
            "POST",
            "/v2/accelerator_requests",
            {"device_profile_name": profile},
            persona=persona,
        )
        assert answer.status_int == 201, answer.text
        return [one["uuid"] for one in answer.json["arqs"]]

    def bind(
        self, uuids: Iterable[str], instance: str, **options: Any
    ) -> webob.Response:
        """Bind requests as Nova does."""
        options.setdefault("persona", "member")
        options.setdefault("service_token", "nova")
        return self.call(
            "PATCH",
            "/v2/accelerator_requests",
            {uuid: binding(instance) for uuid in uuids},
            **options,
        )

    def bound(self) -> tuple[str, str]:
        """A bound request and its instance."""
        instance = str(uuid.uuid4())
        arqs = self.create_arqs()
        assert self.bind(arqs, instance).status_int == 202
        return arqs[0], instance

    def state(self, arq: str) -> str:
        answer = self.call("GET", f"/v2/accelerator_requests/{arq}")
        return str(answer.json["state"])

    def count(self, model: type[models.Base]) -> int:
        with self.database.reader() as session:
            return session.query(model).count()


def provider(host: str = HOST) -> str:
    return inventory.provider_uuid(f"{host}_FakeDevice")


def binding(instance: str, host: str = HOST, **more: str) -> list[Any]:
    """What Nova sends for one request."""
    places = {
        "hostname": host,
        "device_rp_uuid": provider(host),
        "instance_uuid": instance,
        **more,
    }
    return [
        {"op": "add", "path": f"/{name}", "value": value}
        for name, value in places.items()
    ]


UNBINDING = [
    {"op": "remove", "path": f"/{name}"}
    for name in ("hostname", "device_rp_uuid", "instance_uuid")
]


def host_report(host: str, accelerators: int) -> inventory.HostReport:
    """A host with one simulated FPGA."""
    return inventory.HostReport(
        host=host,
        provider_name=host,
        provider_uuid=inventory.provider_uuid(host),
        devices=(
            inventory.Device(
                controlpath=inventory.pci_json("0000:0c:00.0"),
                type=inventory.DeviceType.FPGA,
                vendor="0xABCD",
                model="miss model info",
                driver="fake_driver",
                std_board_info=json.dumps(
                    {"device_id": "0xabcd", "class": "Fake class"}
                ),
                vendor_board_info="fake_vendor_info",
                deployables=(
                    inventory.Deployable(
                        name=f"{host}_FakeDevice",
                        num_accelerators=accelerators,
                        driver_name="fake",
                        attributes=(
                            ("traits1", "CUSTOM_FAKE_DEVICE"),
                            ("rc", "FPGA"),
                        ),
                        attach_handles=tuple(
                            inventory.AttachHandle(
                                inventory.AttachType.TEST_PCI,
                                inventory.pci_json(
                                    f"0000:0c:{number // 8:02x}.{number % 8}"
                                ),
                            )
                            for number in range(1, accelerators + 1)
                        ),
                    ),
                ),
            ),
        ),
    )


def check(request: webob.Request, response: webob.Response) -> None:
    """What every answer has, whatever was asked."""
    headers = response.headers
    assert headers["x-openstack-request-id"].startswith("req-")
    path = request.environ["PATH_INFO"]
    if path.startswith("/v2"):
        assert headers["OpenStack-API-Minimum-Version"] == "2.0"
        assert headers["OpenStack-API-Maximum-Version"] == "2.4"
        assert headers["OpenStack-API-Version"].startswith("accelerator 2.")
        assert "OpenStack-API-Version" in headers["Vary"]
    if request.method == "HEAD":
        return
    described.check(
        request.method,
        path.encode("latin-1").decode("utf-8", "replace"),
        response.status_int,
        headers,
        response.body,
    )
    if response.status_int < 400:
        return
    assert response.content_type == "application/json"
    check_error(response.json, response.status_int)
    assert (
        response.json["errors"][0]["request_id"]
        == headers["x-openstack-request-id"]
    )


def check_error(body: Any, status: int) -> str:
    """The shape that every error has; what it says to people."""
    assert set(body) == {"error_message", "errors"}
    message = json.loads(body["error_message"])
    assert set(message) == {"faultcode", "faultstring", "debuginfo"}
    assert message["faultcode"] == ("Client" if status < 500 else "Server")
    assert message["debuginfo"] is None
    (error,) = body["errors"]
    assert set(error) == {"status", "title", "detail", "request_id", "code"}
    assert error["status"] == status
    assert error["detail"] == message["faultstring"]
    assert error["code"].startswith("accelerator.")
    return str(message["faultstring"])


@contextlib.contextmanager
def running(directory: Path, **options: Any) -> Iterator[Lab]:
    """A deployment that ends with the context.

    `options` are configuration options, `group__name` or `name`; a file
    `lab.conf` in the directory is read too.
    """
    file = directory / "lab.conf"
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf(
        args=[],
        project="cyborg",
        default_config_files=[str(file)] if file.exists() else [],
        default_config_dirs=[],
    )
    settings = {
        "database__connection": f"sqlite:///{directory / 'lab.sqlite'}",
        "transport_url": "fake://",
        "rpc_response_timeout": 10,
        "host": f"conductor-{uuid.uuid4().hex}",
        "placement__enabled": False,
        "nova__enabled": False,
        **options,
    }
    # In-process messages of one deployment must not reach another.
    rpc_transport.get_transport(conf).cleanup()
    conf.set_override("control_exchange", uuid.uuid4().hex)
    for name, value in settings.items():
        group, _, option = name.rpartition("__")
        conf.set_override(option, value, group or None)
    lab = Lab(conf)
    lab.start()
    try:
        yield lab
    finally:
        lab.stop()

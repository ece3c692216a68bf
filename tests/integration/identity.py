# SPDX-License-Identifier: Apache-2.0
"""A real Keystone of our own, with the people of the tests in it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import grp
import os
import pwd
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import requests

from tests.integration import children
from tests.integration import resources

START_SECONDS = 60
REGION = "RegionOne"
PASSWORD = "not-a-secret"


@dataclasses.dataclass(frozen=True)
class Persona:
    """A user and the roles that it has on one project."""

    user: str
    project: str
    roles: tuple[str, ...]


PERSONAS = {
    persona.user: persona
    for persona in (
        Persona("cyborg", "service", ("admin",)),
        Persona("nova", "service", ("admin", "service")),
        Persona("placement", "service", ("admin", "service")),
        Persona("plain-service", "service", ("service",)),
        Persona("demo-manager", "demo", ("manager",)),
        Persona("demo-member", "demo", ("member",)),
        Persona("demo-reader", "demo", ("reader",)),
        Persona("demo-nobody", "demo", ("nobody",)),
        Persona("other-member", "other", ("member",)),
    )
}
ADMIN = Persona("admin", "admin", ("admin",))

CONFIGURATION = """\
[DEFAULT]
log_file = {folder}/keystone.log
[database]
connection = sqlite:///{folder}/keystone.sqlite
[token]
provider = fernet
[fernet_tokens]
key_repository = {folder}/fernet
[credential]
key_repository = {folder}/credential
[identity]
password_hash_rounds = 4
[cache]
enabled = true
backend = oslo_cache.dict
"""


class Keystone:
    """Keystone on a loopback port, and what a test asks it for."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._port = resources.free_port()
        self.auth_url = f"http://127.0.0.1:{self._port}/v3"
        self._tokens: dict[str, str] = {}
        self.projects: dict[str, str] = {}
        self.users: dict[str, str] = {}
        self._session = requests.Session()
        self._child: children.Child | None = None

    def start(self) -> None:
        """Make its database and keys, serve it, and fill it."""
        for name in ("fernet", "credential"):
            (self._folder / name).mkdir(mode=0o700)
        (self._folder / "keystone.conf").write_text(
            CONFIGURATION.format(folder=self._folder)
        )
        with futures.ThreadPoolExecutor() as pool:
            list(
                pool.map(
                    lambda words: self._manage(*words),
                    (
                        ("db_sync",),
                        ("fernet_setup", *self._owner()),
                        ("credential_setup", *self._owner()),
                    ),
                )
            )
        self._manage(
            "bootstrap",
            *("--bootstrap-password", PASSWORD),
            *("--bootstrap-region-id", REGION),
            *("--bootstrap-public-url", self.auth_url),
            *("--bootstrap-internal-url", self.auth_url),
        )
        self._serve()
        self._fill()

    def _serve(self) -> None:
        self._child = children.Child(
            [
                str(self._programs / "python"),
                str(Path(__file__).with_name("serve.py")),
                "keystone",
                str(self._port),
            ],
            self._folder / "keystone.out",
            {"OS_KEYSTONE_CONFIG_FILES": f"{self._folder}/keystone.conf"},
        )
        self._wait()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Do not serve meanwhile."""
        self.stop()
        try:
            yield
        finally:
            self._serve()

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _wait(self) -> None:
        child = self._child
        assert child is not None
        resources.wait_until(
            lambda: not child.running or resources.answers(self._port),
            START_SECONDS,
            "Keystone serves",
        )
        assert child.running, child.tail()

    @staticmethod
    def _owner() -> tuple[str, ...]:
        return (
            "--keystone-user",
            pwd.getpwuid(os.getuid()).pw_name,
            "--keystone-group",
            grp.getgrgid(os.getgid()).gr_name,
        )

    def _manage(self, *words: str) -> None:
        done = children.finish(
            [
                str(self._programs / "keystone-manage"),
                "--config-file",
                str(self._folder / "keystone.conf"),
                *words,
            ]
        )
        assert done.returncode == 0, done.stderr

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON answer to the administrator's request."""
        answer = self._session.request(
            method,
            f"{self.auth_url}/{path}",
            json=body,
            headers={"X-Auth-Token": self.token("admin")},
            timeout=30,
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def token(self, user: str) -> str:
        """The user's token for its project, the same one each time."""
        if user not in self._tokens:
            self._tokens[user] = self.new_token(user)
        return self._tokens[user]

    def new_token(self, user: str, scope: Any = None) -> str:
        """A token for the user's project, or of another scope."""
        persona = ADMIN if user == "admin" else PERSONAS[user]
        default = {"id": "default"}
        identity = {
            "methods": ["password"],
            "password": {
                "user": {
                    "name": user,
                    "domain": default,
                    "password": PASSWORD,
                }
            },
        }
        if scope is None:
            scope = {"project": {"name": persona.project, "domain": default}}
        return self._authenticate({"identity": identity, "scope": scope})

    def passing_token(self, user: str, seconds: int) -> str:
        """A token of an application credential that ends so soon."""
        end = datetime.datetime.now(datetime.timezone.utc)
        end += datetime.timedelta(seconds=seconds)
        made = self._application_credential(
            user, {"expires_at": end.strftime("%Y-%m-%dT%H:%M:%S.%f")}
        )
        return self._authenticate(
            {
                "identity": {
                    "methods": ["application_credential"],
                    "application_credential": {
                        "id": made["id"],
                        "secret": made["secret"],
                    },
                }
            }
        )

    def revoke(self, token: str) -> None:
        """Make Keystone take the token no more."""
        answer = self._session.delete(
            f"{self.auth_url}/auth/tokens",
            headers={
                "X-Auth-Token": self.token("admin"),
                "X-Subject-Token": token,
            },
            timeout=30,
        )
        answer.raise_for_status()

    def _authenticate(self, how: Any) -> str:
        answer = self._session.post(
            f"{self.auth_url}/auth/tokens", json={"auth": how}, timeout=30
        )
        answer.raise_for_status()
        return answer.headers["X-Subject-Token"]

    def application_credential(self, user: str) -> dict[str, str]:
        """`credential_id` and `credential_secret` of a new one."""
        made = self._application_credential(user, {})
        return {
            "credential_id": made["id"],
            "credential_secret": made["secret"],
        }

    def _application_credential(self, user: str, more: Any) -> Any:
        token = self.new_token(user)
        answer = self._session.post(
            f"{self.auth_url}/users/{self.users[user]}"
            "/application_credentials",
            json={
                "application_credential": {
                    "name": resources.unique_name(user),
                    **more,
                }
            },
            headers={"X-Auth-Token": token},
            timeout=30,
        )
        answer.raise_for_status()
        return answer.json()["application_credential"]

    def add_user(
        self, user: str, password: str, project: str, role: str
    ) -> None:
        """A user with a role on a project that is there."""
        made = self.request(
            "POST", "users", {"user": {"name": user, "password": password}}
        )["user"]["id"]
        (found,) = self.request("GET", f"roles?name={role}")["roles"]
        self.request(
            "PUT",
            f"projects/{self.projects[project]}/users/{made}"
            f"/roles/{found['id']}",
        )

    def add_region(self, name: str, url: str) -> None:
        """A region where Keystone itself is found at `url`."""
        self.request("POST", "regions", {"region": {"id": name}})
        (service,) = self.request("GET", "services?type=identity")["services"]
        self._add_endpoints(service["id"], name, url)

    def add_endpoint(self, service_type: str, name: str, url: str) -> None:
        """Put a service into the catalogue, public and internal."""
        service = self.request(
            "POST",
            "services",
            {"service": {"type": service_type, "name": name}},
        )["service"]
        self._add_endpoints(service["id"], REGION, url)

    def _add_endpoints(self, service: str, region: str, url: str) -> None:
        for interface in ("public", "internal"):
            self.request(
                "POST",
                "endpoints",
                {
                    "endpoint": {
                        "service_id": service,
                        "interface": interface,
                        "region_id": region,
                        "url": url,
                    }
                },
            )

    def _fill(self) -> None:
        self.request("POST", "roles", {"role": {"name": "nobody"}})
        roles = {
            role["name"]: role["id"]
            for role in self.request("GET", "roles")["roles"]
        }
        made = {
            name: self.request("POST", "projects", {"project": {"name": name}})
            for name in sorted({p.project for p in PERSONAS.values()})
        }
        for persona in PERSONAS.values():
            user = self.request(
                "POST",
                "users",
                {"user": {"name": persona.user, "password": PASSWORD}},
            )["user"]["id"]
            self.users[persona.user] = user
            project = made[persona.project]["project"]["id"]
            self.projects[persona.project] = project
            for role in persona.roles:
                self.request(
                    "PUT",
                    f"projects/{project}/users/{user}/roles/{roles[role]}",
                )

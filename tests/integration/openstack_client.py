# SPDX-License-Identifier: Apache-2.0
"""`openstack accelerator …` of one environment, and which of its commands
have been seen to work.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tests.integration import children
from tests.integration import deployment
from tests.integration import identity

AUTH_PLUGIN = "password_and_service"
"""The name that `service_auth.py` has as a plugin of keystoneauth."""

MODULE = Path(__file__).with_name("service_auth.py")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    errors: str

    @property
    def said(self) -> str:
        return self.output + self.errors


class OpenStack:
    """The client in `programs`, against one deployment."""

    def __init__(self, cyborg: deployment.Deployment, programs: Path) -> None:
        self.cyborg = cyborg
        self.programs = programs
        self.worked: set[str] = set()
        self._plugins = cyborg.folder / "plugins"
        self._install_plugin()
        self._process = children.Dialogue(
            [
                str(programs / "python"),
                str(Path(__file__).with_name("openstack_forks.py")),
            ],
            cyborg.folder / "openstack.err",
            self._surroundings,
        )
        self.close = self._process.close
        self.commands = frozenset(self._process.listen())
        """What the client's entry points say that there is, by its words."""

    def environment(
        self, user: str, service: str | None = None
    ) -> dict[str, str]:
        """What `user` has in its shell; `service` adds that one's token."""
        people = {**identity.PERSONAS, "admin": identity.ADMIN}
        extra = {
            "OS_AUTH_TYPE": AUTH_PLUGIN,
            "SERVICE_USERNAME": service or "",
            "SERVICE_PROJECT_NAME": "service",
        }
        return {
            **self._surroundings,
            "OS_AUTH_URL": self.cyborg.cloud.keystone.auth_url,
            "OS_USERNAME": user,
            "OS_PASSWORD": identity.PASSWORD,
            "OS_PROJECT_NAME": people[user].project,
            "OS_USER_DOMAIN_NAME": "Default",
            "OS_PROJECT_DOMAIN_NAME": "Default",
            "OS_REGION_NAME": identity.REGION,
            "OS_IDENTITY_API_VERSION": "3",
            "OS_ACCELERATOR_API_VERSION": "2.3",
            **(extra if service else {}),
        }

    def run(
        self,
        user: str,
        *words: str,
        service: str | None = None,
        **environment: str,
    ) -> Ended:
        """Run `openstack accelerator <words>` as `user`."""
        ended = Ended(
            **self._process.ask(
                {
                    "words": ["accelerator", *words],
                    "environment": {
                        **self.environment(user, service),
                        **environment,
                    },
                }
            )
        )
        if ended.status == 0:
            self.worked.add(self.command(*words))
        return ended

    def do(self, user: str, *words: str, service: str | None = None) -> str:
        """What a command that must work printed."""
        ended = self.run(user, *words, service=service)
        assert ended.status == 0, ended.said
        return ended.output

    def show(self, user: str, *words: str, service: str | None = None) -> Any:
        """The JSON that a command that must work printed."""
        return json.loads(self.do(user, *words, "-f", "json", service=service))

    def command(self, *words: str) -> str:
        """Which of the commands the words begin with."""
        text = " ".join(("accelerator", *words)) + " "
        return max(
            (name for name in self.commands if text.startswith(name + " ")),
            key=len,
        )

    @property
    def _surroundings(self) -> dict[str, str]:
        return {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.cyborg.folder),
            "PYTHONPATH": str(self._plugins),
        }

    def _install_plugin(self) -> None:
        """As a package beside those of the client."""
        about = self._plugins / "service_auth-1.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (self._plugins / MODULE.name).write_text(MODULE.read_text())
        (about / "METADATA").write_text("Name: service-auth\nVersion: 1\n")
        (about / "entry_points.txt").write_text(
            f"[keystoneauth1.plugin]\n{AUTH_PLUGIN} = service_auth:Loader\n"
        )

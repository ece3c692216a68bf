# SPDX-License-Identifier: Apache-2.0
"""Deployers' check 2: what grenade runs, with the same functions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devstack import sandbox
from tests.devstack.sandbox import named

UPGRADE = sandbox.PLUGIN / "upgrade"
RELEASES = sorted(path.name[5:] for path in UPGRADE.glob("from-*"))
SERVICES = ["cyborg-api", "cyborg-cond", "cyborg-agent"]
SCRIPTS = sorted(
    path
    for path in sandbox.PLUGIN.rglob("*")
    if path.is_file() and path.suffix not in {".rst", ".txt"}
)


class Grenade(sandbox.Node):
    """A node with a base's and a target's devstack."""

    def __init__(self, folder: Path, release: str = "2026.1") -> None:
        super().__init__(folder)
        places = [
            "grenade/grenaderc",
            "grenade/functions",
            *(
                f"{tree}/devstack/{name}"
                for tree in ("base", "target")
                for name in (
                    "functions",
                    "stackrc",
                    "openrc",
                    "lib/tls",
                    "lib/apache",
                )
            ),
        ]
        for place in places:
            file = self.folder / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"source {sandbox.FUNCTIONS}\nset -u\n")
        self.more = {
            "GRENADE_DIR": str(self.folder / "grenade"),
            "BASE_DEVSTACK_DIR": str(self.folder / "base/devstack"),
            "TARGET_DEVSTACK_DIR": str(self.folder / "target/devstack"),
            "TOP_DIR": str(self.folder / "target/devstack"),
            "BASE_DEVSTACK_BRANCH": f"stable/{release}",
            "TARGET_DEVSTACK_BRANCH": "master",
        }

    def script(self, name: str, *words: str) -> list[list[str]]:
        """Run one of our scripts as grenade does."""
        command = " ".join((str(UPGRADE / name), *words))
        calls = self.bash(command, self.environment(**self.more))
        for unlawful in ("undefined", "outside", "die"):
            assert named(calls, unlawful) == []
        return calls


@pytest.fixture
def grenade(tmp_path: Path) -> Grenade:
    """A base that devstack has made."""
    node = Grenade(tmp_path / "node")
    node.stack()
    return node


@pytest.mark.parametrize(
    "path",
    [path for path in SCRIPTS if UPGRADE in path.parents],
    ids=lambda path: str(path.relative_to(UPGRADE)),
)
def test_every_file_of_the_upgrade_is_executable(path: Path) -> None:
    assert os.access(path, os.X_OK)


def test_bashate_has_nothing_to_say() -> None:
    """With what devstack itself ignores, and takes for errors."""
    assert len(SCRIPTS) >= 9
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("bashate")),
            "--ignore",
            "E006",
            "--error",
            "E005,E042",
            *map(str, SCRIPTS),
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_grenade_is_told_what_to_upgrade(grenade: Grenade) -> None:
    calls = grenade.bash(
        f"{sandbox.BEGIN}\nsource {UPGRADE}/settings",
        grenade.environment(**grenade.more),
    )
    assert named(calls, "register_project_for_upgrade") == [["cyborg"]]
    assert named(calls, "register_db_to_save") == [["cyborg"]]
    lines = named(calls, "devstack_localrc")
    plugins = {
        line[0]: line[2:] for line in lines if line[1] != "enable_service"
    }
    assert plugins["base"][0] == "cyborg"
    assert plugins["base"][2] == "stable/2026.1"
    assert plugins["target"][:2] == ["cyborg", str(sandbox.ROOT)]
    for side in ("base", "target"):
        assert [side, "enable_service", "cyborg", *SERVICES] in lines
    assert "failed" not in {call[0] for call in calls}


def test_the_base_is_stopped_and_nothing_is_left(grenade: Grenade) -> None:
    calls = grenade.script("shutdown.sh")
    assert sorted(name for (name,) in named(calls, "stopped")) == sorted(
        SERVICES
    )
    assert calls[-1] == ["ensure_services_stopped", *SERVICES]
    grenade.script("shutdown.sh")


@pytest.mark.parametrize("release", RELEASES)
def test_the_upgrade_installs_checks_migrates_checks_and_starts(
    release: str, tmp_path: Path
) -> None:
    """cyborg.conf stays as the base wrote it."""
    node = Grenade(tmp_path / "node", release)
    node.stack()
    before = node.conf_file.read_text()
    calls = node.script("upgrade.sh")
    interesting = (
        "setup_develop",
        "upgrade_project",
        "write_uwsgi_config",
        "cyborg-status",
        "cyborg-dbsync",
        "started",
        "wait_for_service",
        "ensure_services_started",
    )
    assert [call[0] for call in calls if call[0] in interesting] == [
        "setup_develop",
        "upgrade_project",
        "write_uwsgi_config",
        "cyborg-status",
        "cyborg-dbsync",
        "cyborg-status",
        "started",
        "started",
        "started",
        "wait_for_service",
        "ensure_services_started",
    ]
    assert named(calls, "cyborg-status") == 2 * [["upgrade", "check"]]
    assert calls[-1] == ["ensure_services_started", *SERVICES]
    assert node.conf_file.read_text() == before
    assert named(calls, "recreate_database") == []


@pytest.mark.parametrize(("code", "goes_on"), [("1", True), ("2", False)])
def test_only_what_the_upgrade_does_not_cure_ends_it(
    code: str, goes_on: bool, grenade: Grenade
) -> None:
    (grenade.folder / "cyborg-status.exit").write_text(code)
    if goes_on:
        assert named(grenade.script("upgrade.sh"), "started")
        return
    with pytest.raises(sandbox.StackError):
        grenade.script("upgrade.sh")
    assert named(grenade.calls, "cyborg-dbsync", "started") == []


def test_resources_are_made_looked_at_and_removed(grenade: Grenade) -> None:
    assert (
        named(grenade.script("resources.sh", "early_create"), "openstack")
        == []
    )
    made = grenade.script("resources.sh", "create")
    assert [words[1] for words in named(made, "resource_save")] == [
        "profile",
        "arq",
    ]
    uuid = named(made, "resource_save")[0][2]
    assert grenade.script("resources.sh", "verify_noapi") == []
    seen = named(grenade.script("resources.sh", "verify"), "openstack")
    assert ["accelerator", "arq", "show", uuid] in seen
    gone = named(grenade.script("resources.sh", "destroy"), "openstack")
    assert [words[:3] for words in gone] == [
        ["accelerator", "arq", "delete"],
        ["accelerator", "device", "profile"],
    ]


def test_resources_that_cannot_be_removed_stop_nothing(
    grenade: Grenade,
) -> None:
    functions = grenade.folder / "grenade/functions"
    with functions.open("a") as file:
        file.write('function openstack { record openstack "$@"; false; }\n')
    grenade.bash(
        f"{UPGRADE}/resources.sh force_destroy",
        grenade.environment(**grenade.more),
    )
    assert named(grenade.calls, "openstack")


def test_an_unknown_phase_of_the_resources_is_refused(
    grenade: Grenade,
) -> None:
    with pytest.raises(sandbox.StackError):
        grenade.script("resources.sh", "admire")

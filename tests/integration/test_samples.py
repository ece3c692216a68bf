# SPDX-License-Identifier: Apache-2.0
"""The samples under etc/ that no server of ours runs, by their own tools."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.integration import children
from tests.integration import deployment
from tests.integration import resources
from tests.integration import web_servers

UNITS = sorted((web_servers.SAMPLES / "systemd").glob("*.service"))
DOCUMENTED = web_servers.SAMPLES.parent / "doc/source/admin/metrics.rst"
METRIC = re.compile(r"\bcyborg_[a-z_]+")


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        resources.missing(f"{name} is not installed")
    return found


def test_what_kolla_copies_is_what_it_always_was() -> None:
    names = {path.name for path in (web_servers.SAMPLES / "cyborg").iterdir()}
    names -= {"cyborg.conf.sample", "policy.yaml.sample"}  # made by tox
    assert names == {"api-paste.ini", "policy.yaml", "sudoers.sample"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    program = f"/usr/bin/{unit.stem}"
    edited = tmp_path / unit.name
    edited.write_text(
        unit.read_text().replace(program, deployment.program(unit.stem))
    )
    assert edited.read_text() != unit.read_text()
    done = children.finish([analyze, "--man=no", "verify", str(edited)])
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr, done.stderr
    assert "Unknown" not in done.stderr


@pytest.mark.parametrize("name", ["cyborg-api", "cyborg-conductor"])
def test_a_unit_leaves_little_to_attack(name: str) -> None:
    unit = web_servers.SAMPLES / "systemd" / f"{name}.service"
    done = children.finish(
        [
            *(tool("systemd-analyze"), "security", "--offline=yes"),
            *("--threshold=25", "--no-pager", str(unit)),
        ]
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_sysusers_and_tmpfiles_take_their_files(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for name in ("sysusers", "tmpfiles"):
        file = web_servers.SAMPLES / "systemd" / f"{name}.d" / "cyborg.conf"
        words = [tool(f"systemd-{name}"), f"--root={tmp_path}", str(file)]
        if name == "tmpfiles":
            words.insert(1, "--create")
        done = children.finish(words)
        assert done.returncode == 0, done.stderr
    assert "cyborg" in (tmp_path / "etc/passwd").read_text()
    for path in ("var/lib/cyborg", "var/log/cyborg", "etc/cyborg"):
        assert (tmp_path / path).stat().st_mode & 0o007 == 0


def test_logrotate_empties_the_logs(tmp_path: Path) -> None:
    log = tmp_path / "cyborg-api.log"
    log.write_text("said\n")
    config = web_servers.edited(
        "logrotate.d/cyborg",
        tmp_path,
        {
            "/var/log/cyborg/*.log": str(log),
            "su cyborg cyborg": f"su {_me()}",
        },
    )
    state = tmp_path / "state"
    done = children.finish(
        [web_servers.logrotate(), "--force", "-s", str(state), str(config)]
    )
    assert done.returncode == 0, done.stderr
    assert log.read_text() == ""
    assert (tmp_path / "cyborg-api.log.1").read_text() == "said\n"


def _me() -> str:
    done = children.finish(["sh", "-c", "echo $(id -un) $(id -gn)"])
    return done.stdout.strip()


def test_every_metric_of_an_alert_exists_and_is_documented() -> None:
    alerts = yaml.safe_load(
        (web_servers.SAMPLES / "prometheus/alerts.yml").read_text()
    )
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    sources = "\n".join(
        path.read_text()
        for path in (web_servers.SAMPLES.parent / "cyborg").rglob("*.py")
    )
    documented = DOCUMENTED.read_text()
    for rule in rules:
        assert rule["alert"] in documented
        for name in METRIC.findall(rule["expr"]):
            plain = re.sub(r"_(count|bucket|sum)$", "", name)
            assert f'"{plain}"' in sources, name
            assert plain in documented, name
    assert len(rules) >= 10
    yaml.safe_load((web_servers.SAMPLES / "prometheus/scrape.yml").read_text())


def test_every_metric_is_documented() -> None:
    documented = DOCUMENTED.read_text()
    defined = re.compile(r'"(cyborg_[a-z_]+)",$', re.MULTILINE)
    for path in (web_servers.SAMPLES.parent / "cyborg").rglob("*.py"):
        for name in defined.findall(path.read_text()):
            assert f"``{name}" in documented, name

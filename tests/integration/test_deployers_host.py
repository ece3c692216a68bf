# SPDX-License-Identifier: Apache-2.0
"""Deployers' check 12: an agent without rights, as Debian runs it.

Neither root, sudo, a privileged helper nor lspci: it finds the cards in
sysfs, reports them, and says what it cannot do.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import children
from tests.integration import deployed
from tests.integration import deployment
from tests.integration import logs
from tests.integration import resources
from tests.sysfs import SysfsTree

NOBODY = 65534
T4, QAT = "0000:af:00.0", "0000:3d:00.0"
CONFIGURATION = f"""
[agent]
sysfs_root = {{folder}}/sys
enabled_drivers = nvidia_gpu_driver, intel_qat_driver
virtual_functions = {QAT}=16
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that nobody may enter, which below pytest's own is not so."""
    made = Path(tempfile.mkdtemp(prefix="cyborg-host-"))
    yield made
    shutil.rmtree(made)


def _without_rights(program: str, folder: Path) -> list[str]:
    """The program as nobody, where we are root, and without a PATH."""
    setpriv = shutil.which("setpriv")
    assert setpriv
    words = []
    if os.geteuid() == 0:
        words = f"--reuid {NOBODY} --regid {NOBODY} --clear-groups".split()
    return [
        *("env", f"PATH={folder}/no-programs", f"HOME={folder}"),
        *(setpriv, *words, "--no-new-privs", program),
    ]


def test_an_agent_without_rights_reports_and_says_what_it_cannot_do(
    deploy: deployment.Deploy, folder: Path
) -> None:
    cyborg = deploy()
    tree = SysfsTree(folder / "sys")
    tree.add_nvidia_t4(T4)
    tree.add_intel_c62x(QAT)
    text = cyborg.configuration.read_text()
    text = text.replace(
        "[agent]\nenabled_drivers = fake_driver\n", "[agent]\n"
    )
    text = text.replace("\n[agent]\n", CONFIGURATION.format(folder=folder))
    conf = folder / "cyborg.conf"
    conf.write_text(text.replace(str(cyborg.folder), str(folder)))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)

    cyborg.launch("conductor")
    cyborg.launch("api")
    agent = children.Child(
        [
            *_without_rights(deployment.program("cyborg-agent"), folder),
            "--config-file",
            str(conf),
        ],
        cyborg.folder / "agent.log",
    )
    cyborg.processes["agent"] = agent
    resources.wait_until(
        lambda: (
            not agent.running or f"{cyborg.host}_{T4}" in cyborg.providers()
        ),
        deployed.READY_SECONDS,
        "the cards are in Placement",
    )
    assert agent.running, agent.tail()
    status = Path(f"/proc/{agent.pid}/status").read_text()
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert not re.search(r"^Uid:\s+0\s", status, re.MULTILINE)
    assert set(cyborg.providers()) == {
        f"{cyborg.host}_{address}" for address in (T4, QAT)
    }
    assert agent.stop() == 0
    said = agent.output.read_text()
    (line,) = (
        line
        for line in said.splitlines()
        if " WARNING " in line and QAT in line and "helper" in line
    )
    assert "helper_command" in line
    assert logs.tracebacks(said) == []

# SPDX-License-Identifier: Apache-2.0
"""The section that deployers write for the privileged helper is read."""

from __future__ import annotations

from pathlib import Path

from cyborg import privsep
from cyborg import service


def test_the_helper_is_the_one_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "cyborg.conf"
    path.write_text(
        "[cyborg_sys_admin]\nhelper_command = sudo privsep-helper\n"
    )
    conf = service.configure(["--config-file", str(path)], "cyborg-agent")
    privsep.prepare(conf)
    section = privsep.agent_privileged.conf
    assert section.helper_command == "sudo privsep-helper"

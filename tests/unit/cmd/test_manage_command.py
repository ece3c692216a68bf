# SPDX-License-Identifier: Apache-2.0
"""`cyborg-manage hardware` on a fake host, as an operator runs it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sysfs import SysfsTree

Run = Callable[..., "subprocess.CompletedProcess[str]"]

OPTIONS = """
[DEFAULT]
host = compute-1
transport_url = rabbit://nobody@192.0.2.1:5672/
[database]
connection = mysql+pymysql://nobody@192.0.2.1/cyborg
[agent]
sysfs_root = {root}
enabled_drivers = nvidia_gpu_driver, intel_qat_driver
[gpu_devices]
enabled_vgpu_types = nvidia-222
[vgpu_nvidia-222]
device_addresses = 0000:af:00.0
[pci]
passthrough_whitelist = {whitelist}
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> SysfsTree:
    made = SysfsTree(tmp_path_factory.mktemp("host") / "sys")
    made.add_nvidia_t4("0000:af:00.0")
    made.add_nvidia_a100("0000:41:00.0", vfs=16)
    made.add_intel_c62x("0000:3d:00.0", vfs=16)
    made.add_unknown("0000:02:00.0")
    return made


@pytest.fixture(scope="module")
def run(tree: SysfsTree) -> Run:
    def command(
        *arguments: str, whitelist: str = '{"vendor_id": "10de"}'
    ) -> subprocess.CompletedProcess[str]:
        file = tree.root.parent / "cyborg.conf"
        file.write_text(OPTIONS.format(root=tree.root, whitelist=whitelist))
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "cyborg.cmd.manage"]
            + ["--config-file", str(file), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )

    return command


@pytest.fixture(scope="module")
def shown(run: Run) -> dict[str, Any]:
    """What is told with the drivers of the configuration."""
    result = run("hardware", "--format", "json")
    assert result.returncode == 0, result.stderr
    return told(result)


def told(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def at(found: dict[str, Any], address: str) -> dict[str, Any]:
    """The function at an address."""
    (function,) = [
        one for one in found["functions"] if one["address"] == address
    ]
    return dict(function)


def test_json_holds_each_function_with_what_it_is_offered_as(run: Run) -> None:
    result = run("hardware", "--format", "json")
    assert result.returncode == 0, result.stderr
    found = told(result)
    assert found["host"] == "compute-1"
    assert found["drivers"] == {
        "nvidia_gpu_driver": "",
        "intel_qat_driver": "",
    }
    card = at(found, "0000:af:00.0")
    assert (card["vendor"], card["device"]) == ("10de", "1eb8")
    assert (card["class_code"], card["driver"]) == ("030200", "nvidia")
    (claim,) = card["claims"]
    assert claim["driver"] == "nvidia_gpu_driver"
    (offer,) = claim["offers"]
    assert offer["resource_class"] == "VGPU"
    assert offer["handles"] == {"MDEV": 16}
    assert "CUSTOM_NVIDIA_1EB8_T4_1B" in offer["traits"]
    assert offer["fault"] == ""


def test_json_says_why_a_card_is_not_offered(shown: dict[str, Any]) -> None:
    card = at(shown, "0000:41:00.0")
    assert len(card["virtual_functions"]) == 16
    (offer,) = card["claims"][0]["offers"]
    assert offer["fault"] == "16 virtual functions of it are active"


def test_a_virtual_function_shows_what_is_offered_of_it_alone(
    shown: dict[str, Any],
) -> None:
    function = at(shown, "0000:3d:01.0")
    assert function["physical_function"] == "0000:3d:00.0"
    (offer,) = function["claims"][0]["offers"]
    assert offer["handles"] == {"PCI": 1}
    assert offer["deployable"] == "compute-1_0000:3d:01.0"
    (card,) = at(shown, "0000:3d:00.0")["claims"]
    assert (card["driver"], card["offers"]) == ("intel_qat_driver", [])


def test_the_table_is_for_people(run: Run) -> None:
    result = run("hardware")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["ADDRESS", "IDS", "CLASS"]
    (row,) = [line for line in lines if line.startswith("0000:af:00.0")]
    assert row.split()[1:4] == ["10de:1eb8", "030200", "nvidia"]
    assert "nvidia_gpu_driver" in row
    assert "    VGPU: 16 MDEV of compute-1_0000:af:00.0" in lines
    assert "      NOT OFFERED: 16 virtual functions of it are active" in lines
    (unclaimed,) = [line for line in lines if line.startswith("0000:02:00.0")]
    assert unclaimed.split()[7] == "-"
    assert "nvidia_gpu_driver: well" in lines
    assert "pcieport" not in result.stdout


def test_drivers_can_be_named_and_their_clash_is_shown(run: Run) -> None:
    result = run(
        "hardware",
        "--format=json",
        "--driver=pci_driver",
        "--driver=nvidia_gpu_driver",
    )
    found = told(result)
    assert list(found["drivers"]) == ["nvidia_gpu_driver", "pci_driver"]
    (claim,) = at(found, "0000:af:00.0")["claims"]
    assert claim["driver"] == "pci_driver"
    assert claim["also"] == ["nvidia_gpu_driver"]
    assert (
        "pci_driver,(nvidia_gpu_driver)"
        in run(
            "hardware", "--driver=pci_driver", "--driver=nvidia_gpu_driver"
        ).stdout
    )


def test_a_driver_that_fails_is_told_and_the_others_are_shown(
    run: Run,
) -> None:
    result = run("hardware", "--all-drivers", whitelist="nonsense")
    assert result.returncode == 1
    assert "pci_driver: FAULT: [pci] passthrough_whitelist" in result.stdout
    assert "    VGPU: 16 MDEV of compute-1_0000:af:00.0" in result.stdout
    assert "compute-1_FakeDevice" in result.stdout
    assert "Traceback" not in result.stderr


def test_an_unknown_driver_is_told(run: Run) -> None:
    result = run("hardware", "--driver", "nvdia_gpu_driver")
    assert result.returncode == 1
    assert "no installed package has a driver called" in result.stdout


def test_a_host_that_cannot_be_read_is_told(run: Run, tree: SysfsTree) -> None:
    bus, away = tree.root / "bus", tree.root / "away"
    bus.rename(away)
    try:
        table, plain = run("hardware"), run("hardware", "--format", "json")
    finally:
        away.rename(bus)
    assert (table.returncode, plain.returncode) == (1, 1)
    assert "cannot be read" in table.stdout
    assert told(plain)["functions"] == []


def test_nothing_on_the_host_is_changed(run: Run, tree: SysfsTree) -> None:
    def state() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in sorted(tree.root.rglob("*"))
            if path.is_file() and not path.is_symlink()
        }

    before = state()
    run("hardware", "--all-drivers")
    assert state() == before


@pytest.mark.parametrize("arguments", [(), ("hardwear",), ("hardware", "x")])
def test_a_wrong_command_line_is_explained(
    run: Run, arguments: tuple[str, ...]
) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "usage: cyborg-manage" in result.stderr


def test_a_mistake_in_the_configuration_is_one_line(
    run: Run, tmp_path: Path
) -> None:
    result = run("--config-file", str(tmp_path / "missing"), "hardware")
    assert result.returncode == 1
    assert result.stderr.startswith("cyborg-manage: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("reader", "code", "message"),
    [
        ("| true", 0, ""),
        ("> /dev/full", 1, "cyborg-manage: the output cannot be written"),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(
    run: Run, tree: SysfsTree, reader: str, code: int, message: str
) -> None:
    run("hardware")  # writes the file
    file = tree.root.parent / "cyborg.conf"
    command = shlex.join(
        [sys.executable, "-W", "ignore", "-m", "cyborg.cmd.manage"]
        + ["--config-file", str(file), "hardware", "--driver", "pci_driver"]
    )
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} {reader}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert "Traceback" not in result.stderr
    assert message in result.stderr
    assert result.returncode == code

# SPDX-License-Identifier: Apache-2.0
"""The fake driver: the contract's one device, and a simulated fleet."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cyborg import exception
from cyborg import inventory
from cyborg.drivers.base import DriverError
from cyborg.drivers.base import OptionError
from cyborg.drivers.fake import FakeDriver
from tests.driver_host import driver_host

CONTROLPATH = (
    '{"bus": "0c", "device": "00", "domain": "0000", "function": "0"}'
)


def _driver(
    path: Path, options: Mapping[str, object] | None = None
) -> FakeDriver:
    return FakeDriver(driver_host(path, {"fake": options or {}}))


def _with_inventory(path: Path, text: str) -> FakeDriver:
    file = path / "inventory.yaml"
    file.write_text(text)
    return _driver(path, {"inventory_file": str(file)})


def _one(path: Path, text: str) -> inventory.Device:
    (device,) = _with_inventory(path, text).discover()
    return device


def _image(path: Path) -> Path:
    image = path / "image"
    image.write_bytes(b"bits")
    return image


def _program(
    driver: FakeDriver, path: Path, name: str = "compute-1_FakeDevice"
) -> None:
    driver.program(name, CONTROLPATH, _image(path), {}, 30)


# The contract's device


def test_the_one_device_is_the_contracts_to_the_letter(
    tmp_path: Path,
) -> None:
    (device,) = _driver(tmp_path).discover()

    (deployable,) = device.deployables
    assert device.controlpath == CONTROLPATH
    assert device.type == "FPGA"
    assert device.vendor == "0xABCD"
    assert device.model == "miss model info"
    assert device.driver == "fake_driver"
    assert device.std_board_info == (
        '{"device_id": "0xabcd", "class": "Fake class"}'
    )
    assert device.vendor_board_info == "fake_vendor_info"
    assert device.fault == ""
    assert deployable.name == "compute-1_FakeDevice"
    assert deployable.driver_name == "fake"
    assert deployable.num_accelerators == 16
    assert deployable.attributes == (
        ("traits1", "CUSTOM_FAKE_DEVICE"),
        ("rc", "FPGA"),
    )
    assert [h.attach_info for h in deployable.attach_handles] == [
        f'{{"bus": "0c", "device": "{n // 8}", "domain": "0000",'
        f' "function": "{n % 8}"}}'
        for n in range(1, 17)
    ]
    assert {h.attach_type for h in deployable.attach_handles} == {
        inventory.AttachType.TEST_PCI
    }


def test_the_name_of_a_host_is_made_harmless_in_the_devices(
    tmp_path: Path,
) -> None:
    host = driver_host(tmp_path, name="compute-1.example.org/x y")

    (device,) = FakeDriver(host).discover()

    assert device.deployables[0].name == (
        "compute-1_example_org_x_y_FakeDevice"
    )


def test_two_discoveries_give_the_same(tmp_path: Path) -> None:
    driver = _driver(tmp_path, {"devices": 3})

    assert driver.discover() == driver.discover()


# A fleet


def test_many_devices_share_no_path_name_or_handle(tmp_path: Path) -> None:
    devices = list(
        _driver(
            tmp_path, {"devices": 600, "accelerators_per_device": 9}
        ).discover()
    )

    assert devices[0].controlpath == CONTROLPATH
    assert devices[0].deployables[0].name == "compute-1_FakeDevice"
    assert devices[1].deployables[0].name == (
        "compute-1_FakeDevice_fa00_01_00_0"
    )
    deployables = [device.deployables[0] for device in devices]
    handles = [
        handle.attach_info
        for deployable in deployables
        for handle in deployable.attach_handles
    ]
    assert len({device.controlpath for device in devices}) == 600
    assert len({deployable.name for deployable in deployables}) == 600
    assert len(set(handles)) == len(handles) == 600 * 9
    assert {d.num_accelerators for d in deployables} == {9}


@pytest.mark.parametrize("accelerators", [1, 255, 256, 2047])
def test_a_device_may_have_many_accelerators(
    tmp_path: Path, accelerators: int
) -> None:
    (device,) = _driver(
        tmp_path, {"accelerators_per_device": accelerators}
    ).discover()

    handles = device.deployables[0].attach_handles
    assert len(set(handles)) == accelerators
    last = json.loads(handles[-1].attach_info)
    assert int(last["device"], 16) * 8 + int(last["function"]) == accelerators


def test_a_fleet_of_none_is_empty(tmp_path: Path) -> None:
    assert list(_driver(tmp_path, {"devices": 0}).discover()) == []


@pytest.mark.parametrize("accelerators", [0, 2048])
def test_a_number_of_accelerators_that_cannot_be_names_its_option(
    tmp_path: Path, accelerators: int
) -> None:
    with pytest.raises(OptionError, match="accelerators_per_device"):
        _driver(tmp_path, {"accelerators_per_device": accelerators})


# The inventory file


def test_an_inventory_entry_says_all_about_its_device(tmp_path: Path) -> None:
    device = _one(
        tmp_path,
        """
        - address: 0000:5e:00.0
          type: GPU
          vendor: 0x10de
          model: Tesla T4
          resource_class: PGPU
          traits: [CUSTOM_GPU_NVIDIA, HW_GPU_API_VULKAN, fast one]
          accelerators: 1
          attach_type: PCI
          numa_node: 1
          health: fans stand still
          programmable: false
        """,
    )

    (deployable,) = device.deployables
    assert json.loads(device.controlpath)["bus"] == "5e"
    assert device.type == "GPU"
    assert device.vendor == "0x10de"
    assert device.model == "Tesla T4"
    assert device.fault == "fans stand still"
    assert deployable.name == "compute-1_FakeDevice_0000_5e_00_0"
    assert deployable.attributes == (
        ("traits1", "CUSTOM_GPU_NVIDIA"),
        ("traits2", "HW_GPU_API_VULKAN"),
        ("traits3", "CUSTOM_FAST_ONE"),
        ("rc", "PGPU"),
        ("numa_node", "1"),
    )
    assert deployable.attach_handles == (
        inventory.AttachHandle(inventory.AttachType.PCI, device.controlpath),
    )


def test_an_entry_of_an_address_alone_is_the_contracts_device(
    tmp_path: Path,
) -> None:
    device = _one(tmp_path, "- address: 0000:0c:00.0\n  health:\n")

    (contract,) = _driver(tmp_path).discover()
    assert device == contract


@pytest.mark.parametrize("address", ["0000:12:00.0", '"0000:12:00.0"'])
def test_an_address_that_yaml_takes_for_a_number_is_an_address(
    tmp_path: Path, address: str
) -> None:
    device = _one(tmp_path, f"- address: {address}")

    assert json.loads(device.controlpath)["bus"] == "12"


@pytest.mark.parametrize("health", ["ok", "OK", "true", '"ok"', "", "~"])
def test_a_device_is_well_in_many_words(tmp_path: Path, health: str) -> None:
    device = _one(tmp_path, f"- address: 0000:12:00.0\n  health: {health}\n")

    assert device.fault == ""


def test_the_resource_class_follows_from_the_type(tmp_path: Path) -> None:
    text = "\n".join(
        f"- {{address: '0000:{number:02x}:00.0', type: {kind}}}"
        for number, kind in enumerate(inventory.DeviceType)
    )

    classes = {
        str(device.type): inventory.resource_class(
            device.deployables[0].attributes
        )
        for device in _with_inventory(tmp_path, text).discover()
    }

    assert classes == {
        "GPU": "PGPU",
        "FPGA": "FPGA",
        "AICHIP": "CUSTOM_NPU",
        "QAT": "CUSTOM_QAT",
        "NIC": "CUSTOM_NIC",
        "SSD": "CUSTOM_SSD",
        "MDEV": "VGPU",
        "PCI": "CUSTOM_PCI",
        "NVME": "CUSTOM_NVME",
    }


def test_handles_of_pci_are_places_that_nova_can_parse(
    tmp_path: Path,
) -> None:
    device = _one(
        tmp_path,
        "- {address: '0000:5e:00.0', attach_type: PCI, accelerators: 9}",
    )

    handles = [
        json.loads(handle.attach_info)
        for handle in device.deployables[0].attach_handles
    ]
    assert [f"{h['device']}.{h['function']}" for h in handles] == [
        *(f"00.{number}" for number in range(1, 8)),
        "01.0",
        "01.1",
    ]


def test_handles_of_mediated_devices_say_type_and_mark(
    tmp_path: Path,
) -> None:
    device = _one(
        tmp_path,
        "- {address: '0000:5e:00.0', attach_type: MDEV, accelerators: 2}",
    )

    handles = device.deployables[0].attach_handles
    assert [json.loads(handle.attach_info) for handle in handles] == [
        {
            "asked_type": "fake-1",
            "bus": "5e",
            "device": "00",
            "domain": "0000",
            "function": "0",
            "vgpu_mark": f"fake-1_{number}",
        }
        for number in (1, 2)
    ]


def test_the_file_is_read_again_at_each_discovery(tmp_path: Path) -> None:
    driver = _with_inventory(tmp_path, "- address: 0000:12:00.0\n")
    file = tmp_path / "inventory.yaml"
    assert len(list(driver.discover())) == 1

    file.write_text("- address: 0000:12:00.0\n- address: 0000:13:00.0\n")
    assert len(list(driver.discover())) == 2

    file.write_text("- address: 0000:12:00.0\n  health: too hot\n")
    (device,) = driver.discover()
    assert device.fault == "too hot"
    assert driver.health(device.controlpath) == "too hot"

    file.write_text("[]\n")
    assert list(driver.discover()) == []
    assert driver.health(device.controlpath) == "the device is gone"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must hold a list"),
        ("{}", "must hold a list"),
        ("- [", "is not YAML"),
        ("- a: !!python/object:os.system {}", "is not YAML"),
        ("- address", "entry 1: must be a mapping"),
        ("- {type: GPU}", "entry 1: address is missing"),
        ("- {address: 0c:00.0}", "entry 1: address: not a PCI address"),
        ("- {address: [1]}", "entry 1: address"),
        ("- {place: '0000:0c:00.0'}", "entry 1: unknown place"),
        ("- address: 0000:0c:00.0\n- 3", "entry 2"),
        (
            "- address: 0000:0c:00.0\n- address: 0000:0C:00.0",
            "entry 2: address 0000:0c:00.0 comes twice",
        ),
    ],
)
def test_a_file_that_is_wrong_is_an_error_that_names_file_and_entry(
    tmp_path: Path, text: str, reason: str
) -> None:
    driver = _with_inventory(tmp_path, text)

    with pytest.raises(DriverError) as caught:
        driver.discover()
    message = str(caught.value)
    assert message.startswith("[fake] inventory_file")
    assert "inventory.yaml" in message
    assert reason in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "TPU"),
        ("type", "[GPU]"),
        ("vendor", "[1]"),
        ("model", "a" * 256),
        ("resource_class", "CUSTOM_"),
        ("traits", "CUSTOM_A"),
        ("traits", "[{a: b}]"),
        ("traits", "['']"),
        ("accelerators", "0"),
        ("accelerators", "-1"),
        ("accelerators", "1.5"),
        ("accelerators", "many"),
        ("accelerators", "2048"),
        ("attach_type", "USB"),
        ("numa_node", "-1"),
        ("numa_node", "east"),
        ("health", "[bad]"),
        ("programmable", "perhaps"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    tmp_path: Path, field: str, value: str
) -> None:
    driver = _with_inventory(
        tmp_path, f"- address: 0000:0c:00.0\n  {field}: {value}\n"
    )

    with pytest.raises(DriverError, match=f"entry 1: {field}: "):
        driver.discover()


def test_more_handles_than_places_after_the_address_are_refused(
    tmp_path: Path,
) -> None:
    driver = _with_inventory(
        tmp_path,
        "- {address: '0000:0c:1f.0', attach_type: PCI, accelerators: 8}",
    )

    with pytest.raises(DriverError, match="entry 1: accelerators: 8 do not"):
        driver.discover()


def test_a_file_that_is_missing_is_an_error_and_not_all_gone(
    tmp_path: Path,
) -> None:
    driver = _driver(tmp_path, {"inventory_file": str(tmp_path / "none")})

    with pytest.raises(DriverError, match="cannot be read"):
        driver.discover()


# Programming


def test_programming_succeeds_at_once_by_default(tmp_path: Path) -> None:
    started = time.monotonic()

    _program(_driver(tmp_path), tmp_path)

    assert time.monotonic() - started < 5


def test_programming_fails_where_it_is_told_to(tmp_path: Path) -> None:
    driver = _driver(tmp_path, {"program_failure": True})

    with pytest.raises(exception.DeviceFailed, match="simulated failure"):
        _program(driver, tmp_path)


def test_programming_takes_the_time_it_is_told_to(tmp_path: Path) -> None:
    started = time.monotonic()

    _program(_driver(tmp_path, {"program_seconds": 0.2}), tmp_path)

    assert 0.2 <= time.monotonic() - started < 5


def test_programming_ends_at_its_time_limit(tmp_path: Path) -> None:
    driver = _driver(tmp_path, {"program_seconds": 600})
    started = time.monotonic()

    with pytest.raises(exception.DeviceFailed, match=r"within 0\.1 s"):
        driver.program(
            "compute-1_FakeDevice", CONTROLPATH, _image(tmp_path), {}, 0.1
        )

    assert time.monotonic() - started < 5


def test_programming_that_runs_can_be_cancelled(tmp_path: Path) -> None:
    driver = _driver(tmp_path, {"program_seconds": 600})
    failures: list[exception.CyborgError] = []

    def program() -> None:
        try:
            driver.program("compute-1_FakeDevice", CONTROLPATH, image, {}, 600)
        except exception.DeviceFailed as error:
            failures.append(error)

    image = _image(tmp_path)
    thread = threading.Thread(target=program)
    thread.start()
    driver.cancel()
    thread.join(5)

    assert not thread.is_alive()
    assert "cancelled" in failures[0].message


def test_an_entry_that_is_not_programmable_is_a_conflict(
    tmp_path: Path,
) -> None:
    driver = _with_inventory(
        tmp_path, "- {address: '0000:0c:00.0', programmable: false}"
    )

    with pytest.raises(exception.Conflict, match="cannot be programmed"):
        _program(driver, tmp_path)


def test_a_broken_device_refuses_to_be_programmed(tmp_path: Path) -> None:
    driver = _with_inventory(
        tmp_path, "- {address: '0000:0c:00.0', health: burnt}"
    )

    with pytest.raises(exception.DeviceFailed, match="burnt"):
        _program(driver, tmp_path)


@pytest.mark.parametrize(
    ("name", "bus"),
    [("compute-1_FakeDevice", "0d"), ("compute-2_FakeDevice", "0c")],
)
def test_a_device_that_is_not_there_cannot_be_programmed(
    tmp_path: Path, name: str, bus: str
) -> None:
    with pytest.raises(exception.NotFound, match=name):
        _driver(tmp_path).program(
            name,
            CONTROLPATH.replace("0c", bus),
            _image(tmp_path),
            {},
            30,
        )


def test_an_image_that_is_not_there_fails_without_its_path(
    tmp_path: Path,
) -> None:
    with pytest.raises(exception.DeviceFailed) as caught:
        _driver(tmp_path).program(
            "compute-1_FakeDevice", CONTROLPATH, tmp_path / "none", {}, 30
        )
    assert str(tmp_path) not in caught.value.message

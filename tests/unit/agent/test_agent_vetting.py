# SPDX-License-Identifier: Apache-2.0
"""Which of a driver's devices may leave the agent."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import inventory
from cyborg.agent import vetting

HANDLE = inventory.AttachHandle(
    inventory.AttachType.PCI, inventory.pci_json("0000:5e:00.1")
)
DEPLOYABLE = inventory.Deployable(
    name="host_0000:5e:00.0",
    num_accelerators=1,
    driver_name="card",
    attributes=(("trait0", "CUSTOM_CARD"), ("rc", "FPGA"), ("numa", "0")),
    attach_handles=(HANDLE,),
)
DEVICE = inventory.Device(
    controlpath=inventory.pci_json("0000:5e:00.0"),
    type=inventory.DeviceType.FPGA,
    vendor="abcd",
    model="card",
    driver="card_driver",
    std_board_info="{}",
    deployables=(DEPLOYABLE,),
)


def with_deployable(**changes: object) -> inventory.Device:
    changed = dataclasses.replace(DEPLOYABLE, **changes)
    return dataclasses.replace(DEVICE, deployables=(changed,))


def test_a_good_device_passes_unchanged():
    assert vetting.vetted("card_driver", DEVICE) == DEVICE


def test_the_driver_is_named_by_the_agent_not_by_itself():
    lying = dataclasses.replace(DEVICE, driver="somebody_else")
    assert vetting.vetted("card_driver", lying) == DEVICE


def test_the_order_in_which_a_driver_lists_things_does_not_count():
    other = dataclasses.replace(DEPLOYABLE, name="another", attach_handles=())
    handle = dataclasses.replace(
        HANDLE, attach_info=inventory.pci_json("0000:5e:00.2")
    )
    several = dataclasses.replace(DEPLOYABLE, attach_handles=(HANDLE, handle))
    turned = dataclasses.replace(DEPLOYABLE, attach_handles=[handle, HANDLE])
    one = dataclasses.replace(DEVICE, deployables=(several, other))
    two = dataclasses.replace(DEVICE, deployables=[other, turned])
    assert vetting.vetted("d", one) == vetting.vetted("d", two)


def test_names_of_kinds_given_as_plain_strings_become_kinds():
    plain = dataclasses.replace(DEVICE, type="FPGA")
    assert vetting.vetted("card_driver", plain).type is DEVICE.type


def test_a_device_without_a_resource_class_may_be_listed():
    stub = with_deployable(attributes=())
    assert vetting.vetted("card_driver", stub).deployables[0].attributes == ()


@pytest.mark.parametrize("seconds", [None, 1, 900, 86_400])
def test_how_long_cleaning_takes_and_what_is_wrong_in_part_are_kept(seconds):
    device = dataclasses.replace(
        with_deployable(fault="in use by the host"), clean_seconds=seconds
    )
    assert vetting.vetted("card_driver", device) == device


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "a string",
        {"controlpath": "{}"},
        dataclasses.replace(DEVICE, controlpath=None),
        dataclasses.replace(DEVICE, controlpath=""),
        dataclasses.replace(DEVICE, controlpath="0000:5e:00.0"),
        dataclasses.replace(DEVICE, controlpath="[]"),
        dataclasses.replace(DEVICE, controlpath="{}"),
        dataclasses.replace(DEVICE, controlpath='{"a": "%s"}' % ("x" * 255)),
        dataclasses.replace(DEVICE, type="TOASTER"),
        dataclasses.replace(DEVICE, type=["FPGA"]),
        dataclasses.replace(DEVICE, vendor=None),
        dataclasses.replace(DEVICE, vendor="v" * 256),
        dataclasses.replace(DEVICE, model="m\x00"),
        dataclasses.replace(DEVICE, model="\udce9"),
        dataclasses.replace(DEVICE, std_board_info="not json"),
        dataclasses.replace(DEVICE, std_board_info={}),
        dataclasses.replace(DEVICE, vendor_board_info=b"bytes"),
        dataclasses.replace(DEVICE, fault=None),
        dataclasses.replace(DEVICE, fault="é" * 33_000),
        dataclasses.replace(DEVICE, clean_seconds=0),
        dataclasses.replace(DEVICE, clean_seconds=-1),
        dataclasses.replace(DEVICE, clean_seconds=True),
        dataclasses.replace(DEVICE, clean_seconds=1.5),
        dataclasses.replace(DEVICE, clean_seconds="60"),
        dataclasses.replace(DEVICE, clean_seconds=2**31),
        dataclasses.replace(DEVICE, deployables=None),
        dataclasses.replace(DEVICE, deployables=("x",)),
        dataclasses.replace(DEVICE, deployables=(DEPLOYABLE, DEPLOYABLE)),
        with_deployable(name=""),
        with_deployable(name="n" * 201),
        with_deployable(num_accelerators=-1),
        with_deployable(num_accelerators=True),
        with_deployable(num_accelerators="16"),
        with_deployable(num_accelerators=2**31),
        with_deployable(driver_name="d" * 101),
        with_deployable(fault=None),
        with_deployable(fault="\x00"),
        with_deployable(fault="é" * 33_000),
        with_deployable(attributes="rc"),
        with_deployable(attributes=(("rc",),)),
        with_deployable(attributes=(("rc", 1),)),
        with_deployable(attributes=(("", "x"),)),
        with_deployable(attributes=(("rc", "GPGPU"),)),
        with_deployable(attributes=(("rc", "CUSTOM_foo bar"),)),
        with_deployable(attributes=(("rc", "FPGA"), ("rc", "PGPU"))),
        with_deployable(attributes=(("trait0", "CUSTOM_a b!"),)),
        with_deployable(attributes=(("trait0", "CUSTOM_A\n"),)),
        with_deployable(attributes=(("trait0", "MADE_UP"),)),
        with_deployable(attributes=(("trait0", "CUSTOM_" + "X" * 255),)),
        with_deployable(attributes=(("k" * 256, "x"),)),
        with_deployable(attach_handles=(None,)),
        with_deployable(attach_handles=(HANDLE, HANDLE)),
        with_deployable(attach_handles=(inventory.AttachHandle("USB", "{}"),)),
        with_deployable(
            attach_handles=(
                inventory.AttachHandle(
                    inventory.AttachType.PCI, '{"bus": "5e"}'
                ),
            )
        ),
    ],
)
def test_a_bad_device_is_refused_with_words(bad):
    with pytest.raises(vetting.UnfitError, match=r"\w"):
        vetting.vetted("card_driver", bad)


def test_one_address_has_one_spelling():
    padded = inventory.pci_json("0000:0c:01.0")
    bare = '{"domain": "0", "bus": "C", "device": "1", "function": "0"}'
    assert vetting.address(padded) == vetting.address(bare) == "0000:0c:01.0"


def test_a_device_lays_claim_to_its_functions_but_not_to_simulated_ones():
    assert vetting.addresses(DEVICE) == {"0000:5e:00.0", "0000:5e:00.1"}
    simulated = dataclasses.replace(
        HANDLE, attach_type=inventory.AttachType.TEST_PCI
    )
    device = with_deployable(attach_handles=(simulated,))
    assert vetting.addresses(device) == {"0000:5e:00.0"}


@given(st.text(max_size=40))
def test_no_text_of_a_card_makes_the_check_itself_fail(text):
    device = dataclasses.replace(
        DEVICE,
        model=text,
        controlpath=json.dumps({"name": text}),
        deployables=(
            dataclasses.replace(
                DEPLOYABLE, attributes=(("trait0", text), (text, text))
            ),
        ),
    )
    try:
        fit = vetting.vetted("card_driver", device)
    except vetting.UnfitError:
        return
    assert fit.model == text

# SPDX-License-Identifier: Apache-2.0
"""The language of `[pci] passthrough_whitelist`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies

from cyborg.drivers import whitelist
from cyborg.drivers.base import DriverError
from cyborg.drivers.base import OptionError
from cyborg.hardware.pci import Address
from cyborg.hardware.pci import PciFunction

OPTION = "[pci] passthrough_whitelist"

ADDRESSES = strategies.builds(
    Address,
    strategies.integers(0, 0x1FFFF),
    strategies.integers(0, 0xFF),
    strategies.integers(0, 0x1F),
    strategies.integers(0, 7),
)

JSON = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.text(max_size=8),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(
            strategies.sampled_from(
                [
                    "vendor_id",
                    "product_id",
                    "address",
                    "devname",
                    "resource_class",
                    "traits",
                    "physical_network",
                    "bus",
                    "slot",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def _function(address: str = "0000:0a:00.1", **facts: object) -> PciFunction:
    values = {"vendor": "8086", "device": "154c", "class_code": "020000"}
    return PciFunction(address=address, **{**values, **facts})  # type: ignore[arg-type]


def _entry(**item: object) -> whitelist.Entry:
    (entry,) = whitelist.parse(OPTION, [json.dumps(item)])
    return entry


@settings(deadline=None)
@given(ADDRESSES)
def test_an_address_as_text_means_just_itself(address: Address) -> None:
    entry = _entry(address=str(address))
    other = address._replace(bus=address.bus ^ 1)

    assert entry.matches(_function(str(address)))
    assert entry.matches(_function(str(other), physical_function=str(address)))
    assert not entry.matches(_function(str(other)))


@settings(deadline=None)
@given(ADDRESSES, strategies.sets(strategies.integers(0, 3)))
def test_a_star_in_any_part_means_any_and_the_rest_still_counts(
    address: Address, starred: set[int]
) -> None:
    domain, bus, device, function = (
        "*" if index in starred else part
        for index, part in enumerate(str(address).replace(".", ":").split(":"))
    )
    entry = _entry(address=f"{domain}:{bus}:{device}.{function}")

    for index in range(4):
        changed = list(address)
        changed[index] ^= 1
        matched = entry.matches(_function(str(Address(*changed))))
        assert matched == (index in starred)


@settings(deadline=None)
@given(ADDRESSES)
def test_regular_expressions_of_all_parts_mean_just_the_address(
    address: Address,
) -> None:
    domain, bus, rest = str(address).split(":")
    slot, function = rest.split(".")
    entry = _entry(
        address={
            "domain": domain,
            "bus": bus.upper(),
            "slot": slot,
            "function": function,
        }
    )
    other = address._replace(function=address.function ^ 1)

    assert entry.matches(_function(str(address)))
    assert not entry.matches(_function(str(other)))


@settings(deadline=None)
@given(JSON)
def test_any_json_is_entries_or_an_error_that_names_the_option(
    value: object,
) -> None:
    try:
        entries = whitelist.parse(OPTION, [json.dumps(value)])
    except OptionError as error:
        message = str(error)
    else:
        message = f"{OPTION}: value 1"
        for entry in entries:
            assert entry.matches(_function()) in (True, False)
    assert message.startswith(f"{OPTION}: value 1")


@pytest.mark.parametrize(
    ("address", "matches"),
    [
        ("*:0a:00.*", True),
        (":0a:00.", True),
        ("0a:00.1", True),
        ("0a:00", True),
        ("a:0.1", True),
        ("0000:0A:00.1", True),
        ("*", True),
        ("*:*:*.*", True),
        ("*:0?:0[0-3].*", True),
        ("*:0b:00.*", False),
        ("0a:00.2", False),
        ("0001:0a:00.1", False),
        ("10000:0a:00.1", False),
        ({}, True),
        ({"bus": "0a"}, True),
        ({"bus": "0[9-b]", "function": "[0-3]"}, True),
        ({"domain": ".*", "bus": "0A", "slot": "00", "function": "1"}, True),
        ({"bus": "0"}, False),
        ({"function": "[2-7]"}, False),
    ],
)
def test_an_address_is_a_glob_or_regular_expressions(
    address: object, matches: bool
) -> None:
    assert _entry(address=address).matches(_function()) is matches


@pytest.mark.parametrize("vendor", ["8086", "0x8086", "*", " 8086 "])
@pytest.mark.parametrize("product", ["154C", "154c", "0x154c", "*"])
def test_ids_are_hexadecimal_in_any_writing(vendor: str, product: str) -> None:
    entry = _entry(vendor_id=vendor, product_id=product)

    assert entry.matches(_function())
    assert entry.matches(_function(device="1572")) is (product == "*")


def test_all_that_an_entry_says_must_be_so() -> None:
    entry = _entry(vendor_id="8086", product_id="154c", address="0a:00.1")

    assert entry.matches(_function())
    assert not entry.matches(_function(vendor="10de"))
    assert not entry.matches(_function(device="1572"))
    assert not entry.matches(_function("0000:0a:00.2"))


def test_an_interface_stands_for_its_function_and_its_virtual_ones() -> None:
    entry = _entry(devname="eth3")
    parent = _function("0000:05:00.1", interfaces=("eth3", "eth3rep0"))
    child = _function("0000:05:0a.0", physical_function=parent.address)
    other = _function("0000:05:00.0", interfaces=("eth2",))

    assert entry.matches(parent)
    assert entry.matches(child, parent)
    assert not entry.matches(other)
    assert not entry.matches(child, other)
    assert not entry.matches(child)


def test_the_first_entry_that_matches_gives_its_tags() -> None:
    entries = whitelist.parse(
        OPTION,
        [
            '{"vendor_id": "10de"}',
            json.dumps(
                [
                    {"address": "0a:00.1", "physical_network": "physnet1"},
                    {"vendor_id": "8086", "physical_network": "physnet2"},
                ]
            ),
        ],
    )

    found = whitelist.first_match(entries, _function())
    later = whitelist.first_match(entries, _function("0000:0b:00.0"))

    assert len(entries) == 3
    assert found is not None
    assert found.tags == (("physical_network", "physnet1"),)
    assert later is not None
    assert later.tags == (("physical_network", "physnet2"),)
    elsewhere = _function("0000:0b:00.0", vendor="15b3")
    assert whitelist.first_match(entries, elsewhere) is None


def test_tags_are_kept_as_text_and_names_made_legal() -> None:
    entry = _entry(
        vendor_id="8086",
        trusted=True,
        weight=3,
        resource_class="my nic",
        traits="HW_NIC_SRIOV, my trait",
    )

    assert entry.tags == (("trusted", "true"), ("weight", "3"))
    assert entry.resource_class == "CUSTOM_MY_NIC"
    assert entry.traits == ("HW_NIC_SRIOV", "CUSTOM_MY_TRAIT")
    assert _entry(vendor_id="8086", resource_class="pgpu").resource_class == (
        "PGPU"
    )
    assert _entry(vendor_id="8086", traits=["A"]).traits == ("CUSTOM_A",)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
        ("8086:154c", "not JSON"),
        ("null", "must be an object"),
        ('"8086"', "must be an object"),
        ("{}", "names no device"),
        ('{"physical_network": "a"}', "names no device"),
        ('{"address": "*", "devname": "eth0"}', "both address and devname"),
        ('{"vendor_id": 8086}', "vendor_id"),
        ('{"vendor_id": "80867"}', "vendor_id"),
        ('{"vendor_id": "Intel"}', "vendor_id"),
        ('{"product_id": ""}', "product_id"),
        ('{"product_id": null}', "product_id"),
        ('{"address": 5}', "address"),
        ('{"address": ""}', "address"),
        ('{"address": null}', "address"),
        ('{"address": "0000:00:0a:00.1"}', "more than domain"),
        ('{"address": "0000:xx:00.1"}', "bus 'xx'"),
        ('{"address": "0000:100:00.1"}', "bus '100' is above ff"),
        ('{"address": "0000:0a:20.1"}', "slot '20' is above 1f"),
        ('{"address": "0000:0a:00.8"}', "function '8' is above 7"),
        ('{"address": "0a:-1.0"}', "slot '-1'"),
        ('{"address": {"bus": "("}}', "not a regular expression"),
        ('{"address": {"bus": 5}}', "bus must be a text"),
        ('{"address": {"device": "00"}}', "'device' is none of"),
        ('{"devname": ""}', "devname"),
        ('{"devname": 3}', "devname"),
        ('{"vendor_id": "8086", "traits": "A,,B"}', "traits: an empty name"),
        ('{"vendor_id": "8086", "traits": {"A": 1}}', "traits must be"),
        ('{"vendor_id": "8086", "traits": [1]}', "traits must be"),
        ('{"vendor_id": "8086", "resource_class": ""}', "resource_class"),
        ('{"vendor_id": "8086", "resource_class": []}', "resource_class"),
        ('{"vendor_id": "8086", "rc": "PGPU"}', "must not be called 'rc'"),
        ('{"vendor_id": "8086", "trait7": "A"}', "must not be called"),
        ('{"vendor_id": "8086", "numa_node": "0"}', "must not be called"),
        ('{"vendor_id": "8086", "tag": [1]}', "tag 'tag' must be a text"),
        (
            json.dumps({"vendor_id": "8086", "physical_network": "a" * 129}),
            "longer than 128",
        ),
        (
            json.dumps({"vendor_id": "8086", "physical_network": "ñ" * 22}),
            "longer than 128",
        ),
    ],
)
def test_a_mistake_names_the_option_the_entry_and_the_reason(
    value: str, reason: str
) -> None:
    good = '{"vendor_id": "8086"}'

    with pytest.raises(OptionError) as caught:
        whitelist.parse(OPTION, [good, value])
    assert str(caught.value).startswith(f"{OPTION}: value 2")
    assert reason in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DriverError)


def test_a_mistake_in_a_list_names_its_place_in_it() -> None:
    with pytest.raises(OptionError, match="value 1, entry 2: names no"):
        whitelist.parse(OPTION, ['[{"vendor_id": "8086"}, {}]'])


@pytest.mark.parametrize(
    "item",
    [
        {"address": {"bus": "a{99999999999999999999}"}},
        {"address": {"bus": "(" * 9_000}},
        {"vendor_id": "10de", "physical_network": "\0"},
        {"vendor_id": "10de", "physical_network": "\ud800"},
        {"vendor_id": "10de", "\0": "x"},
        {"vendor_id": "10de", "k" * 256: "x"},
        {"vendor_id": "10de", "also_claimed_by": "x"},
    ],
)
def test_what_cannot_be_stored_or_compiled_is_an_error_of_the_option(
    item: dict[str, object],
) -> None:
    with pytest.raises(OptionError, match="value 1"):
        whitelist.parse(OPTION, [json.dumps(item)])

# SPDX-License-Identifier: Apache-2.0
"""Whose is what in a report: cards of a tree, their functions and units."""

from __future__ import annotations

import json
from collections.abc import Collection
from collections.abc import Iterable

from cyborg import inventory
from cyborg.drivers.testing.tree import SysfsTree

Devices = tuple[inventory.Device, ...]


def card_of(tree: SysfsTree, address: str) -> str:
    """Which card a function is on: the slot of its physical function."""
    card = tree.cards.get(address)
    physical = (card and card.physical) or address
    return physical.rpartition(".")[0]


def functions_of(tree: SysfsTree, card: str) -> list[str]:
    """The addresses of all functions of a card, virtual ones first."""
    return sorted(
        (other for other in tree.cards if card_of(tree, other) == card),
        key=lambda other: tree.cards[other].physical is None,
    )


def cards_of(tree: SysfsTree, devices: Devices) -> set[str]:
    """The cards that devices are."""
    return {card_of(tree, address_of(one.controlpath)) for one in devices}


def without(devices: Devices, functions: Collection[str]) -> Devices:
    """The devices that are none of these functions."""
    return tuple(
        device
        for device in devices
        if address_of(device.controlpath) not in functions
    )


def victims_of(tree: SysfsTree, devices: Devices) -> list[str]:
    """Of the first card that is there: its control path, and the first unit
    that is a function of its own."""
    for device in devices:
        control = address_of(device.controlpath)
        if control in tree.cards:
            units = [
                address_of(unit.attach_info) for unit in units_of([device])
            ]
            return list(
                dict.fromkeys(
                    [control, *[one for one in units if one in tree.cards][:1]]
                )
            )
    return []


def units_of(
    devices: Iterable[inventory.Device],
) -> list[inventory.AttachHandle]:
    """What all of them hand out."""
    return [
        unit
        for device in devices
        for deployable in device.deployables
        for unit in deployable.attach_handles
    ]


def address_of(text: str) -> str:
    """The address in a control path or an attach info."""
    parts = json.loads(text)
    return "{domain}:{bus}:{device}.{function}".format(**parts)

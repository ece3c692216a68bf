# SPDX-License-Identifier: Apache-2.0
"""What every report of a driver must be, in words of `inventory`.

Stricter than what the agent refuses: that has to live with drivers that
are already in use.  Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from cyborg import inventory
from cyborg.drivers.base import NOVA_HIGHEST_DOMAIN

MAX_STRING = 255
MAX_DRIVER_NAME = 100
ADDRESS_KEYS = frozenset({"bus", "device", "domain", "function"})
MADE_KEYS = frozenset({"asked_type", "vgpu_mark"})
"""Besides the address of a unit that is made when it is bound."""
PCI_EXTRAS = frozenset({"physical_network", *MADE_KEYS})


def faults(host: str, driver: str, devices: Sequence[object]) -> Iterator[str]:
    """What is wrong with the report of the driver of that entry point on
    that host, each in words."""
    good = []
    for device in devices:
        if isinstance(device, inventory.Device):
            good.append(device)
        else:
            yield f"{device!r} is not a Device"
    for device in good:
        for fault in _device(host, driver, device):
            yield f"{device.controlpath}: {fault}"
    yield from _twice("control path", (one.controlpath for one in good))
    deployables = [one for device in good for one in device.deployables]
    yield from _twice("deployable", (one.name for one in deployables))
    yield from _twice(
        "attach handle",
        (handle for one in deployables for handle in one.attach_handles),
    )


def _device(host: str, driver: str, device: inventory.Device) -> Iterator[str]:
    yield from _address("controlpath", device.controlpath, frozenset(), {})
    if not _is(device.type, inventory.DeviceType):
        yield f"type {device.type!r} is not a DeviceType"
    if device.driver != driver:
        yield f"driver {device.driver!r} is not {driver!r}"
    yield from _text("vendor", device.vendor, MAX_STRING)
    yield from _text("model", device.model, MAX_STRING)
    yield from _long_text("vendor_board_info", device.vendor_board_info)
    yield from _long_text("std_board_info", device.std_board_info)
    yield from _long_text("fault", device.fault)
    if device.std_board_info is not None and not _is_json(
        device.std_board_info
    ):
        yield "std_board_info is not JSON"
    seconds = device.clean_seconds
    if seconds is not None and (type(seconds) is not int or seconds < 1):
        yield f"clean_seconds {seconds!r} is not a number of seconds"
    if not _is(device.deployables, tuple):
        yield "deployables are not a tuple"
    for deployable in device.deployables:
        for fault in _deployable(host, deployable, device.fault):
            yield f"{deployable.name}: {fault}"


def _deployable(
    host: str, deployable: inventory.Deployable, fault: str
) -> Iterator[str]:
    yield from _text("name", deployable.name, inventory.MAX_PROVIDER_NAME)
    if not deployable.name.startswith(f"{host}_"):
        yield f"the name does not start with {host}_"
    yield from _text("driver_name", deployable.driver_name, MAX_DRIVER_NAME)
    yield from _long_text("fault", deployable.fault)
    yield from _attributes(deployable.attributes)
    count = deployable.num_accelerators
    handles = deployable.attach_handles
    if not _is(handles, tuple):
        yield "attach_handles are not a tuple"
    if type(count) is not int or not 0 <= count < 2**31:
        yield f"num_accelerators {count!r} is not a count"
    elif (len(handles) % count if count else len(handles)) or (
        count and not handles
    ):
        yield f"{count} accelerators have {len(handles)} attach handles"
    for handle in handles:
        yield from _handle(handle, is_faulty=bool(fault or deployable.fault))


def _attributes(attributes: object) -> Iterator[str]:
    if not isinstance(attributes, tuple):
        yield "attributes are not a tuple"
        return
    pairs = []
    for pair in attributes:
        match pair:
            case (str() as key, str() as value):
                pairs.append((key, value))
            case _:
                yield f"{pair!r} is not an attribute"
    yield from _twice("attribute", (key for key, _ in pairs))
    name = inventory.resource_class(pairs)
    if name is None:
        yield "has no resource class (attribute rc): nothing can ask for it"
    elif not inventory.is_resource_class(name):
        yield f"{name!r} is no legal resource class"
    for key, value in pairs:
        yield from _text("attribute key", key, MAX_STRING)
        yield from _long_text(f"attribute {key}", value)
        if key.startswith("trait"):
            yield from _trait(value)


def _trait(name: str) -> Iterator[str]:
    if not inventory.is_trait(name):
        yield f"{name!r} is no legal trait"
    if name == inventory.OWNER_TRAIT:
        yield f"{name} is on every provider already; do not report it"


def _handle(handle: object, is_faulty: bool) -> Iterator[str]:
    if not isinstance(handle, inventory.AttachHandle):
        yield f"{handle!r} is not an AttachHandle"
        return
    kind, info = handle.attach_type, handle.attach_info
    if not _is(kind, inventory.AttachType):
        yield f"attach_type {kind!r} is not an AttachType"
    found: dict[str, object] = {}
    required = MADE_KEYS if kind is inventory.AttachType.MDEV else frozenset()
    is_ignored = kind is inventory.AttachType.TEST_PCI
    yield from _address(
        "attach_info",
        info,
        None if is_ignored else PCI_EXTRAS,
        found,
        is_padded=not is_ignored,
    )
    if not required <= found.keys():
        yield f"attach_info {info} has not all of {sorted(required)}"
    domain = found.get("domain")
    if not is_faulty and isinstance(domain, str) and _is_beyond_nova(domain):
        yield f"is offered, and Nova cannot attach domain {domain}"


def _address(
    what: str,
    text: object,
    extras: frozenset[str] | None,
    found: dict[str, object],
    is_padded: bool = True,
) -> Iterator[str]:
    """`text` is JSON of a PCI address as `inventory.pci_json` writes it,
    with no keys besides but `extras` (None: any, as Nova ignores such
    handles); `found` gets what it holds."""
    yield from _text(what, text, MAX_STRING)
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        value = None
    if (
        not isinstance(value, dict)
        or value.keys() & ADDRESS_KEYS != ADDRESS_KEYS
    ):
        yield f"{what} {text!r} is not the JSON text of a PCI address"
        return
    found.update(value)
    if inventory.canonical(str(text)) != text:
        yield f"{what} {text} is not in the order and spacing of pci_json"
    unknown = value.keys() - ADDRESS_KEYS - (extras or frozenset())
    if unknown and extras is not None:
        yield f"{what} {text} has keys besides: {sorted(unknown)}"
    if not all(isinstance(part, str) and part for part in value.values()):
        yield f"{what} {text} has a value that is not a text"
        return
    width = "{2}" if is_padded else "{1,2}"
    address = "{domain}:{bus}:{device}.{function}".format(**value)
    if not re.fullmatch(
        rf"[0-9a-f]{{4,8}}:[0-9a-f]{{2}}:[0-9a-f]{width}\.[0-7]", address
    ):
        yield f"{what} {text} is not as the kernel writes an address"


def _is_beyond_nova(domain: str) -> bool:
    try:
        return int(domain, 16) > NOVA_HIGHEST_DOMAIN
    except ValueError:
        return False


def _text(what: str, value: object, limit: int) -> Iterator[str]:
    """A text that is not empty and that every database can hold."""
    if not isinstance(value, str) or not value:
        yield f"{what} {value!r} is not a text"
        return
    if len(value) > limit:
        yield f"{what} is longer than {limit} characters"
    if not all(_is_storable(letter) for letter in value):
        yield f"{what} {value[:80]!a} has characters that no database takes"


def _long_text(what: str, value: object) -> Iterator[str]:
    """A text of any contents, or none."""
    if value is None or value == "":
        return
    yield from _text(what, value, inventory.MAX_TEXT_BYTES)
    if (
        isinstance(value, str)
        and len(value.encode(errors="replace")) > inventory.MAX_TEXT_BYTES
    ):
        yield f"{what} is longer than {inventory.MAX_TEXT_BYTES} bytes"


def _is_storable(letter: str) -> bool:
    return letter != "\0" and not (
        "\ud7ff" < letter < "\ue000" or letter > "\uffff"
    )


def _is(value: object, kind: type) -> bool:
    """`isinstance`, where the types promise it and a driver may not."""
    return isinstance(value, kind)


def _is_json(text: object) -> bool:
    try:
        json.loads(str(text))
    except ValueError:
        return False
    return True


def _twice(what: str, things: Iterable[object]) -> Iterator[str]:
    seen: set[object] = set()
    for thing in things:
        if thing in seen:
            yield f"{what} {thing} comes twice"
        seen.add(thing)

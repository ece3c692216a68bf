# SPDX-License-Identifier: Apache-2.0
"""`intel_nic_driver`: Intel's network cards of the 710 series.

What a port is good for (its physical network, the functions that its
firmware runs) no file tells: an operator says it by the name of the port's
interface, in a section for each of `[nic_devices] enabled_nic_types`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from collections.abc import Mapping

from oslo_config import cfg

from cyborg import inventory
from cyborg.drivers.base import DriverHost
from cyborg.drivers.base import OptionError
from cyborg.drivers.sriov_card import SriovCardDriver
from cyborg.hardware import net
from cyborg.hardware.pci import PciFunction
from cyborg.hardware.pci import parse_address

PHYSICAL = frozenset({"158a", "158b", "1572"})
"""XXV710 (backplane, SFP28) and X710."""

VIRTUAL = frozenset({"154c"})
"""Their virtual functions, and those of others of the series."""

NETWORKS = "physical_device_mappings"
FUNCTIONS = "function_device_mappings"
ADDRESSES = "device_addresses"

_NAME = re.compile(r"[!-~]{1,64}")
"""Of a physical network (64 characters in Neutron) or a function."""

_INTERFACE = re.compile(r"[^\s/:]{1,15}")

_Mapping = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class NicType:
    """One section: names by interface, and what it is restricted to."""

    networks: _Mapping = dataclasses.field(default_factory=dict)
    functions: _Mapping = dataclasses.field(default_factory=dict)
    addresses: frozenset[str] = frozenset()

    def takes(self, function: PciFunction) -> bool:
        """Whether it is of this type: each is where no address is given."""
        places = {function.address, function.physical_function}
        return not self.addresses or bool(self.addresses & places)


class IntelNicDriver(SriovCardDriver):
    """Ports without virtual functions, or the virtual functions of each."""

    name = "intel_nic_driver"
    driver_name = "intel"
    type = inventory.DeviceType.NIC
    resource_class = "CUSTOM_NIC"
    vendor = "8086"
    products = PHYSICAL | VIRTUAL

    def __init__(self, host: DriverHost) -> None:
        super().__init__(host)
        self._types = nic_types(host)
        self._interfaces = net.LastSeen()

    def discover(self) -> Iterable[inventory.Device]:
        self._interfaces.look(self.host.sysfs.functions())
        return super().discover()

    def offers(self, unit: PciFunction) -> bool:
        return any(one.takes(unit) for one in self._types)

    def part(
        self, unit: PciFunction, function: PciFunction, fault: str
    ) -> inventory.Deployable:
        interface = net.own_interface(
            self.host.sysfs,
            self._interfaces.of(
                function.physical_function or function.address
            ),
        )
        types = [one for one in self._types if one.takes(unit)]
        networks = _names(interface, (one.networks for one in types))
        functions = _names(interface, (one.functions for one in types))
        kind = "VF" if unit.device in VIRTUAL else "PF"
        return self.deployable(
            unit,
            traits=[
                inventory.custom_name(word)
                for word in (kind, *networks, *functions)
            ],
            handle_extra={"physical_network": networks[0]}
            if networks
            else None,
            fault=fault,
        )


def nic_types(host: DriverHost) -> list[NicType]:
    """What `[nic_devices] enabled_nic_types` names; where it names nothing,
    one type that takes everything and tells nothing of it.

    Raises OptionError.
    """
    names = dict.fromkeys(host.option("nic_devices", "enabled_nic_types"))
    types = {name: _nic_type(host, name) for name in names if name}
    known: dict[str, str] = {}
    for name, one in types.items():
        for interface, networks in one.networks.items():
            known.setdefault(interface, networks[0])
            for network in networks:
                if network != known[interface]:
                    raise OptionError(
                        f"[{name}] {NETWORKS}",
                        f"{interface} is on {known[interface]} and on"
                        f" {network}",
                    )
    return list(types.values()) or [NicType()]


def _nic_type(host: DriverHost, name: str) -> NicType:
    try:
        host.conf.register_opts(
            [
                cfg.ListOpt(option, default=[])
                for option in (NETWORKS, FUNCTIONS, ADDRESSES)
            ],
            group=name,
        )
    except cfg.Error as error:
        raise OptionError(
            "[nic_devices] enabled_nic_types",
            f"{name!r} cannot be the name of a type: {error}",
        ) from error
    return NicType(
        networks=_mapping(host, name, NETWORKS),
        functions=_mapping(host, name, FUNCTIONS),
        addresses=_addresses(host, name),
    )


def _mapping(host: DriverHost, group: str, option: str) -> _Mapping:
    """`physnet1:eth2|eth3` as names by interface."""
    result: dict[str, dict[str, None]] = {}
    for item in host.option(group, option):
        name, _, rest = (part.strip() for part in item.partition(":"))
        interfaces = [interface.strip() for interface in rest.split("|")]
        if not _NAME.fullmatch(name) or not all(
            _INTERFACE.fullmatch(interface) for interface in interfaces
        ):
            raise OptionError(
                f"[{group}] {option}",
                f"{item!r} is not name:interface|interface",
            )
        for interface in interfaces:
            result.setdefault(interface, {})[name] = None
    return {interface: tuple(names) for interface, names in result.items()}


def _addresses(host: DriverHost, group: str) -> frozenset[str]:
    try:
        return frozenset(
            str(parse_address(text)) for text in host.option(group, ADDRESSES)
        )
    except ValueError as error:
        raise OptionError(f"[{group}] {ADDRESSES}", str(error)) from error


def _names(
    interface: str | None, mappings: Iterable[_Mapping]
) -> tuple[str, ...]:
    """What the mappings say of an interface, nothing twice."""
    if interface is None:
        return ()
    return tuple(
        dict.fromkeys(
            name for mapping in mappings for name in mapping.get(interface, ())
        )
    )

# SPDX-License-Identifier: Apache-2.0
"""`cyborg-manage hardware`: what the agent of this host would report, and
why not.  It changes nothing and needs neither rights, broker nor database.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from cyborg import privsep
from cyborg.agent import isolation
from cyborg.agent import survey
from cyborg.agent.service import driver_host
from cyborg.cmd import printing
from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools

DONE = 0
FAULT = 1

HEADINGS = (
    "ADDRESS",
    "IDS",
    "CLASS",
    "DRIVER",
    "NUMA",
    "GROUP",
    "VFS",
    "CLAIMED BY",
    "NAME",
)
NOBODY = "-"
BRIDGE = "0604"
"""Class of the bridges that PCIe itself is made of."""


def add_command(subparsers: Any) -> None:
    """The words of the command line."""
    hardware = subparsers.add_parser(
        "hardware", help="Show what the drivers see on this host."
    )
    hardware.add_argument(
        "--format", choices=("table", "json"), default="table"
    )
    hardware.add_argument(
        "--driver",
        action="append",
        metavar="NAME",
        help="Ask this driver; may be given several times. Default: those "
        "of [agent] enabled_drivers.",
    )
    hardware.add_argument(
        "--all-drivers",
        action="store_true",
        help="Ask every driver that is installed.",
    )


class _NoTools(Tools):
    """Vendors' tools need rights; without them nobody is asked for any."""

    def run(self, command: Sequence[str], timeout: float) -> str:
        raise ToolError(f"{command[0]} needs root and was not run")


def run(conf: cfg.ConfigOpts) -> int:
    """Show what the drivers see; 1 where one could not look."""
    if os.geteuid() == 0:
        privsep.prepare(conf)
        host = driver_host(conf)
    else:
        host = driver_host(conf, tools=_NoTools())
    found = survey.survey(host, _drivers(conf), conf.agent.driver_timeout)
    if conf.command.format == "json":
        printing.show(survey.as_json(found))
    else:
        printing.show("\n".join(_lines(found)))
    return DONE if found.is_well else FAULT


def _drivers(conf: cfg.ConfigOpts) -> list[str]:
    if conf.command.all_drivers:
        return isolation.installed()
    return list(conf.command.driver or conf.agent.enabled_drivers)


def _lines(found: survey.Survey) -> Iterator[str]:
    """The survey for people: functions, devices that are none, drivers."""
    if found.error:
        yield f"The PCI functions of this host cannot be read: {found.error}"
    else:
        yield from _functions(found.functions)
    for claim in found.others:
        yield ""
        yield f"{claim.driver}: {claim.model} at {claim.controlpath}"
        yield from _offers(claim)
    yield ""
    for name, error in found.drivers.items():
        yield f"{name}: {f'FAULT: {error}' if error else 'well'}"


def _functions(functions: Iterable[survey.Seen]) -> Iterator[str]:
    """All but the host's bridges."""
    found = [
        seen
        for seen in functions
        if seen.claims or not seen.function.class_code.startswith(BRIDGE)
    ]
    rows = [HEADINGS, *(_row(seen) for seen in found)]
    for number, line in enumerate(printing.columns(rows)):
        yield line
        for claim in found[number - 1].claims if number else ():
            yield from _offers(claim)


def _row(seen: survey.Seen) -> tuple[str, ...]:
    function = seen.function
    names = (seen.vendor_name, seen.device_name)
    return (
        function.address,
        f"{function.vendor}:{function.device}",
        function.class_code,
        function.driver or NOBODY,
        _number(function.numa_node),
        _number(function.iommu_group),
        f"of {function.physical_function}"
        if function.physical_function
        else str(len(function.virtual_functions)),
        ",".join(_claimants(seen.claims)) or NOBODY,
        " ".join(filter(None, names)),
    )


def _claimants(claims: Iterable[survey.Claim]) -> Iterator[str]:
    for claim in claims:
        yield claim.driver
        yield from (f"({name})" for name in claim.also)


def _number(value: int | None) -> str:
    return NOBODY if value is None else str(value)


def _offers(claim: survey.Claim) -> Iterator[str]:
    """What Placement and Nova would have of a device."""
    if not claim.offers:
        yield "    offered in parts: see its virtual functions"
    for offer in claim.offers:
        handles = " + ".join(
            f"{count} {kind}" for kind, count in offer.handles.items()
        )
        yield (
            f"    {offer.resource_class or 'no resource class'}: "
            f"{handles or 'nothing to attach'} of {offer.deployable}"
        )
        yield f"      {' '.join(offer.traits)}"
        if claim.clean_seconds:
            yield f"      cleaned on release, {claim.clean_seconds} s at most"
        if offer.fault:
            yield f"      NOT OFFERED: {offer.fault}"

# SPDX-License-Identifier: Apache-2.0
"""`cyborg-manage`: what an operator looks at and repairs by hand.

`hardware` shows what the agent of this host would report, and why not.  It
changes nothing and needs neither rights, broker nor database.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from cyborg import privsep
from cyborg import service
from cyborg.agent import isolation
from cyborg.agent import survey
from cyborg.agent.service import driver_host
from cyborg.hardware.tools import ToolError
from cyborg.hardware.tools import Tools

PROGRAM = "cyborg-manage"

DONE = 0
FAULT = 1
INTERRUPTED = 130

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


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with service.exits_on_mistake(PROGRAM):
            conf = _configure(arguments)
            return _COMMANDS[conf.command.name](conf)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        print(error.code, file=sys.stderr)
        return FAULT


def _configure(arguments: Sequence[str]) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    conf.register_cli_opt(
        cfg.SubCommandOpt("command", title="Commands", handler=_add_commands)
    )
    conf(
        args=list(arguments),
        project=service.PROJECT,
        prog=PROGRAM,
        version=service.version(),
    )
    service.set_up(conf, PROGRAM)
    if not conf.debug:
        # What is asked for comes on stdout; only what is wrong besides.
        logging.getLogger().setLevel(logging.WARNING)
        logging.getLogger("oslo.privsep").setLevel(logging.ERROR)
    return conf


def _add_commands(subparsers: Any) -> None:
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


def _hardware(conf: cfg.ConfigOpts) -> int:
    if os.geteuid() == 0:
        privsep.prepare(conf)
        host = driver_host(conf)
    else:
        host = driver_host(conf, tools=_NoTools())
    found = survey.survey(host, _drivers(conf), conf.agent.driver_timeout)
    if conf.command.format == "json":
        _show(survey.as_json(found))
    else:
        _show("\n".join(_lines(found)))
    return DONE if found.is_well else FAULT


def _show(text: str) -> None:
    """Print it all; that somebody reads no further is no fault."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except OSError as error:
        # What is left in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            sys.exit(f"{PROGRAM}: the output cannot be written: {error}")


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
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        yield "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
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


_COMMANDS: dict[str, Callable[[cfg.ConfigOpts], int]] = {"hardware": _hardware}


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""A host for drivers under test: a fake sysfs and options."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from oslo_config import cfg

import cyborg.conf
from cyborg.drivers.base import DriverHost
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pciids import PciNames
from cyborg.hardware.tools import Tools
from cyborg.hardware.writes import Writer

Options = Mapping[str, Mapping[str, object]]
"""`{group: {option: value}}`; a value is what oslo.config would make of
the file's text, or the text itself for a group that a driver registers."""


def driver_host(
    sysfs_root: Path,
    options: Options | None = None,
    *,
    name: str = "compute-1",
    names: PciNames | None = None,
    writer: Writer | None = None,
    tools: Tools | None = None,
) -> DriverHost:
    """A host whose options are ours with `options` set, and that has no
    pci.ids unless `names` is given."""
    return DriverHost(
        name=name,
        sysfs=Sysfs(sysfs_root),
        conf=configuration(options or {}),
        names=names or PciNames(()),
        writer=writer or Writer(),
        tools=tools or Tools(),
    )


def configuration(options: Options) -> cfg.ConfigOpts:
    """Our options with some set.

    Values that can only come from a file are read from one: those of a
    group that nobody has registered yet (an operator chooses its name, the
    driver registers it), and those that are no value of their option.
    """
    conf = cfg.ConfigOpts()
    cyborg.conf.register(conf)
    lines = []
    for group, values in options.items():
        lines.append(f"[{group}]")
        lines.extend(
            f"{name} = {_text(value)}"
            for name, value in values.items()
            if not _set(conf, group, name, value)
        )
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write("\n".join(lines))
        file.flush()
        conf([], project="cyborg", default_config_files=[file.name])
    for group, values in options.items():
        for name, value in values.items():
            _set(conf, group, name, value)
    return conf


def _set(conf: cfg.ConfigOpts, group: str, name: str, value: object) -> bool:
    """Whether an option could be given its value so."""
    try:
        conf.set_override(name, value, group=group)
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError, ValueError):
        return False
    return True


def _text(value: object) -> str:
    """A value as an operator writes it."""
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)

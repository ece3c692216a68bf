# SPDX-License-Identifier: Apache-2.0
"""A host for drivers under test: a fake sysfs and options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from oslo_config import cfg

import cyborg.conf
from cyborg.drivers.base import DriverHost
from cyborg.hardware.pci import Sysfs
from cyborg.hardware.pciids import PciNames


def driver_host(
    sysfs_root: Path,
    options: Mapping[str, Mapping[str, object]] | None = None,
    name: str = "compute-1",
    names: PciNames | None = None,
) -> DriverHost:
    """A host whose options are ours with `{group: {option: value}}` set,
    and that has no pci.ids unless `names` is given."""
    conf = cfg.ConfigOpts()
    cyborg.conf.register(conf)
    conf([], project="cyborg", default_config_files=[])
    for group, values in (options or {}).items():
        for option, value in values.items():
            conf.set_override(option, value, group=group)
    return DriverHost(
        name=name,
        sysfs=Sysfs(sysfs_root),
        conf=conf,
        names=names or PciNames(()),
    )

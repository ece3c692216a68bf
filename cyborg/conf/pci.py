# SPDX-License-Identifier: Apache-2.0
"""Options that choose and shape the devices on the PCI bus."""

from __future__ import annotations

from collections.abc import Iterator

from oslo_config import cfg


def groups() -> Iterator[tuple[str, list[cfg.Opt]]]:
    """The options of `[pci]` and of the kinds of PCI device."""
    yield "pci", _pci()
    yield "gpu_devices", _gpu()
    yield "nic_devices", _nic()
    yield "nvme", _nvme()


def _pci() -> list[cfg.Opt]:
    return [
        cfg.MultiStrOpt(
            "passthrough_whitelist",
            default=[],
            help="JSON object (or list of them) that says which PCI devices "
            "the `pci_driver` reports: `vendor_id`, `product_id`, "
            "`address`. May be given several times.",
        ),
    ]


def _gpu() -> list[cfg.Opt]:
    return [
        cfg.ListOpt(
            "enabled_vgpu_types",
            default=[],
            help="The vGPU types that GPUs offer. With several, a group "
            "`[vgpu_<type>]` with `device_addresses` says which GPU offers "
            "which.",
        ),
        cfg.BoolOpt(
            "filter_sriov_vfs",
            default=True,
            help="Never offer the virtual functions of a GPU as whole GPUs "
            "(resource class PGPU).",
        ),
    ]


def _nic() -> list[cfg.Opt]:
    return [
        cfg.ListOpt(
            "enabled_nic_types",
            default=[],
            help="The types of NIC to report; a group of the type's name "
            "holds `physical_device_mappings`, `function_device_mappings` "
            "and `device_addresses`.",
        ),
    ]


def _nvme() -> list[cfg.Opt]:
    return [
        cfg.MultiStrOpt(
            "device_spec",
            default=[],
            help="JSON object that chooses NVMe devices by `vendor_id`, "
            "`product_id` or `address` and says how they are cleaned "
            "(`clear_action`, `clear_strategy`). May be given several times.",
        ),
        cfg.IntOpt(
            "cleanup_timeout",
            default=900,
            min=60,
            help="Seconds that cleaning one NVMe device may take.",
        ),
    ]

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


def driver_groups() -> Iterator[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """For the sample file: the sections that drivers register themselves,
    among them one of each kind that another option names, since no fixed
    list can hold them all."""
    yield cfg.OptGroup("amd_gpu"), amd_gpu_options()
    yield (
        cfg.OptGroup(
            "vgpu_nvidia-222",
            dynamic_group_owner="enabled_vgpu_types",
            help="An example of the sections [vgpu_<type>], one for each of "
            "[gpu_devices] enabled_vgpu_types.",
        ),
        vgpu_type_options(),
    )
    yield (
        cfg.OptGroup(
            "x710_static",
            dynamic_group_owner="enabled_nic_types",
            help="An example of the sections that are named like each of "
            "[nic_devices] enabled_nic_types.",
        ),
        nic_type_options(),
    )


def amd_gpu_options() -> list[cfg.Opt]:
    """The options of `[amd_gpu]`."""
    return [
        cfg.BoolOpt(
            "virtual_functions",
            default=False,
            help="Offer the virtual functions of AMD GPUs (as the driver "
            "`gim` makes them), each as one accelerator with the trait "
            "`CUSTOM_VF`. A GPU that has some is never offered whole.",
        ),
    ]


def vgpu_type_options() -> list[cfg.Opt]:
    """The options of a section `[vgpu_<type>]`."""
    return [
        cfg.ListOpt(
            "device_addresses",
            default=[],
            help="PCI addresses of the functions that offer the type. On "
            "cards whose types are on their virtual functions (Ampere and "
            "later) these are the virtual functions' addresses.",
        ),
        cfg.StrOpt(
            "name",
            default="",
            help="The type's name as NVIDIA's driver writes it (`NVIDIA "
            "L40S-1Q`), for types of vendor-specific virtual functions: a "
            "full card does not tell it, and traits are made from it.",
        ),
    ]


def nic_type_options() -> list[cfg.Opt]:
    """The options of a section named like a type of NIC."""
    return [
        cfg.ListOpt(
            "physical_device_mappings",
            default=[],
            help="The physical networks that interfaces are on: "
            "`physnet1:eth2|eth3`.",
        ),
        cfg.ListOpt(
            "function_device_mappings",
            default=[],
            help="The functions that are loaded on interfaces: "
            "`GTPv1:eth3|eth2`.",
        ),
        cfg.ListOpt(
            "device_addresses",
            default=[],
            help="Report these PCI addresses only: a physical function "
            "stands for all its virtual functions (or for itself), a "
            "virtual function for itself. Empty: all.",
        ),
    ]


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
            help="The vGPU types that GPUs offer. For each, a group "
            "`[vgpu_<type>]` with `device_addresses` says where.",
        ),
        cfg.BoolOpt(
            "filter_sriov_vfs",
            default=True,
            help="Never offer the virtual functions of a GPU as whole GPUs "
            "(resource class PGPU).",
        ),
        cfg.BoolOpt(
            "offer_vendor_vgpus",
            default=False,
            help="Offer the vGPUs of NVIDIA's vendor-specific virtual "
            "functions (kernels without its mediated devices). Nova attaches "
            "what it gets from Cyborg with `managed='yes'`, which takes such "
            "a function from its driver and breaks it: set this only where "
            "Nova is known not to.",
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

# SPDX-License-Identifier: Apache-2.0
"""The files that every PCI function has, as the kernel writes them."""

from __future__ import annotations

from cyborg.drivers.testing.cards import Card

CORRECTABLE = (
    "RxErr",
    "BadTLP",
    "BadDLLP",
    "Rollover",
    "Timeout",
    "NonFatalErr",
    "CorrIntErr",
    "HeaderOF",
)
UNCORRECTABLE = (
    "Undefined",
    "DLP",
    "SDES",
    "TLP",
    "FCP",
    "CmpltTO",
    "CmpltAbrt",
    "UnxCmplt",
    "RxOF",
    "MalfTLP",
    "ECRC",
    "UnsupReq",
    "ACSViol",
    "UncorrIntErr",
    "BlockedTLP",
    "AtomicOpBlocked",
    "TLPBlockedErr",
    "PoisonTLPBlocked",
)
RESOURCE = "\n".join(
    (
        "0x00000000b0000000 0x00000000b0ffffff 0x0000000000040200",
        *["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 12,
    )
)


def uevent(card: Card, driver: str | None) -> str:
    """`uevent` while `driver` (or none) is bound; the class without
    leading zero."""
    return "\n".join(
        (
            *([f"DRIVER={driver}"] if driver else []),
            f"PCI_CLASS={int(card.class_code, 16):X}",
            f"PCI_ID={card.ids.upper()}",
            f"PCI_SUBSYS_ID={card.subsystem.upper()}",
            f"PCI_SLOT_NAME={card.address}",
            f"MODALIAS={modalias(card)}",
        )
    )


def modalias(card: Card) -> str:
    """By which the kernel chooses a driver."""
    vendor, device = card.ids.upper().split(":")
    sub_vendor, sub_device = card.subsystem.upper().split(":")
    base, sub, interface = (
        card.class_code[place : place + 2].upper() for place in (0, 2, 4)
    )
    return (
        f"pci:v0000{vendor}d0000{device}sv0000{sub_vendor}sd0000{sub_device}"
        f"bc{base}sc{sub}i{interface}"
    )


def files(card: Card) -> dict[str, str]:
    """Every readable file of the function itself but for SR-IOV's."""
    vendor, device = card.ids.split(":")
    sub_vendor, sub_device = card.subsystem.split(":")
    found = {
        "vendor": f"0x{vendor}",
        "device": f"0x{device}",
        "subsystem_vendor": f"0x{sub_vendor}",
        "subsystem_device": f"0x{sub_device}",
        "class": f"0x{card.class_code}",
        "revision": f"0x{card.revision}",
        "uevent": uevent(card, card.driver),
        "modalias": modalias(card),
        "numa_node": str(card.numa_node),
        "local_cpulist": "0-15,32-47",
        "local_cpus": "ffff,0000ffff",
        "driver_override": "(null)",
        "power_state": "D0",
        "d3cold_allowed": "1",
        "enable": "1",
        "max_link_speed": "16.0 GT/s PCIe",
        "current_link_speed": "16.0 GT/s PCIe",
        "max_link_width": "16",
        "current_link_width": "16",
        "resource": RESOURCE,
        "aer_dev_correctable": _counters(CORRECTABLE, "COR"),
        "aer_dev_nonfatal": _counters(UNCORRECTABLE, "NONFATAL"),
        "aer_dev_fatal": _counters(UNCORRECTABLE, "FATAL"),
    }
    if card.reset_method is not None:
        found["reset_method"] = card.reset_method
    if card.class_code.startswith("0300"):
        found["boot_vga"] = str(card.boot_vga)
    return found


def sriov_files(card: Card) -> dict[str, str]:
    """What a physical function that can have virtual ones has besides."""
    if card.total_vfs is None:
        return {}
    return {
        "sriov_totalvfs": str(card.total_vfs),
        "sriov_numvfs": "0",
        "sriov_offset": str(card.first),
        "sriov_stride": str(card.stride),
        "sriov_drivers_autoprobe": "1",
        "sriov_vf_device": card.vf or card.ids.partition(":")[2],
    }


def _counters(names: tuple[str, ...], kind: str) -> str:
    return "\n".join((*(f"{name} 0" for name in names), f"TOTAL_ERR_{kind} 0"))

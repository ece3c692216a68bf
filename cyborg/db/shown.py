# SPDX-License-Identifier: Apache-2.0
"""Rows as lists of the API show them.

Of thousands, objects of the models would cost several times as much.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple


class Device(NamedTuple):
    """A device."""

    id: int
    uuid: str
    type: str
    vendor: str
    model: str
    std_board_info: str | None
    vendor_board_info: str | None
    hostname: str
    status: str
    created_at: datetime.datetime | None
    updated_at: datetime.datetime | None
    device_state: str | None = None
    status_reason: str | None = None
    address: str | None = None
    driver_name: str | None = None
    numa_node: int | None = None
    last_seen_at: datetime.datetime | None = None
    """The last six only where details are asked for."""


class Pair(NamedTuple):
    """An attribute, within its deployable."""

    key: str
    value: str


class Deployable(NamedTuple):
    """A deployable with its attributes."""

    id: int
    uuid: str
    parent_id: int | None
    root_id: int | None
    name: str
    num_accelerators: int
    device_id: int
    rp_uuid: str | None
    driver_name: str | None
    bitstream_id: str | None
    created_at: datetime.datetime | None
    updated_at: datetime.datetime | None
    fault: str | None
    attributes: Sequence[Pair]

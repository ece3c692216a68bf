# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tests.glance_stand_in import glance_stand_in
from tests.placement import placement

__all__ = ["glance_stand_in", "placement"]

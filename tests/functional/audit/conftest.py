# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from tests.functional.clients.conftest import adapter_for
from tests.nova_stand_in import nova_stand_in
from tests.placement import placement

__all__ = ["adapter_for", "nova_stand_in", "placement"]

# SPDX-License-Identifier: Apache-2.0
"""A host for drivers under test; it is the conformance kit's."""

from __future__ import annotations

from cyborg.drivers.testing.host import driver_host

__all__ = ("driver_host",)

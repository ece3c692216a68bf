# SPDX-License-Identifier: Apache-2.0
"""Tools that answer what a test says; they are the conformance kit's."""

from __future__ import annotations

from cyborg.drivers.testing.tools import RecordedTools

__all__ = ("RecordedTools",)

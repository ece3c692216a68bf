# SPDX-License-Identifier: Apache-2.0
"""The kernel behind a fake tree; it is the conformance kit's.

`Kernel(tree)` is a writer that does what the kernel would.
"""

from __future__ import annotations

from cyborg.drivers.testing.kernel import Kernel

__all__ = ("Kernel",)

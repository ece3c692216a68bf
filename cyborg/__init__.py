# SPDX-License-Identifier: Apache-2.0
"""Accelerator management for OpenStack clouds."""

from __future__ import annotations

import warnings

# Several libraries import eventlet where it is installed (oslo.messaging
# installs it).  Nothing of ours uses it, so that its eight lines of warning
# before each command's own output only frighten.
warnings.filterwarnings("ignore", message=r"\s*eventlet is deprecated")

from oslo_service import backend  # noqa: E402 - after the filter

# oslo.messaging takes oslo.service's default backend the moment that it is
# imported: the choice of real threads must stand before that, wherever the
# first import comes from.
backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)

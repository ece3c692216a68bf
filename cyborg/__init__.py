# SPDX-License-Identifier: Apache-2.0
"""Accelerator management for OpenStack clouds."""

from __future__ import annotations

from oslo_service import backend

# oslo.messaging takes oslo.service's default backend the moment that it is
# imported: the choice of real threads must stand before that, wherever the
# first import comes from.
backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)

# SPDX-License-Identifier: Apache-2.0
"""WSGI middleware around the REST application."""

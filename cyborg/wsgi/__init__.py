# SPDX-License-Identifier: Apache-2.0
"""Entry points of WSGI servers."""

# SPDX-License-Identifier: Apache-2.0
"""How a database gets from any revision that we know to the newest."""

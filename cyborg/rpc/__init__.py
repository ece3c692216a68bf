# SPDX-License-Identifier: Apache-2.0
"""How the three services talk to each other over oslo.messaging."""

# SPDX-License-Identifier: Apache-2.0
"""The programs that an operator runs."""

# SPDX-License-Identifier: Apache-2.0
"""The SQL database; the only package that holds SQL."""

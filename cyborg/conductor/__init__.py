# SPDX-License-Identifier: Apache-2.0
"""The conductor: the only writer of the database."""

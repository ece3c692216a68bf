# SPDX-License-Identifier: Apache-2.0
"""The tests of that name, on MariaDB and PostgreSQL."""

from tests.functional.db.test_db_counts import *  # noqa: F403

# SPDX-License-Identifier: Apache-2.0
"""The database of these tests is SQLite; tests/integration/db runs the same
tests on MariaDB and PostgreSQL."""

from __future__ import annotations

import pytest

from tests import databases

database = databases.database
shared_database = databases.shared_database


@pytest.fixture(scope="session")
def kind() -> str:
    return "sqlite"

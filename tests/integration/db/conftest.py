# SPDX-License-Identifier: Apache-2.0
"""The database tests of tests/functional/db, on the servers."""

from __future__ import annotations

import pytest

from tests import databases

database = databases.database
shared_database = databases.shared_database

for name in (
    "clock",
    "costs",
    "counts",
    "device_details",
    "devices",
    "engine",
    "lists",
    "migration",
    "profiles",
    "requests",
):
    pytest.register_assert_rewrite(f"tests.functional.db.test_db_{name}")


@pytest.fixture(scope="session", params=list(databases.SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    databases.require(request.param)
    return str(request.param)

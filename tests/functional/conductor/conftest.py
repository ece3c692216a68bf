# SPDX-License-Identifier: Apache-2.0
"""A conductor on SQLite; races run on MariaDB and PostgreSQL as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cyborg.db import engine
from tests import databases
from tests.functional.clients.conftest import adapter_for
from tests.functional.conductor import world as worlds
from tests.placement import placement

__all__ = ["adapter_for", "placement"]

database = databases.database
shared_database = databases.shared_database


@pytest.fixture(scope="session")
def kind() -> str:
    return "sqlite"


@pytest.fixture
def world(database: engine.Database) -> Iterator[worlds.World]:
    made = worlds.make(database)
    yield made
    made.close()

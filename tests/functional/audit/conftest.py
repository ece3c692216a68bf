# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tests import databases
from tests.functional.audit.cloud import Cloud
from tests.functional.audit.cloud import Clouds
from tests.functional.clients.conftest import adapter_for
from tests.nova_stand_in import NovaStandIn
from tests.nova_stand_in import nova_stand_in
from tests.placement import PlacementService
from tests.placement import placement

__all__ = ["adapter_for", "nova_stand_in", "placement"]


@pytest.fixture(scope="module")
def migrated(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Any]]:
    """Our database of a kind, without rows."""
    with contextlib.ExitStack() as stack:
        made: dict[str, Any] = {}

        def database(kind: str) -> Any:
            if kind not in made:
                made[kind] = stack.enter_context(
                    databases.migrated(kind, tmp_path_factory.mktemp(kind))
                )
            databases.clear(made[kind])
            return made[kind]

        yield database


@pytest.fixture
def clouds(
    migrated: Callable[[str], Any],
    placement: PlacementService,
    nova_stand_in: NovaStandIn,
    adapter_for: Any,
) -> Iterator[Clouds]:
    made: list[Cloud] = []

    def cloud(kind: str, cards: int) -> Cloud:
        made.append(
            Cloud(
                migrated(kind),
                placement,
                nova_stand_in,
                adapter_for("nova", nova_stand_in.url),
                cards,
            )
        )
        return made[-1]

    yield cloud
    for one in made:
        one.close()

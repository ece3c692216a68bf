# SPDX-License-Identifier: Apache-2.0
"""What a read costs: counts, which do not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cyborg.db import models
from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab
from tests.statements import StatementCounter

INSTANCE = "5922a70f-1e06-4cfd-88dd-a332120d7144"
EXISTING = 300


@pytest.fixture(scope="module")
def populated(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """Three hundred requests, and a conductor that looks at nothing."""
    with lab_module.running(
        tmp_path_factory.mktemp("lab"),
        periodic_interval=3600,
        conductor__reconcile_interval=3600,
    ) as lab:
        lab.create_profile("dp-one")
        lab.bind(lab.create_arqs(), INSTANCE)
        with lab.database.writer() as session:
            (profile,) = session.query(models.DeviceProfile).all()
            session.add_all(
                models.AcceleratorRequest(
                    device_profile_id=profile.id, project_id=lab_module.PROJECT
                )
                for _ in range(EXISTING)
            )
        yield lab


@pytest.mark.parametrize(
    ("path", "statements"),
    [
        ("/", 0),
        ("/v2", 0),
        ("/healthcheck", 0),
        ("/v2/nothing", 0),
        ("/v2/devices?limit=x", 0),
        ("/v2/device_profiles", 1),
        ("/v2/device_profiles?name=dp-one", 1),
        ("/v2/device_profiles/dp-one", 1),
        ("/v2/accelerator_requests", 1),
        (f"/v2/accelerator_requests?instance={INSTANCE}", 1),
        (
            f"/v2/accelerator_requests?instance={INSTANCE}"
            "&bind_state=resolved",
            1,
        ),
        ("/v2/devices", 1),
        ("/v2/deployables", 2),
        ("/v2/attributes", 1),
    ],
)
def test_a_read_costs_what_is_allowed(
    path: str, statements: int, populated: Lab
) -> None:
    engine = populated.database.engine
    with StatementCounter(engine, own=True) as counter:
        populated.call("GET", path)
    assert len(counter.statements) == statements, counter.statements
    assert counter.transactions == min(statements, 1)


@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("thing", ["device", "deployable", "attribute"])
def test_one_thing_costs_one_statement(
    thing: str, version: str, populated: Lab
) -> None:
    listed = populated.call("GET", f"/v2/{thing}s").json[f"{thing}s"]
    path = f"/v2/{thing}s/{listed[0]['uuid']}"
    engine = populated.database.engine
    with StatementCounter(engine, own=True) as counter:
        populated.call("GET", path, version=version)
    assert len(counter.statements) == 1
    assert counter.transactions == 1


def test_older_versions_do_not_pay_for_what_they_do_not_see(
    populated: Lab,
) -> None:
    engine = populated.database.engine
    with StatementCounter(engine, own=True) as counter:
        populated.call("GET", "/v2/devices", version="2.3")
    (statement,) = counter.statements
    assert "attach_handles" not in statement
    assert "hosts" not in statement

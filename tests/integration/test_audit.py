# SPDX-License-Identifier: Apache-2.0
"""`cyborg-manage audit` and `heal` while a cloud runs and is used."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import models
from tests.functional.audit import corruptions
from tests.functional.audit.cloud import Spoil
from tests.integration import children
from tests.integration import deployment
from tests.integration import resources
from tests.integration import spoiled

NOTHING_WRONG, FOUND, MISTAKE, UNCHECKED = range(4)

MENDED = {corruptions.overdue_job}
"""What a conductor that runs mends within seconds."""

SPOILS: dict[Spoil, Any] = {
    spoil: kind
    for spoil, kind in corruptions.HEALED.items()
    if spoil not in MENDED
}

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module", params=["mariadb", "postgresql"])
def cloud(
    deploy: deployment.Deploy, request: pytest.FixtureRequest
) -> Iterator[spoiled.Cloud]:
    with spoiled.cloud(deploy, request.param, len(SPOILS) + 1) as made:
        yield made


@pytest.fixture
def manage(cloud: spoiled.Cloud) -> Callable[..., Done]:
    def run(*words: str, **environment: str) -> Done:
        return children.finish(
            [
                deployment.program("cyborg-manage"),
                "--config-file",
                str(cloud.made.configuration),
                "--nodebug",
                *words,
            ],
            seconds=300,
            environment={**os.environ, **environment},
        )

    return run


def told(done: Done) -> Any:
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def keys(listed: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["kind"], one["uuid"]) for one in listed}


def test_all_that_is_spoiled_is_found_and_healed_while_services_run(
    cloud: spoiled.Cloud, manage: Callable[..., Done]
) -> None:
    sound = manage("audit", "--format", "json")
    assert sound.returncode == NOTHING_WRONG, sound.stdout + sound.stderr
    assert told(sound) == {"findings": [], "unchecked": []}
    expected = {
        (kind.value, spoil(site))
        for site, (spoil, kind) in zip(
            cloud.sites, SPOILS.items(), strict=False
        )
    }

    found = manage("audit", "--format", "json")
    table = manage("audit")

    assert found.returncode == table.returncode == FOUND, found.stderr
    listed = told(found)["findings"]
    assert expected <= keys(listed), expected - keys(listed)
    lines = table.stdout.splitlines()
    assert len(lines) == 1 + len(listed), table.stdout
    for kind, uuid in expected:
        assert any(kind in line and uuid in line for line in lines)

    before = cloud.dump()
    dry = manage("heal", "--dry-run", "--format", "json")
    assert dry.returncode == FOUND
    assert keys(told(dry)["outcomes"]) == keys(listed)
    assert cloud.dump() == before

    with used(cloud) as lives, futures.ThreadPoolExecutor(2) as pool:
        heals = [
            pool.submit(manage, "heal", "--format", "json") for _ in range(2)
        ]
        outcomes = [heal.result() for heal in heals]

    assert lives, "nobody used the cloud meanwhile"
    both = [one for done in outcomes for one in told(done)["outcomes"]]
    healed = {
        (one["kind"], one["uuid"]) for one in both if one["result"] == "healed"
    }
    assert expected <= healed, [done.stdout for done in outcomes]
    last = manage("audit", "--format", "json")
    assert (last.returncode, told(last)["findings"]) == (NOTHING_WRONG, [])
    assert cloud.made.tracebacks() == {}


class used:  # noqa: N801 - read as a word
    """Instances come and go meanwhile on the last card; how many came."""

    def __init__(self, cloud: spoiled.Cloud) -> None:
        self._site = cloud.sites[-1]
        self._over = threading.Event()
        self._pool = futures.ThreadPoolExecutor(1)
        self._lives: list[str] = []

    def _live(self) -> None:
        while not self._over.is_set():
            server = self._site.start()
            self._lives.append(server.uuid)
            self._site.end(server)

    def __enter__(self) -> list[str]:
        self._running = self._pool.submit(self._live)
        return self._lives

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._running.result(120)


def test_what_nova_cannot_tell_of_is_left_alone(
    cloud: spoiled.Cloud, manage: Callable[..., Done]
) -> None:
    site = cloud.sites[-1]
    server = site.start()
    del cloud.nova.servers[server.uuid]
    before = cloud.dump()

    with cloud.nova.away():
        away = manage("heal", "--format", "json")
    cloud.nova.shows_all = False
    try:
        blind = manage("heal", "--format", "json")
    finally:
        cloud.nova.shows_all = True
    unasked = manage("heal", "--format", "json", OS_NOVA__ENABLED="false")

    assert away.returncode == blind.returncode == UNCHECKED
    arqs = cloud.world.all(models.AcceleratorRequest)
    instances = {arq.instance_uuid for arq in arqs if arq.instance_uuid}
    for done, count in ((away, len(instances)), (blind, 1)):
        assert told(done)["outcomes"] == []
        (missed,) = told(done)["unchecked"]
        assert missed["what"] == f"whether {count} instances still exist"
    assert unasked.returncode == NOTHING_WRONG, unasked.stdout
    unlikely = manage("heal", "--format", "json")
    assert unlikely.returncode == UNCHECKED
    (missed,) = told(unlikely)["unchecked"]
    assert "Placement still has" in missed["why"]
    assert cloud.dump() == before

    cloud.placement.release(server.uuid)
    healed = manage("heal", "--kind", "orphaned-arq", "--format", "json")
    assert healed.returncode == NOTHING_WRONG, healed.stdout
    assert keys(told(healed)["outcomes"]) == {
        ("orphaned-arq", server.arq_uuids[0])
    }
    assert manage("heal").returncode == NOTHING_WRONG
    assert manage("audit").stdout == "Nothing is wrong.\n"


def test_what_is_down_is_named(
    cloud: spoiled.Cloud, manage: Callable[..., Done]
) -> None:
    nowhere = f"127.0.0.1:{resources.free_port()}"

    placement = manage(
        "audit",
        "--format",
        "json",
        OS_PLACEMENT__ENDPOINT_OVERRIDE=f"http://{nowhere}",
    )
    database = manage(
        "audit",
        OS_DATABASE__CONNECTION=f"mysql+pymysql://nobody@{nowhere}/cyborg",
    )
    mistake = manage("audit", "--kind", "no-such-kind")

    assert placement.returncode == UNCHECKED, placement.stderr
    assert "providers of 1 hosts" in {
        one["what"] for one in told(placement)["unchecked"]
    }
    assert database.returncode == UNCHECKED
    assert database.stderr.endswith(
        "Nothing was looked at: The database does not answer.\n"
    ), database.stderr
    assert "Traceback" not in database.stderr
    assert mistake.returncode == MISTAKE
    assert "no-such-kind" in mistake.stderr


def test_what_two_guests_have_is_explained_and_left_alone(
    cloud: spoiled.Cloud, manage: Callable[..., Done]
) -> None:
    site = cloud.sites[-1]
    first, second = site.start(), site.start()
    row = cloud.world.arq(first.arq_uuids[0])
    other = cloud.world.arq(second.arq_uuids[0])
    (unit,) = [
        one.uuid
        for one in cloud.world.all(models.AttachHandle)
        if one.id == other.attach_handle_id
    ]
    cloud.world.execute(
        sa.update(models.AcceleratorRequest)
        .where(models.AcceleratorRequest.id == other.id)
        .values(attach_handle_id=row.attach_handle_id)
    )

    done = manage("heal", "--kind", "shared-handle", "--format", "json")

    assert done.returncode == FOUND
    (outcome,) = told(done)["outcomes"]
    assert outcome["result"] == "refused"
    assert first.uuid in outcome["explanation"]
    assert second.uuid in outcome["explanation"]
    site.end(second)
    assert manage("audit", "--kind", "shared-handle").returncode == 0
    site.end(first)
    cloud.settle()
    # The unit that the second had is held by nobody now.
    left = manage("heal", "--format", "json")
    assert left.returncode == NOTHING_WRONG, left.stdout
    assert keys(told(left)["outcomes"]) == {("unheld-handle", unit)}

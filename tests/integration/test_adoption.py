# SPDX-License-Identifier: Apache-2.0
"""A cloud of the deployed service is taken over, with its instances.

Its database (both revisions, MariaDB and PostgreSQL) and its providers and
allocations in Placement are as that service left them; then come
`cyborg-dbsync upgrade` and our own processes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg.db import migration
from tests import databases
from tests import deployed
from tests import rows
from tests.integration import children
from tests.integration import cloud as cloud_module
from tests.integration import deployment
from tests.integration import resources
from tests.sysfs import SysfsTree

SECONDS = 60

BOUND = "82b51b86-e772-57c7-9b1f-0f2443b59614"
BOUND_INSTANCE = "b406fa99-1592-515f-aa9c-ab6394ffdc2f"
FAILED_INSTANCE = "0bcdca12-9bce-581b-bc82-a856f3c80bc7"
STUCK = "7bdbf291-063d-5eab-8c81-57701b2d596f"
DELETING = "ad588108-4caa-5673-a68a-223fe434462a"
GPU_PROVIDER = "5aa11f72-d806-325a-bdcb-450761a4e3ee"
FPGA_PROVIDER = "d906176d-d4e8-3603-9b5c-eca5d8118c7c"

NEWCOMER = "11111111-2222-4333-8444-555555555555"
"""An instance that is to get what is still free."""

OWNERLESS = {
    "a5d7bd57-2f0a-4b53-9a0e-6b6c1f6f0a01": (
        "e1d0a3a4-55f4-4a1e-8a0c-0d2f4d6b7c01"
    ),
    "a5d7bd57-2f0a-4b53-9a0e-6b6c1f6f0a02": (
        "e1d0a3a4-55f4-4a1e-8a0c-0d2f4d6b7c02"
    ),
}
"""ARQs that a release before 2023.2 left without a project, and the
instances of theirs: the first has a handle, the binding of the second one
failed."""

INSERT = """\
INSERT INTO extended_accelerator_requests
(created_at, uuid, project_id, state, device_profile_id, hostname,
 device_rp_uuid, attach_handle_id, substate, deployable_id,
 device_profile_group_id, instance_uuid)
VALUES ('2026-03-01 10:00:00', '{uuid}', {project}, '{state}', 1, '{host}',
 {provider}, {handle}, 'Initial', {deployable}, 0, {instance})
"""
"""As the deployed service writes one, by the columns that it knows."""

AGENT = """
[agent]
enabled_drivers = nvidia_gpu_driver
sysfs_root = {root}
resource_provider_name = compute-2
[DEFAULT]
host = compute-2
"""


class Adopted:
    """The cloud as the deployed service left it."""

    def __init__(
        self, cyborg: deployment.Deployment, revision: str, tree: Path
    ) -> None:
        self.cyborg = cyborg
        self.revision = revision
        self.content = rows.rows_of(rows.dump(revision))
        self.placement = cyborg.cloud.placement
        self.roots: dict[str, str] = {}
        self.consumers: list[str] = []
        cyborg.host = cyborg.provider_name = "compute-2"
        with cyborg.configuration.open("a") as file:
            file.write(AGENT.format(root=tree))
        with databases.opened(cyborg.database) as database:
            deployed.load(database, revision)
        self._add_ownerless()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """What a plain statement gives, committed."""
        plain = sa.create_engine(
            self.cyborg.database, poolclass=sa.pool.NullPool
        )
        with plain.begin() as connection:
            result = connection.exec_driver_sql(statement)
            return (
                [tuple(row) for row in result] if result.returns_rows else []
            )

    def _add_ownerless(self) -> None:
        (held, failed), (here, there) = OWNERLESS, OWNERLESS.values()
        self.sql("UPDATE attach_handles SET in_use = true WHERE id = 2")
        self.sql(
            INSERT.format(
                uuid=held,
                project="NULL",
                state="Bound",
                host="compute-1",
                provider=f"'{FPGA_PROVIDER}'",
                handle=2,
                deployable=2,
                instance=f"'{here}'",
            )
        )
        self.sql(
            INSERT.format(
                uuid=failed,
                project="NULL",
                state="BindFailed",
                host="compute-1",
                provider=f"'{FPGA_PROVIDER}'",
                handle="NULL",
                deployable="NULL",
                instance=f"'{there}'",
            )
        )

    def fill_placement(self) -> None:
        """Roots as nova-compute made them, and what hangs below them."""
        hosts = {row["id"]: row["hostname"] for row in self.content["devices"]}
        for name in sorted(set(hosts.values())):
            self.roots[name] = self.placement.make_root(name)
        for row in self.content["deployables"]:
            if row["rp_uuid"]:
                self._add_provider(row, self.roots[hosts[row["device_id"]]])
        for instance, provider, name in (
            (BOUND_INSTANCE, GPU_PROVIDER, "PGPU"),
            (OWNERLESS[next(iter(OWNERLESS))], FPGA_PROVIDER, "FPGA"),
        ):
            self.consumers.append(instance)
            self.placement.allocate(
                instance,
                {
                    "allocations": {provider: {"resources": {name: 1}}},
                    "mappings": {"_device_profile_0": [provider]},
                },
                self.cyborg.cloud.keystone.projects["demo"],
            )

    def _add_provider(self, row: dict[str, Any], root: str) -> None:
        attributes = {
            one["key"]: one["value"]
            for one in self.content["attributes"]
            if one["deployable_id"] == row["id"]
        }
        traits = sorted(
            value
            for key, value in attributes.items()
            if key.startswith("trait")
        )
        name = attributes["rc"]
        ask = self.placement.request
        ask(
            "POST",
            "/resource_providers",
            {
                "name": row["name"],
                "uuid": row["rp_uuid"],
                "parent_provider_uuid": root,
            },
        )
        for kind, word in (("resource_classes", name), *_traits(traits)):
            if word.startswith("CUSTOM_"):
                ask("PUT", f"/{kind}/{word}")
        path = f"/resource_providers/{row['rp_uuid']}"
        total = row["num_accelerators"]
        ask(
            "PUT",
            f"{path}/inventories",
            {
                "resource_provider_generation": 0,
                "inventories": {name: {"total": total, "max_unit": total}},
            },
        )
        ask(
            "PUT",
            f"{path}/traits",
            {"resource_provider_generation": 1, "traits": traits},
        )

    def clean_up(self) -> None:
        """Other tests make providers of the same uuids."""
        self.cyborg.cloud.nova.servers.clear()
        for consumer in self.consumers:
            self.placement.release(consumer)
        for root in self.roots.values():
            for provider in (
                *self.placement.children_of(root),
                {"uuid": root},
            ):
                self.placement.request(
                    "DELETE", f"/resource_providers/{provider['uuid']}"
                )

    def providers(self, host: str) -> dict[str, str]:
        """Name -> uuid below a host's root."""
        return {
            one["name"]: one["uuid"]
            for one in self.placement.children_of(self.roots[host])
        }

    def allocated(self, provider: str) -> dict[str, Any]:
        found = self.placement.request(
            "GET", f"/resource_providers/{provider}/allocations"
        )["allocations"]
        return {consumer: one["resources"] for consumer, one in found.items()}

    def command(self, *words: str) -> tuple[int, str]:
        """How one of our programs ends, and what it says."""
        name, *arguments = words
        ended = children.finish(
            [
                deployment.program(name),
                "--config-file",
                str(self.cyborg.configuration),
                *arguments,
            ]
        )
        assert "Traceback" not in ended.stdout + ended.stderr
        return ended.returncode, ended.stdout

    def check(self) -> tuple[int, dict[str, dict[str, Any]]]:
        """The exit code of `cyborg-status upgrade check`, and its answers."""
        code, said = self.command(
            "cyborg-status", "upgrade", "check", "--json"
        )
        answers = json.loads(said.splitlines()[-1])["checks"]
        return code, {one["check"]: one for one in answers}


def _traits(names: list[str]) -> list[tuple[str, str]]:
    return [("traits", name) for name in names]


@pytest.fixture(
    scope="module",
    params=[
        (kind, revision)
        for kind in databases.SERVERS
        for revision in migration.ADOPTED
    ],
    ids="-".join,
)
def adopted(
    request: pytest.FixtureRequest,
    deploy: deployment.Deploy,
    cloud: cloud_module.Cloud,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Adopted]:
    """Upgraded, but nothing runs yet; `check` was asked before and after."""
    kind, revision = request.param
    tree = SysfsTree(tmp_path_factory.mktemp("host") / "sys")
    tree.add_nvidia_t4("0000:3b:00.0")
    made = Adopted(deploy(kind, prepared=False), revision, tree.root)
    with contextlib.ExitStack() as stack:
        stack.callback(made.clean_up)
        stack.callback(made.cyborg.stop)
        made.fill_placement()
        yield made


def test_the_upgrade_keeps_every_row_and_is_checked_before_and_after(
    adopted: Adopted,
) -> None:
    code, before = adopted.check()
    assert code == 1
    assert adopted.revision in before["Database schema"]["details"]
    assert before["Projects of accelerator requests"]["details"].startswith(
        "3 accelerator requests"
    )
    # Placement knows that nothing is CUSTOM_X and that FPGAs are there.
    assert before["Device profiles"]["details"] == (
        "No device known today satisfies the device profiles odd, two-groups."
    )
    for _ in range(2):
        assert adopted.command("cyborg-dbsync", "upgrade")[0] == 0
    code, after = adopted.check()
    assert code == 1
    assert after["Database schema"]["result"] == 0
    assert after["Device profiles"] == before["Device profiles"]
    with databases.opened(adopted.cyborg.database) as database:
        content = dict(adopted.content)
        del content["attach_handles"]
        found = rows.stored(database, content)
    requests = "extended_accelerator_requests"
    found[requests] = [
        row for row in found[requests] if row["uuid"] not in OWNERLESS
    ]
    assert found == content


def test_projects_are_filled_from_nova(adopted: Adopted) -> None:
    """Before a conductor of ours runs, which would do it too."""
    nova = adopted.cyborg.cloud.nova
    command = ("cyborg-dbsync", "online_data_migrations")
    with nova.away():
        assert adopted.command(*command)[0] == 2
    project = adopted.cyborg.cloud.keystone.projects["demo"]
    nova.servers |= dict.fromkeys(OWNERLESS.values(), project)
    assert adopted.command(*command, "--max-count", "1")[0] == 1
    assert adopted.command(*command)[0] == 0
    assert adopted.command(*command)[0] == 0
    details = adopted.check()[1]["Projects of accelerator requests"]["details"]
    assert details.startswith("1 accelerator requests have no project")


def test_every_request_is_served_before_any_agent_of_ours_runs(
    adopted: Adopted,
) -> None:
    cyborg = adopted.cyborg
    cyborg.start_conductor()
    cyborg.start_api()
    admin = cyborg.caller("admin", "nova")
    uuids = {
        row["uuid"] for row in adopted.content["extended_accelerator_requests"]
    } | set(OWNERLESS)

    # What the deployed service had begun is brought to an end.
    resources.wait_until(
        lambda: (
            _states(admin).get(STUCK) == "BindFailed"
            and DELETING not in _states(admin)
        ),
        SECONDS,
        "nothing is half done",
    )
    assert set(_states(admin)) == uuids - {DELETING}
    for uuid in uuids - {DELETING}:
        assert admin.get(f"/v2/accelerator_requests/{uuid}")["uuid"] == uuid
    for path in ("devices", "deployables", "device_profiles"):
        listed = admin.get(f"/v2/{path}")[path]
        assert {one["uuid"] for one in listed} == {
            row["uuid"] for row in adopted.content[path]
        }

    member = cyborg.caller("demo-member")
    assert set(OWNERLESS) <= set(_states(member))
    assert BOUND not in _states(member)

    # Nova asks for its instances.
    poll = "/v2/accelerator_requests?bind_state=resolved&instance="
    (bound,) = admin.get(poll + BOUND_INSTANCE)["arqs"]
    assert bound["uuid"] == BOUND
    assert bound["state"] == "Bound"
    assert bound["attach_handle_type"] == "PCI"
    assert bound["attach_handle_info"]["bus"] == "3b"
    for instance, state in (
        (FAILED_INSTANCE, "BindFailed"),
        *zip(OWNERLESS.values(), ("Bound", "BindFailed"), strict=True),
    ):
        (found,) = admin.get(poll + instance)["arqs"]
        assert found["state"] == state

    # Nobody gets what an instance has: one FPGA is left of two.
    fpga = cyborg.make_profile([{"resources:FPGA": "1"}])
    _binds(cyborg, "gpu", GPU_PROVIDER, "compute-2", 409)
    second = _binds(cyborg, fpga, FPGA_PROVIDER, "compute-1", 202)
    _binds(cyborg, fpga, FPGA_PROVIDER, "compute-1", 409)
    admin.delete(f"/v2/accelerator_requests?arqs={second}")
    admin.delete(f"/v2/device_profiles?value={fpga}")
    taken = {
        row[0]
        for row in adopted.sql("SELECT id FROM attach_handles WHERE in_use")
    }
    assert {1, 2} <= taken


def _states(admin: deployment.Caller) -> dict[str, str]:
    return {
        arq["uuid"]: arq["state"]
        for arq in admin.get("/v2/accelerator_requests")["arqs"]
    }


def _binds(
    cyborg: deployment.Deployment,
    profile: str,
    provider: str,
    host: str,
    status: int,
) -> str:
    """The ARQ whose bind on a provider is answered so; if it is refused,
    because nothing is free, the ARQ is deleted."""
    caller = cyborg.caller("demo-member", "nova")
    (arq,) = caller.post(
        "/v2/accelerator_requests", {"device_profile_name": profile}
    )["arqs"]
    body = {arq["uuid"]: deployment.bind_patch(provider, NEWCOMER, host)}
    answer = caller.request("PATCH", "/v2/accelerator_requests", body, None)
    assert answer.status_code == status, answer.text
    if status == 409:
        assert "no free" in answer.text
        caller.delete(f"/v2/accelerator_requests?arqs={arq['uuid']}")
    return str(arq["uuid"])


def test_providers_keep_their_uuids_and_allocations_when_an_agent_reports(
    adopted: Adopted,
) -> None:
    cyborg = adopted.cyborg
    before = {host: adopted.providers(host) for host in adopted.roots}
    (card,) = adopted.sql("SELECT id, uuid FROM devices WHERE id = 1")
    cyborg.start_agent()

    def reported() -> bool:
        found = adopted.sql("SELECT driver FROM devices WHERE id = 1")
        traits = adopted.placement.traits(GPU_PROVIDER)
        return found == [("nvidia_gpu_driver",)] and len(traits) > 2

    resources.wait_until(reported, SECONDS, "the agent's card is in Placement")
    assert adopted.sql("SELECT id, uuid FROM devices WHERE id = 1") == [card]
    assert adopted.providers("compute-1") == before["compute-1"]
    after = adopted.providers("compute-2")
    assert after["compute-2_0000:3b:00.0"] == GPU_PROVIDER
    # Nothing that is new, and nothing renamed.
    assert after.items() <= before["compute-2"].items()
    assert adopted.allocated(GPU_PROVIDER) == {BOUND_INSTANCE: {"PGPU": 1}}
    (_, there) = (OWNERLESS[uuid] for uuid in OWNERLESS)
    first = OWNERLESS[next(iter(OWNERLESS))]
    assert adopted.allocated(FPGA_PROVIDER) == {first: {"FPGA": 1}}
    assert there not in adopted.allocated(FPGA_PROVIDER)
    inventory = adopted.placement.inventory(GPU_PROVIDER)["PGPU"]
    assert (inventory["total"], inventory["reserved"]) == (1, 0)
    _binds(cyborg, "gpu", GPU_PROVIDER, "compute-2", 409)
    admin = cyborg.caller("admin", "nova")
    (bound,) = admin.get(
        f"/v2/accelerator_requests?bind_state=resolved"
        f"&instance={BOUND_INSTANCE}"
    )["arqs"]
    assert bound["attach_handle_info"]["bus"] == "3b"


def test_the_deployed_services_statements_still_work(
    adopted: Adopted,
) -> None:
    uuid = "0f0f0f0f-0000-4000-8000-000000000001"
    values = {
        "uuid": uuid,
        "project": "'somebody'",
        "state": "Initial",
        "host": "",
        "provider": "NULL",
        "handle": "NULL",
        "deployable": "NULL",
        "instance": "NULL",
    }
    adopted.sql(INSERT.format(**values))
    adopted.sql(
        "UPDATE extended_accelerator_requests SET state = 'Bound', "
        f"attach_handle_id = 5 WHERE uuid = '{uuid}'"
    )
    adopted.sql("UPDATE attach_handles SET in_use = true WHERE id = 5")
    assert adopted.sql(
        "SELECT a.state, h.in_use FROM extended_accelerator_requests a "
        "JOIN attach_handles h ON h.id = a.attach_handle_id "
        f"WHERE a.uuid = '{uuid}'"
    ) == [("Bound", True)]
    admin = adopted.cyborg.caller("admin", "nova")
    assert _states(admin)[uuid] == "Bound"
    admin.delete(f"/v2/accelerator_requests?arqs={uuid}")
    assert adopted.sql("SELECT in_use FROM attach_handles WHERE id = 5") == [
        (False,)
    ]


def test_everything_can_be_deleted(adopted: Adopted) -> None:
    admin = adopted.cyborg.caller("admin", "nova")
    for instance in (BOUND_INSTANCE, FAILED_INSTANCE, *OWNERLESS.values()):
        admin.delete(f"/v2/accelerator_requests?instance={instance}")
    for uuid in _states(admin):
        admin.delete(f"/v2/accelerator_requests?arqs={uuid}")
    assert _states(admin) == {}
    held = adopted.sql("SELECT id FROM attach_handles WHERE in_use")
    assert not {(1,), (2,)} & set(held)
    for row in adopted.content["device_profiles"]:
        admin.delete(f"/v2/device_profiles/{row['uuid']}")
    assert adopted.cyborg.tracebacks() == {}

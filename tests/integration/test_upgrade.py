# SPDX-License-Identifier: Apache-2.0
"""From the release before RPC 1.1 to ours, while clients go on.

Two API processes, two conductors and an agent of that release, on its own
schema.  The schema is upgraded under them; then they are replaced one by
one, and each mix bears clients that forgive nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.integration import deployment
from tests.integration import instance
from tests.integration import load
from tests.integration import older_release
from tests.integration import resources

CLIENTS = 4
CARDS = """\
- {address: "0000:0c:00.0", traits: [CUSTOM_BUSY]}
- {address: "0000:0d:00.0", traits: [CUSTOM_SPARE], model: spare}
"""
"""The clients share the first; the second is the operator's."""

BUSY = {"resources:FPGA": "1", "trait:CUSTOM_BUSY": "required"}
SPARE = {"resources:FPGA": "1", "trait:CUSTOM_SPARE": "required"}
PINS = {
    "OS_UPGRADE_LEVELS__AGENT": "1.0",
    "OS_UPGRADE_LEVELS__CONDUCTOR": "1.0",
}


class Site:
    """A Cyborg whose every process can be of either release."""

    def __init__(
        self,
        cyborg: deployment.Deployment,
        tree: Path,
        ours: Mapping[str, str],
    ) -> None:
        self.cyborg = cyborg
        self.older = {"PYTHONPATH": str(tree)}
        self.ours = ours
        self.ports = (cyborg.port, resources.free_port())
        self.balance = load.Balance(*self.ports)

    def start(self) -> None:
        """All of it, of the older release."""
        self.cyborg.run("cyborg-dbsync", "upgrade", environment=self.older)
        self.cyborg.root = self.cyborg.cloud.placement.make_root(
            self.cyborg.provider_name
        )
        for number, port in enumerate(self.ports):
            self.cyborg.start_conductor(f"conductor-{number}", self.older)
            self.cyborg.start_api(f"api-{number}", port, self.older)
        self.cyborg.start_agent(self.older)
        self.cyborg.wait_for_providers(2)

    def _replace(self, label: str, start: Callable[[], None]) -> None:
        """Stop a process as its supervisor does, and start one of ours."""
        assert self.cyborg.processes[label].stop() == 0
        start()

    def replace_api(self, number: int) -> None:
        label, port = f"api-{number}", self.ports[number]
        with self.balance.drained(port):
            self._replace(
                label, lambda: self.cyborg.start_api(label, port, self.ours)
            )

    def replace_conductor(self, number: int) -> None:
        label = f"conductor-{number}"
        self._replace(
            label, lambda: self.cyborg.start_conductor(label, self.ours)
        )

    def replace_agent(self) -> None:
        self._replace("agent", lambda: self.cyborg.start_agent(self.ours))

    def rows(self, query: str) -> int:
        """The one number that a query counts."""
        engine = sa.create_engine(
            self.cyborg.database, poolclass=sa.pool.NullPool
        )
        with engine.connect() as connection:
            return int(connection.execute(sa.text(query)).scalar_one())


class Operator:
    """What an administrator does in each mix, through each API."""

    def __init__(self, site: Site) -> None:
        self._cyborg = cyborg = site.cyborg
        self._ports = site.ports
        (self._provider,) = (
            uuid
            for uuid in cyborg.providers().values()
            if "CUSTOM_SPARE" in cyborg.cloud.placement.traits(uuid)
        )

    def works(self) -> None:
        for port in self._ports:
            self._disables_and_enables(port)
            self._programs(port)

    def gives_a_reason(self, status: int) -> None:
        """Ask for what the older release could not do; what is pinned to it
        says so."""
        admin = self._cyborg.caller("admin")
        answer = admin.request(
            "POST",
            f"/v2/devices/{self._card(admin)}/disable",
            {"reason": "a fan"},
            "2.4",
        )
        assert answer.status_code == status, answer.text
        if status == 409:
            assert "older release" in answer.text
        admin.post(f"/v2/devices/{self._card(admin)}/enable", status=204)
        self._wait_reserved(0)

    def _card(self, admin: deployment.Caller) -> str:
        (uuid,) = (
            one["uuid"]
            for one in admin.get("/v2/devices")["devices"]
            if one["model"] == "spare"
        )
        return str(uuid)

    def _wait_reserved(self, amount: int) -> None:
        placement = self._cyborg.cloud.placement
        resources.wait_until(
            lambda: (
                placement.inventory(self._provider)["FPGA"]["reserved"]
                == amount
            ),
            load.PATIENCE,
            f"Placement reserves {amount}",
        )

    def _disables_and_enables(self, port: int) -> None:
        admin = self._cyborg.caller("admin", None, port)
        for action, reserved in (("disable", 16), ("enable", 0)):
            admin.post(f"/v2/devices/{self._card(admin)}/{action}", status=204)
            self._wait_reserved(reserved)

    def _programs(self, port: int) -> None:
        """An instance whose card an agent programs, on a profile that is
        made and deleted."""
        cyborg = self._cyborg
        image = cyborg.cloud.glance.add(f"bitstream {port}".encode())
        profile = cyborg.make_profile([{**SPARE, "accel:bitstream_id": image}])
        server = instance.Instance(cyborg, profile, port)
        resources.wait_until(
            lambda: _is_scheduled(server), load.PATIENCE, "a free accelerator"
        )
        server.request()
        server.bind()
        (bound,) = server.wait_resolved()
        assert bound["state"] == "Bound"
        assert bound["device_rp_uuid"] == self._provider
        (event,) = cyborg.cloud.nova.wait_for(server.uuid, 1)
        assert event["status"] == "completed"
        server.delete()
        admin = cyborg.caller("admin", None, port)
        admin.delete(f"/v2/device_profiles?value={profile}")


def _is_scheduled(server: instance.Instance) -> bool:
    """Of two conductors the later one may bring Placement older rows, and
    mends that at once: the card can be closed again for a moment.
    """
    try:
        server.schedule()
    except AssertionError:
        return False
    return True


def _api_first(site: Site) -> list[Callable[[], None]]:
    """As kolla-ansible does it on each host."""
    return [
        lambda: site.replace_api(0),
        lambda: site.replace_api(1),
        lambda: site.replace_conductor(0),
        lambda: site.replace_conductor(1),
        site.replace_agent,
    ]


def _agent_first(site: Site) -> list[Callable[[], None]]:
    """As it happens where compute nodes are no part of the same run."""
    return [
        site.replace_agent,
        lambda: site.replace_conductor(0),
        lambda: site.replace_conductor(1),
        lambda: site.replace_api(0),
        lambda: site.replace_api(1),
    ]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source tree of the older release."""
    return older_release.source(tmp_path_factory.mktemp("older"))


@pytest.fixture
def site(
    deploy: deployment.Deploy,
    older: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> Iterator[Site]:
    cards = tmp_path / "cards.yaml"
    cards.write_text(CARDS)
    kind, ours = request.param
    cyborg = judged(
        deploy(kind, prepared=False, fake={"inventory_file": str(cards)})
    )
    made = Site(cyborg, older, ours)
    made.start()
    yield made
    cyborg.stop()


@pytest.mark.parametrize(
    ("site", "order"),
    [
        (("mariadb", {}), _api_first),
        (("postgresql", PINS), _agent_first),
    ],
    ids=["mariadb", "postgresql-pinned"],
    indirect=["site"],
)
def test_no_request_fails_while_each_process_is_replaced(
    site: Site, order: Callable[[Site], list[Callable[[], None]]]
) -> None:
    cyborg = site.cyborg
    profile = cyborg.make_profile([BUSY])
    operator = Operator(site)
    providers = cyborg.providers()
    survivor = instance.Instance(cyborg, profile)
    (kept,) = survivor.boot()

    clients = load.Load(cyborg, profile, site.balance, CLIENTS)
    clients.start()
    try:
        clients.goes_on()
        cyborg.run("cyborg-dbsync", "upgrade")
        clients.goes_on()
        operator.works()
        for step in order(site):
            step()
            clients.goes_on()
            operator.works()
    finally:
        lives = clients.stop()

    assert lives >= 7 * CLIENTS
    (found,) = survivor.poll()
    assert load.settled(found) == load.settled(kept)
    assert cyborg.providers() == providers
    operator.gives_a_reason(409 if site.ours else 204)
    _nothing_else_is_left(site, survivor)
    assert cyborg.tracebacks() == {}


def _nothing_else_is_left(site: Site, survivor: instance.Instance) -> None:
    cyborg = site.cyborg
    held = {survivor.providers[0]: 1}
    assert cyborg.handles_in_use() == 1
    assert site.rows("SELECT count(*) FROM extended_accelerator_requests") == 1
    for provider in cyborg.providers().values():
        placement = cyborg.cloud.placement
        usages = placement.request(
            "GET", f"/resource_providers/{provider}/usages"
        )["usages"]
        assert usages == {"FPGA": held.get(provider, 0)}
        inventory = placement.inventory(provider)["FPGA"]
        assert (inventory["total"], inventory["reserved"]) == (16, 0)
    survivor.delete()
    assert cyborg.handles_in_use() == 0

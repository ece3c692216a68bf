# SPDX-License-Identifier: Apache-2.0
"""Clients that use Cyborg without a pause, and forgive nothing.

Each leads one instance after another from its allocation to its end and
looks at every answer; the first one that is wrong ends it, and the test.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any

from tests.integration import deployment
from tests.integration import instance

PATIENCE = 120


def settled(arq: dict[str, Any]) -> dict[str, Any]:
    """What a bound ARQ keeps; that Nova was told is noted in its row."""
    return {key: arq[key] for key in arq if key != "updated_at"}


class Balance:
    """Which API processes new instances are sent to, as a load balancer
    does it.
    """

    def __init__(self, *ports: int) -> None:
        self._ports = list(ports)
        self._busy: Counter[int] = Counter()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def port(self) -> Iterator[int]:
        """The least busy process that takes new instances."""
        with self._changed:
            chosen = min(self._ports, key=lambda port: self._busy[port])
            self._busy[chosen] += 1
        try:
            yield chosen
        finally:
            with self._changed:
                self._busy[chosen] -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def drained(self, port: int) -> Iterator[None]:
        """Send nothing to this one meanwhile; what it has is finished."""
        with self._changed:
            self._ports.remove(port)
            assert self._ports, "no API would be left"
            assert self._changed.wait_for(
                lambda: not self._busy[port], PATIENCE
            ), f"port {port} is still busy"
        yield
        with self._changed:
            self._ports.append(port)


class Load:
    """So many clients between `start` and `stop`."""

    def __init__(
        self,
        cyborg: deployment.Deployment,
        profile: str,
        balance: Balance,
        clients: int,
    ) -> None:
        self._cyborg = cyborg
        self._profile = profile
        self._balance = balance
        self._over = threading.Event()
        self._lived = threading.Condition()
        self._lives = [0] * clients
        self._scheduler = threading.Lock()
        self._pool = futures.ThreadPoolExecutor(clients)
        self._clients: list[futures.Future[None]] = []

    def start(self) -> None:
        self._clients = [
            self._pool.submit(self._client, number)
            for number in range(len(self._lives))
        ]

    def stop(self) -> int:
        """How many instances lived; raises what a client saw go wrong."""
        self._over.set()
        for client in self._clients:
            client.result(PATIENCE)
        self._pool.shutdown()
        return sum(self._lives)

    def goes_on(self) -> None:
        """Wait until each client has led an instance that began after this
        call to its end.
        """
        with self._lived:
            # The one after next: the present one began before.
            wanted = [lives + 2 for lives in self._lives]
            assert self._lived.wait_for(
                lambda: (
                    self._failed()
                    or all(
                        has >= wants
                        for has, wants in zip(self._lives, wanted, strict=True)
                    )
                ),
                PATIENCE,
            ), f"the clients are stuck: {self._lives}, {wanted} wanted"
        for client in self._clients:
            if client.done():
                client.result()

    def _failed(self) -> bool:
        return any(client.done() for client in self._clients)

    def _client(self, number: int) -> None:
        try:
            while not self._over.is_set():
                with self._balance.port() as port:
                    self._life(port)
                with self._lived:
                    self._lives[number] += 1
                    self._lived.notify_all()
        finally:
            with self._lived:
                self._lived.notify_all()

    def _life(self, port: int) -> None:
        server = instance.Instance(self._cyborg, self._profile, port)
        with self._scheduler:
            server.schedule()
        server.request()
        (uuid,) = server.arq_uuids
        server.bind()
        (bound,) = server.wait_resolved()
        assert bound["uuid"] == uuid
        assert bound["state"] == "Bound"
        assert bound["instance_uuid"] == server.uuid
        assert bound["device_rp_uuid"] == server.providers[0]
        assert bound["attach_handle_info"]["domain"]
        shown = server.nova.get(f"/v2/accelerator_requests/{uuid}")
        assert settled(shown) == settled(bound)
        mine = server.member.get("/v2/accelerator_requests")["arqs"]
        assert settled(bound) in map(settled, mine)
        assert server.member.get("/v2/device_profiles")["device_profiles"]
        server.delete()
        server.nova.get(f"/v2/accelerator_requests/{uuid}", 404)

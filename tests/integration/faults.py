# SPDX-License-Identifier: Apache-2.0
"""Faults of what a fleet talks to, each for as long as its block lasts."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pymysql

from tests import loopback
from tests import proxy
from tests.integration import cloud as clouds
from tests.integration import fleet as fleets
from tests.integration import resources
from tests.integration import servers

PATIENCE = 120
SMALL_DISK = "64k"
SIDES = 2
FOREIGN_TRAIT = "CUSTOM_OF_AN_OPERATOR"
DEADLOCK = 1213

Fault = Callable[
    [fleets.Fleet, str], contextlib.AbstractContextManager[object]
]


def links(fleet: fleets.Fleet, name: str, *labels: str) -> list[proxy.Proxy]:
    """The proxies of all (or these) processes before one service."""
    return [
        getattr(fleet.links[label], name) for label in labels or fleet.labels()
    ]


# -- a service


class _Failing(loopback.Loopback):
    """A service that answers 500 to everything."""

    def __init__(self) -> None:
        super().__init__()
        self.failure = 500


@contextlib.contextmanager
def _elsewhere(
    fleet: fleets.Fleet, name: str, address: tuple[str, int]
) -> Iterator[None]:
    found = links(fleet, name)
    real = [link.target for link in found]
    for link in found:
        link.target = address
        link.cut()
    try:
        yield
    finally:
        for link, target in zip(found, real, strict=True):
            link.target = target
            link.cut()


@contextlib.contextmanager
def answering_500(fleet: fleets.Fleet, name: str) -> Iterator[_Failing]:
    """It answers 500; what was asked is seen at what the block is given."""
    with _Failing() as failing:
        port = int(failing.url.rpartition(":")[2])
        with _elsewhere(fleet, name, ("127.0.0.1", port)):
            yield failing


@contextlib.contextmanager
def nowhere(fleet: fleets.Fleet, name: str) -> Iterator[None]:
    """Connections to it are broken at once, whatever is healed meanwhile."""
    address = ("127.0.0.1", resources.free_port())
    with _elsewhere(fleet, name, address):
        yield


@contextlib.contextmanager
def _meanwhile(
    fleet: fleets.Fleet,
    name: str,
    begin: Callable[[proxy.Proxy], object],
    end: Callable[[proxy.Proxy], object],
) -> Iterator[None]:
    found = links(fleet, name)
    for link in found:
        begin(link)
    try:
        yield
    finally:
        for link in found:
            end(link)


def away(
    fleet: fleets.Fleet, name: str
) -> contextlib.AbstractContextManager[None]:
    """Its port refuses."""
    return _meanwhile(fleet, name, proxy.Proxy.refuse, proxy.Proxy.heal)


def slow(
    fleet: fleets.Fleet, name: str
) -> contextlib.AbstractContextManager[None]:
    """What it says comes half a second later, each way."""
    return _meanwhile(
        fleet, name, lambda link: link.slow(0.5), proxy.Proxy.heal
    )


def silent(
    fleet: fleets.Fleet, name: str
) -> contextlib.AbstractContextManager[None]:
    """It takes connections and says nothing."""

    def heal(link: proxy.Proxy) -> None:
        link.heal()
        link.cut()

    return _meanwhile(fleet, name, proxy.Proxy.stop, heal)


OF_SERVICES: dict[str, Fault] = {
    "answers 500": answering_500,
    "is away": away,
    "is slow": slow,
    "says nothing": silent,
}


@contextlib.contextmanager
def other_writer(placement: clouds.Placement, provider: str) -> Iterator[None]:
    """Somebody else writes the provider, as an operator does, again and
    again."""
    placement.request("PUT", f"/traits/{FOREIGN_TRAIT}")
    over = threading.Event()
    with futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(_write_always, placement, provider, over)
        try:
            yield
        finally:
            over.set()
            other.result(PATIENCE)
            while not _write(placement, provider, _without):
                pass


def _without(traits: set[str], mine: set[str]) -> set[str]:
    return traits - mine


def _write_always(
    placement: clouds.Placement,
    provider: str,
    over: threading.Event,
) -> None:
    # Often enough to meet others, and seldom enough to let them through.
    while not over.wait(0.05):
        _write(placement, provider, lambda traits, mine: traits ^ mine)


def _write(
    placement: clouds.Placement,
    provider: str,
    change: Callable[[set[str], set[str]], set[str]],
) -> bool:
    """Whether nobody else wrote the provider in between."""
    path = f"/resource_providers/{provider}/traits"
    try:
        now = placement.request("GET", path)
        now["traits"] = sorted(change(set(now["traits"]), {FOREIGN_TRAIT}))
        placement.request("PUT", path, now)
    except AssertionError as error:
        # Placement has both words for it.
        status = re.search(r'"status": (404|409|500)', str(error))
        if status is None:
            raise
        # Who is deleted has no trait of ours any more.
        return status[1] == "404"
    return True


# -- the database


class Deadlocks:
    """How many there were, and whom the server chose."""

    def __init__(self, mariadb: servers.MariaDB) -> None:
        self._mariadb = mariadb
        self._before = self._all()
        self.of_others = 0

    def _all(self) -> int:
        status = "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'"
        return int(str(self._mariadb.run(status)))

    @property
    def ours(self) -> int:
        """Those in which a transaction of Cyborg's was rolled back."""
        return self._all() - self._before - self.of_others


@contextlib.contextmanager
def deadlocks(mariadb: servers.MariaDB) -> Iterator[Deadlocks]:
    """Transactions go on that lock handles and ARQs in the order in which
    no request locks them."""
    mariadb.run("CREATE DATABASE IF NOT EXISTS sides")
    mariadb.run("CREATE TABLE IF NOT EXISTS sides.weights (weight INT)")
    found = Deadlocks(mariadb)
    over = threading.Event()
    with futures.ThreadPoolExecutor(SIDES) as pool:
        sides = [
            pool.submit(_lock_always, mariadb, found, over)
            for _ in range(SIDES)
        ]
        try:
            yield found
        finally:
            over.set()
        for side in sides:
            side.result(PATIENCE)


def _lock_always(
    mariadb: servers.MariaDB, found: Deadlocks, over: threading.Event
) -> None:
    with (
        pymysql.connect(
            host="127.0.0.1",
            port=mariadb.port,
            user="root",
            database="cyborg",
        ) as connection,
        connection.cursor() as cursor,
    ):
        while not over.wait(0.01):
            try:
                # The server rolls back who has written less.
                cursor.execute(
                    "INSERT INTO sides.weights VALUES "
                    + ", ".join(["(1)"] * 64)
                )
                cursor.execute(
                    "SELECT id FROM extended_accelerator_requests"
                    " WHERE state = 'Bound' LIMIT 4 FOR UPDATE"
                )
                cursor.execute("SELECT id FROM attach_handles FOR UPDATE")
                cursor.execute("SELECT id FROM devices FOR UPDATE")
            except pymysql.err.OperationalError as error:
                if error.args[0] == DEADLOCK:
                    found.of_others += 1
            connection.rollback()


@contextlib.contextmanager
def read_only(mariadb: servers.MariaDB) -> Iterator[None]:
    """Who is no administrator may change nothing."""
    mariadb.run("SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        mariadb.run("SET GLOBAL read_only = 0")


# -- a disk


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of a few pages at the folder."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs"]
    done = subprocess.run(
        [*command, str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        resources.missing(f"nothing can be mounted here: {done.stderr}")
    try:
        yield
    finally:
        # What has a file open there keeps it until it closes that.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)

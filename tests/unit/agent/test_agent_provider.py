# SPDX-License-Identifier: Apache-2.0
"""How the host's root provider is looked for."""

from __future__ import annotations

import logging
import queue
import threading

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg.agent import provider

WAIT = 10


class Placement:
    """Has the providers that a test puts in; tells each look by name."""

    def __init__(self) -> None:
        self.providers: dict[str, str] = {}
        self.error: Exception | None = None
        self.hung = threading.Event()
        self.hung.set()
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def find_provider(self, name: str) -> str | None:
        self.asked.put(name)
        assert self.hung.wait(WAIT)
        if self.error:
            raise self.error
        return self.providers.get(name)


@pytest.fixture
def placement():
    return Placement()


@pytest.fixture
def looking(placement):
    """Makes root providers and stops them at the end."""
    made: list[provider.RootProvider] = []

    def make(
        names=("full.name", "short"), retries=0, period=0.02, found=None
    ) -> provider.RootProvider:
        root = provider.RootProvider(
            names,
            lambda: placement,
            found or (lambda: None),
            quick_retries=retries,
            period=period,
        )
        made.append(root)
        root.start()
        return root

    yield make
    for root in made:
        root.stop()


def test_the_configured_name_is_found_first(placement, looking):
    placement.providers = {"full.name": "uuid-1", "short": "uuid-2"}
    root = looking()
    root.settle(WAIT)
    assert root.current == ("full.name", "uuid-1")


def test_a_provider_under_the_other_name_of_the_host_is_found(
    placement, looking
):
    placement.providers = {"short": "uuid-2"}
    root = looking()
    root.settle(WAIT)
    assert root.current == ("short", "uuid-2")


def test_one_name_twice_is_asked_once(placement, looking):
    looking(names=("same", "same"), period=WAIT).settle(WAIT)
    assert placement.asked.qsize() == 1


def test_a_missing_provider_is_looked_for_until_it_is_there(
    placement, looking, caplog
):
    found = threading.Event()
    with caplog.at_level(logging.INFO, "cyborg.agent.provider"):
        root = looking(found=found.set)
        root.settle(WAIT)
        assert root.current == ("full.name", None)
        for _ in range(8):
            placement.asked.get(timeout=WAIT)
        placement.providers = {"full.name": "uuid-1"}
        assert found.wait(WAIT)
    assert root.current == ("full.name", "uuid-1")
    assert [record.levelname for record in caplog.records] == [
        "WARNING",
        "INFO",
    ]
    assert "full.name or short" in caplog.text


def test_startup_retries_come_with_growing_pauses_and_in_silence(caplog):
    root = provider.RootProvider(
        ["name"], None, lambda: None, quick_retries=4, period=60
    )
    with caplog.at_level(logging.INFO):
        for misses in range(1, 5):
            root._say(misses)
        assert not caplog.records
        root._say(5)
        root._say(6)
    assert len(caplog.records) == 1
    assert [root._pause(misses) for misses in range(7)] == [
        None,
        1,
        2,
        4,
        8,
        60,
        60,
    ]


def test_pauses_stay_within_the_period():
    root = provider.RootProvider(
        ["name"], None, lambda: None, quick_retries=10_000, period=5
    )
    assert max(root._pause(misses) for misses in range(1, 5000)) == 5


def test_an_outage_of_placement_keeps_what_is_known(placement, looking):
    placement.providers = {"full.name": "uuid-1"}
    root = looking()
    root.settle(WAIT)
    placement.error = exception.PlacementUnavailable("down")
    root.refresh(WAIT)
    assert root.current == ("full.name", "uuid-1")
    placement.error = None
    placement.providers = {"full.name": "uuid-2"}
    root.refresh(WAIT)
    assert root.current == ("full.name", "uuid-2")


def test_a_provider_that_was_deleted_is_not_claimed_any_more(
    placement, looking
):
    placement.providers = {"short": "uuid-1"}
    root = looking(period=WAIT)
    root.settle(WAIT)
    placement.providers = {}
    root.refresh(WAIT)
    assert root.current == ("short", None)


def test_whatever_placement_raises_the_look_goes_on(placement, looking):
    found = threading.Event()
    placement.error = ValueError("not JSON")
    root = looking(found=found.set)
    for _ in range(3):
        placement.asked.get(timeout=WAIT)
    placement.providers = {"full.name": "uuid-1"}
    placement.error = None
    assert found.wait(WAIT)
    assert root.current[1] == "uuid-1"


def test_a_hanging_placement_holds_nobody_longer_than_asked(
    placement, looking
):
    placement.hung.clear()
    root = looking()
    placement.asked.get(timeout=WAIT)
    root.settle(0.05)
    assert root.current == ("full.name", None)
    placement.hung.set()
    root.settle(WAIT)


def test_without_placement_the_name_is_known_and_nobody_waits(caplog):
    root = provider.RootProvider(
        ["name"], None, lambda: None, quick_retries=3, period=60
    )
    root.start()
    root.refresh(WAIT)
    assert root.current == ("name", None)
    assert "without Placement" in caplog.text


def test_what_is_wrong_with_placement_is_said_once_in_its_words(
    placement, looking, caplog
):
    placement.error = cfg.Error("[placement] auth_type is not set")
    root = looking()
    for _ in range(6):
        placement.asked.get(timeout=WAIT)
    placement.error = exception.PlacementUnavailable("Placement is down")
    for _ in range(6):
        placement.asked.get(timeout=WAIT)
    root.stop()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "[placement] auth_type" in said[0]
    assert "Placement is down" in said[1]


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ("full.name", ("full.name", "host")),
        ("localhost", ("host", "localhost")),
        ("localhost.localdomain", ("host", "localhost.localdomain")),
        ("localhosts.example", ("localhosts.example", "host")),
    ],
)
def test_a_host_that_cannot_resolve_itself_is_not_called_localhost(
    configured, expected
):
    assert provider.names(configured, "host") == expected

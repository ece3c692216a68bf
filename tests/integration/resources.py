# SPDX-License-Identifier: Apache-2.0
"""Broker vhosts and ports that a test makes for itself.

Each has a unique name and is removed afterwards.  Where the broker
does not answer the test is skipped, or fails when
`CYBORG_TEST_REQUIRE_SERVICES=1` says that it must be there.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.parse
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NoReturn

import amqp
import pytest
import requests

BROKER = os.environ.get("CYBORG_TEST_RABBIT_URL", "guest:guest@127.0.0.1:5672")
MANAGEMENT_URL = os.environ.get(
    "CYBORG_TEST_RABBIT_MANAGEMENT_URL", "http://127.0.0.1:15672"
)
CONNECT_SECONDS = 3


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it where every service must be there."""
    if os.environ.get("CYBORG_TEST_REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def unique_name(purpose: str) -> str:
    """A name that no other run has, legal for every server."""
    return f"cyborg_test_{purpose}_{uuid.uuid4().hex[:12]}"


def free_port() -> int:
    """A loopback port below the ephemeral range that nobody listens on."""
    for port in random.sample(range(20000, 32000), 100):
        with contextlib.closing(socket.socket()) as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port in a hundred tries")


def wait_until(
    condition: Callable[[], object], seconds: float, what: str
) -> None:
    """Look at another process's outside until `condition` holds.

    For what sends no event to us: a port, a queue, a page of another
    process.  Raises AssertionError after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def answers(port: int) -> bool:
    """Whether somebody accepts connections on the loopback port."""
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(CONNECT_SECONDS)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def serves(port: int) -> bool:
    """Whether an API on the loopback port answers.

    That somebody listens is not enough: a service that starts tries its
    port for a moment, before it can serve.
    """
    try:
        requests.get(f"http://127.0.0.1:{port}/", timeout=CONNECT_SECONDS)
    except requests.RequestException:
        return False
    return True


class Vhost:
    """One virtual host of the broker."""

    def __init__(self, name: str, broker: str = BROKER) -> None:
        self.name = name
        self.broker = broker
        self.url = f"rabbit://{broker}/{name}"

    def consumers(self, queue: str) -> int:
        """How many consumers the queue has; 0 where there is none."""
        credentials, _, address = self.broker.rpartition("@")
        user, _, password = credentials.partition(":")
        with amqp.Connection(
            host=address,
            userid=user,
            password=password,
            virtual_host=urllib.parse.unquote(self.name),
            connect_timeout=CONNECT_SECONDS,
        ) as connection:
            try:
                declared = connection.channel().queue_declare(
                    queue, passive=True
                )
            except amqp.NotFound:
                return 0
            return int(declared.consumer_count)

    def cut(self) -> None:
        """Have the broker close every connection to it."""
        if _rules_broker():
            _broker_tool("close_all_connections", "-p", self.name, "tests")
            return
        user, _, password = BROKER.rpartition("@")[0].partition(":")
        found = requests.get(
            f"{MANAGEMENT_URL}/api/vhosts/{self.name}/connections",
            auth=(user, password),
            timeout=CONNECT_SECONDS,
        )
        found.raise_for_status()
        for connection in found.json():
            name = urllib.parse.quote(connection["name"], safe="")
            _manage_broker("DELETE", f"connections/{name}")


def _rules_broker() -> bool:
    """Whether RabbitMQ's own tool may be used."""
    return os.geteuid() == 0 and shutil.which("rabbitmqctl") is not None


def _broker_tool(*arguments: str) -> None:
    subprocess.run(
        ["rabbitmqctl", "--quiet", *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _manage_broker(method: str, path: str, body: Any = None) -> None:
    user, _, password = BROKER.rpartition("@")[0].partition(":")
    requests.request(
        method,
        f"{MANAGEMENT_URL}/api/{path}",
        json=body,
        auth=(user, password),
        timeout=CONNECT_SECONDS,
    ).raise_for_status()


def _make_vhost(name: str) -> None:
    user = BROKER.partition(":")[0]
    if _rules_broker():
        _broker_tool("add_vhost", name)
        _broker_tool("set_permissions", "-p", name, user, ".*", ".*", ".*")
        return
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    _manage_broker("PUT", f"vhosts/{name}")
    _manage_broker("PUT", f"permissions/{name}/{user}", everything)


@contextlib.contextmanager
def broker_user(vhost: Vhost, name: str, password: str) -> Iterator[None]:
    """A user of the broker who may do everything in the vhost."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    here = os.geteuid() == 0 and shutil.which("rabbitmqctl")
    if here:
        _broker_tool("add_user", name, password)
        _broker_tool("set_permissions", "-p", vhost.name, name, *[".*"] * 3)
    else:
        _manage_broker(
            "PUT", f"users/{name}", {"password": password, "tags": ""}
        )
        _manage_broker("PUT", f"permissions/{vhost.name}/{name}", everything)
    try:
        yield
    finally:
        if here:
            _broker_tool("delete_user", name)
        else:
            _manage_broker("DELETE", f"users/{name}")


def _remove_vhost(name: str) -> None:
    if _rules_broker():
        _broker_tool("delete_vhost", name)
        return
    _manage_broker("DELETE", f"vhosts/{name}")


@contextlib.contextmanager
def vhost(purpose: str) -> Iterator[Vhost]:
    """An empty virtual host of RabbitMQ."""
    address = urllib.parse.urlsplit(f"amqp://{BROKER}")
    try:
        socket.create_connection(
            (address.hostname or "127.0.0.1", address.port or 5672),
            CONNECT_SECONDS,
        ).close()
    except OSError as error:
        missing(f"RabbitMQ does not answer: {error}")
    name = unique_name(purpose)
    try:
        _make_vhost(name)
    except (
        OSError,
        subprocess.SubprocessError,
        requests.RequestException,
    ) as error:
        missing(f"RabbitMQ gives no virtual host: {error}")
    try:
        yield Vhost(name)
    finally:
        _remove_vhost(name)

# SPDX-License-Identifier: Apache-2.0
"""cyborg-api refuses what would be unsafe or cannot work."""

from __future__ import annotations

import contextlib
import socket

import pytest
from oslo_config import cfg

from cyborg import service
from cyborg.cmd import api


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("api.example", False),
    ],
)
def test_loopback_is_what_this_machine_alone_reaches(
    host: str, loopback: bool
) -> None:
    assert api.is_loopback(host) is loopback


def test_noauth_is_refused_where_others_reach_it(
    conf: cfg.ConfigOpts,
) -> None:
    conf.set_override("host_ip", "0.0.0.0", group="api")
    api.refuse_open_door(conf)  # Keystone asks for tokens
    conf.set_override("auth_strategy", "noauth")
    with pytest.raises(service.Mistake, match=r"\[api\] noauth_anywhere"):
        api.refuse_open_door(conf)
    conf.set_override("noauth_anywhere", True, group="api")
    api.refuse_open_door(conf)


def test_a_taken_port_is_said_in_one_line(conf: cfg.ConfigOpts) -> None:
    with contextlib.closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        conf.set_override("port", port, group="api")
        with pytest.raises(service.Mistake, match="already in use") as caught:
            api.refuse_taken_port(conf)
    assert f"127.0.0.1:{port}" in str(caught.value)
    api.refuse_taken_port(conf)  # it is free again


def test_a_host_that_is_not_there_is_said_in_one_line(
    conf: cfg.ConfigOpts,
) -> None:
    conf.set_override("host_ip", "192.0.2.1", group="api")
    with pytest.raises(service.Mistake, match=r"\[api\] host_ip, port"):
        api.refuse_taken_port(conf)

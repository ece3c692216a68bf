# SPDX-License-Identifier: Apache-2.0
"""Labels stay few, and who may read is judged by where the request is from."""

from __future__ import annotations

import re

import pytest
from oslo_config import cfg

from cyborg import metrics
from cyborg import metrics_listener


def series(name: str) -> set[str]:
    return set(
        re.findall(
            rf"^{name}(\{{.*?\}}) ", metrics.text().decode(), re.MULTILINE
        )
    )


def test_what_a_client_makes_up_is_one_label() -> None:
    for method in ("BREW", "X" * 1000, 'A"B'):
        metrics.api_request(method, metrics.OTHER, 405, 0.1)
    found = {
        one
        for one in series("cyborg_api_request_duration_seconds_count")
        if 'status="4xx"' in one and 'route="other"' in one
    }
    assert sum('method="other"' in one for one in found) == 1
    assert not any("BREW" in one or "A" * 2 in one for one in found)


def test_what_is_timed_says_how_it_ended() -> None:
    with metrics.requested("Placement", "GET") as outcome:
        outcome.label = "409"
    with pytest.raises(ZeroDivisionError), metrics.requested("Nova", "GET"):
        raise ZeroDivisionError
    found = "".join(series("cyborg_service_request_duration_seconds_count"))
    assert 'method="GET",outcome="409",service="placement"' in found
    assert 'method="GET",outcome="failed",service="nova"' in found


def test_a_pass_that_has_never_succeeded_is_told() -> None:
    name = "cyborg_conductor_last_pass_timestamp_seconds"
    metrics.passed("hopeless", succeeded=False)
    assert f'{name}{{work="hopeless"}} 0.0' in metrics.text().decode()


@pytest.mark.parametrize(
    ("networks", "sender", "headers", "is_open"),
    [
        (None, "127.0.0.1", {}, True),
        (None, "127.8.9.1", {}, True),
        (None, "::1", {}, True),
        (None, "::ffff:127.0.0.1", {}, True),
        (None, "192.0.2.1", {}, False),
        (None, "::ffff:192.0.2.1", {}, False),
        (None, "fe80::1%eth0", {}, False),
        (None, "", {}, False),
        (None, "unix:", {}, False),
        (None, "127.0.0.1", {"HTTP_X_FORWARDED_FOR": "127.0.0.1"}, False),
        (None, "127.0.0.1", {"HTTP_X_FORWARDED_PROTO": "https"}, False),
        (None, "127.0.0.1", {"HTTP_FORWARDED": "for=127.0.0.1"}, False),
        (None, "127.0.0.1", {"HTTP_VIA": "1.1 x"}, False),
        (None, "127.0.0.1", {"HTTP_X_REAL_IP": "127.0.0.1"}, False),
        (["192.0.2.0/24"], "192.0.2.77", {}, True),
        (["192.0.2.0/24"], "127.0.0.1", {}, False),
        (["2001:db8::/32"], "2001:db8::7", {}, True),
        ([], "127.0.0.1", {}, False),
    ],
)
def test_the_door(
    networks: list[str] | None,
    sender: str,
    headers: dict[str, str],
    is_open: bool,
    conf: cfg.ConfigOpts,
) -> None:
    if networks is not None:
        conf.set_override("allowed_networks", networks, "metrics")
    door = metrics_listener.Door(conf)
    assert door.is_open({"REMOTE_ADDR": sender, **headers}) is is_open
    assert not door.is_open({})


def test_a_network_that_is_none_is_refused_by_name(
    conf: cfg.ConfigOpts,
) -> None:
    with pytest.raises(ValueError, match="nonsense"):
        conf.set_override("allowed_networks", ["nonsense"], "metrics")

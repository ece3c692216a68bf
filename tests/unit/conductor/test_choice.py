# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyborg import arq
from cyborg import exception
from cyborg.conductor import choice
from cyborg.db.arq_writes import FreeHandle
from cyborg.db.arq_writes import StoredArq
from cyborg.db.hosts import Names
from cyborg.db.hosts import Provider
from cyborg.rpc.conductor import Binding

IMAGE = "c5af00d4-743c-5101-8469-9134ac28e262"


def stored(number: int = 1, **values: object) -> StoredArq:
    base: dict[str, object] = {
        "id": number,
        "uuid": f"arq-{number}",
        "project_id": "project",
        "state": arq.State.INITIAL,
        "group": {"resources:FPGA": "1"},
        "image_uuid": None,
        "hostname": None,
        "device_rp_uuid": None,
        "instance_uuid": None,
        "attach_handle_id": None,
        "deployable_id": None,
        "job_id": None,
    }
    return StoredArq(**(base | values))  # type: ignore[arg-type]


def provider(number: int = 1, **values: object) -> Provider:
    base: dict[str, object] = {
        "deployable_id": number,
        "uuid": f"deployable-{number}",
        "name": f"name-{number}",
        "rp_uuid": f"rp-{number}",
        "bitstream_id": None,
        "job_id": None,
        "driver": "fake_driver",
        "device_id": number,
        "hostname": "node.example.org",
        "maintaining": False,
        "broken": "",
        "fault": "",
        "attributes": (("rc", "FPGA"),),
    }
    return Provider(**(base | values))  # type: ignore[arg-type]


def handle(number: int = 1) -> FreeHandle:
    return FreeHandle(number, f"handle-{number}", "PCI", "{}")


def binding(number: int = 1, host: str = "node.example.org") -> Binding:
    return Binding(f"arq-{number}", host, "rp-1", "instance")


@given(
    st.lists(st.integers(1, 3), max_size=8),
    st.dictionaries(
        st.integers(1, 3), st.integers(0, 4), min_size=3, max_size=3
    ),
)
def test_handles_are_given_once_and_only_from_the_right_pool(
    wanted: list[int], sizes: dict[int, int]
) -> None:
    free = {
        key: [handle(100 * key + number) for number in range(size)]
        for key, size in sizes.items()
    }
    asked = [
        (binding(i), stored(i), provider(key))
        for i, key in enumerate(wanted, 1)
    ]
    if all(wanted.count(key) <= size for key, size in sizes.items()):
        chosen = choice.choose(asked, free, random.Random(1))
        handles = [one.handle.id for one in chosen]
        assert len(set(handles)) == len(wanted)
        assert [number // 100 for number in handles] == wanted
    else:
        with pytest.raises(exception.Conflict, match="no free"):
            choice.choose(asked, free, random.Random(1))
    assert {key: len(pool) for key, pool in free.items()} == sizes


@pytest.mark.parametrize("state", list(arq.State))
def test_only_free_requests_are_bound(state: arq.State) -> None:
    found = {"arq-1": stored(state=state)}
    if state in (arq.State.INITIAL, arq.State.UNBOUND):
        assert choice.divide([binding()], found) == ([binding()], [])
    else:
        with pytest.raises(exception.Conflict, match=state.value):
            choice.divide([binding()], found)


@pytest.mark.parametrize("state", sorted(arq.HOLDING))
def test_what_has_these_values_already_is_left(state: arq.State) -> None:
    same = stored(
        state=state,
        hostname="node.example.org",
        device_rp_uuid="rp-1",
        instance_uuid="instance",
    )
    assert choice.divide([binding()], {"arq-1": same}) == ([], [same])
    with pytest.raises(exception.Conflict):
        choice.divide([binding(host="node")], {"arq-1": same})


def test_every_missing_request_is_named() -> None:
    with pytest.raises(exception.NotFound, match="arq-1, arq-2"):
        choice.divide([binding(2), binding(1)], {})


@pytest.mark.parametrize(
    ("values", "host", "words"),
    [
        ({}, "node.example.org", None),
        ({}, "node", None),
        ({}, "other", "not one of host"),
        ({"hostname": "node"}, "node.example.org", None),
        ({"attributes": ()}, "node", "no FPGA"),
        ({"attributes": (("rc", "PGPU"),)}, "node", "no FPGA"),
        ({"maintaining": True}, "node", "disabled"),
        ({"broken": "too hot"}, "node", "too hot"),
        ({"job_id": 7}, "node", "busy"),
    ],
)
def test_a_provider_is_judged(
    values: dict[str, object], host: str, words: str | None
) -> None:
    found = provider(**values)
    names = Names(1, "node", "node.example.org")
    hosts = {"node": names, "node.example.org": names}
    group = {"resources:FPGA": "1"}
    if words is None:
        choice.check(binding(host=host), group, found, hosts)
        return
    with pytest.raises(exception.Conflict, match=words):
        choice.check(binding(host=host), group, found, hosts)


@pytest.mark.parametrize(
    ("group", "image", "programmed", "wanted"),
    [
        ({}, None, None, None),
        ({"accel:bitstream_id": IMAGE}, None, None, (IMAGE, None)),
        ({"accel:bitstream_id": IMAGE}, None, IMAGE, None),
        ({"accel:bitstream_id": IMAGE.upper()}, None, IMAGE, None),
        ({"accel:bitstream_id": IMAGE}, "other", "x", (IMAGE, None)),
        ({"accel:function_id": "f"}, None, None, (None, "f")),
        ({}, IMAGE, None, (IMAGE, None)),
        ({}, IMAGE, IMAGE, None),
    ],
)
def test_what_has_to_be_programmed_first(
    group: dict[str, str],
    image: str | None,
    programmed: str | None,
    wanted: tuple[str | None, str | None] | None,
) -> None:
    chosen = choice.Choice(
        stored(group=group, image_uuid=image),
        binding(),
        provider(bitstream_id=programmed),
        handle(),
    )
    found = choice.programs([chosen], {})
    assert found == ({} if wanted is None else {1: choice.Program(*wanted)})


def test_a_function_that_is_there_is_not_programmed_again() -> None:
    def chosen(bitstream: str | None) -> choice.Choice:
        return choice.Choice(
            stored(group={"accel:function_id": "f"}),
            binding(),
            provider(bitstream_id=bitstream),
            handle(),
        )

    assert choice.by_function([chosen(None)]) == set()
    assert choice.by_function([chosen(IMAGE)]) == {1}
    assert choice.programs([chosen(IMAGE)], {1: "f"}) == {}
    assert choice.programs([chosen(IMAGE)], {1: "g"}) == {
        1: choice.Program(None, "f")
    }

# SPDX-License-Identifier: Apache-2.0
"""Faults that operators have met at the API, and their kin.

What `test_bad_input.py` and `test_personas.py` have in a table is there;
here is what takes several requests.
"""

from __future__ import annotations

import concurrent.futures
import uuid
from typing import Any

import pytest

from cyborg.db import models
from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab

ARQS = "/v2/accelerator_requests"
PROFILES = "/v2/device_profiles"


@pytest.fixture(scope="module")
def populated(shared_lab: Lab) -> Lab:
    shared_lab.create_profile("dp-one")
    shared_lab.create_profile("dp-four", 4)
    return shared_lab


@pytest.fixture(autouse=True)
def given_back(populated: Lab) -> None:
    """Nothing is left of the test before."""
    listed = populated.call("GET", ARQS).json["arqs"]
    uuids = ",".join(one["uuid"] for one in listed)
    if uuids:
        answer = populated.call(
            "DELETE", f"{ARQS}?arqs={uuids}", service_token="nova"
        )
        assert answer.status_int == 204


def new() -> str:
    return str(uuid.uuid4())


def patch(lab: Lab, body: Any) -> int:
    return lab.call(
        "PATCH", ARQS, body, persona="member", service_token="nova"
    ).status_int


def in_use(lab: Lab) -> int:
    with lab.database.reader() as session:
        return (
            session.query(models.AttachHandle)
            .filter(models.AttachHandle.in_use.is_(True))
            .count()
        )


def test_what_was_unbound_can_be_bound_again(populated: Lab) -> None:
    arq, _ = populated.bound()
    assert in_use(populated) == 1
    assert patch(populated, {arq: lab_module.UNBINDING}) == 202
    shown = populated.call("GET", f"{ARQS}/{arq}").json
    assert shown["state"] == "Unbound"
    assert [
        shown[key]
        for key in ("hostname", "device_rp_uuid", "instance_uuid")
        + ("attach_handle_uuid",)
    ] == [None] * 4
    assert in_use(populated) == 0
    assert patch(populated, {arq: lab_module.UNBINDING}) == 202
    assert populated.bind([arq], new()).status_int == 202
    assert populated.state(arq) == "Bound"


def test_a_report_between_two_binds_frees_no_handle(populated: Lab) -> None:
    for _ in range(16):
        populated.bound()
        populated.report()
    one = populated.create_arqs()[0]
    assert populated.bind([one], new()).status_int == 409
    assert populated.state(one) == "Initial"
    assert in_use(populated) == 16


def test_more_than_is_free_binds_nothing_of_it(populated: Lab) -> None:
    for _ in range(14):
        populated.bound()
    arqs = populated.create_arqs("dp-four")
    assert len(arqs) == 4
    assert populated.bind(arqs, new()).status_int == 409
    assert {populated.state(arq) for arq in arqs} == {"Initial"}
    assert in_use(populated) == 14


def test_binds_at_once_get_different_handles(populated: Lab) -> None:
    arqs = [populated.create_arqs()[0] for _ in range(18)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(
            pool.map(lambda arq: populated.bind([arq], new()).status_int, arqs)
        )
    assert sorted(codes) == [202] * 16 + [409] * 2
    handles = {
        one["attach_handle_uuid"]
        for one in populated.call("GET", ARQS + "?state=Bound").json["arqs"]
    }
    assert len(handles) == 16


def test_binding_and_unbinding_do_not_mix(populated: Lab) -> None:
    bound, _ = populated.bound()
    free = populated.create_arqs()[0]
    mixed = {bound: lab_module.UNBINDING, free: lab_module.binding(new())}
    assert patch(populated, mixed) == 400
    assert populated.state(bound) == "Bound"
    assert populated.state(free) == "Initial"


@pytest.mark.parametrize(
    ("places", "status"),
    [
        ({"device_rp_uuid": new()}, 404),
        ({"hostname": "compute-2"}, 409),
        ({"hostname": "x" * 255}, 409),
    ],
)
def test_a_bind_that_cannot_be_leaves_everything_as_it_was(
    places: dict[str, str], status: int, populated: Lab
) -> None:
    good, bad = populated.create_arqs()[0], populated.create_arqs()[0]
    instance = new()
    wrong = [
        {**entry, "value": places.get(entry["path"][1:], entry["value"])}
        for entry in lab_module.binding(instance)
    ]
    body = {good: lab_module.binding(instance), bad: wrong}
    assert patch(populated, body) == status
    assert populated.state(good) == populated.state(bad) == "Initial"
    assert in_use(populated) == 0


def test_an_instance_takes_no_more_than_it_was_given(populated: Lab) -> None:
    first, instance = populated.bound()
    second = populated.create_arqs()[0]
    assert populated.bind([second], instance).status_int == 409
    assert populated.bind([first], instance).status_int == 202
    assert populated.bind([first], new()).status_int == 409


def test_a_maintaining_device_takes_nothing_new(populated: Lab) -> None:
    device = populated.call("GET", "/v2/devices").json["devices"][0]["uuid"]
    running, _ = populated.bound()
    populated.call("POST", f"/v2/devices/{device}/disable")
    one = populated.create_arqs()[0]
    assert populated.bind([one], new()).status_int == 409
    assert populated.state(running) == "Bound"
    populated.call("POST", f"/v2/devices/{device}/enable")
    assert populated.bind([one], new()).status_int == 202


def test_a_profile_in_use_stays_and_the_lists_still_answer(
    populated: Lab,
) -> None:
    populated.create_profile("dp-used")
    populated.create_profile("dp-unused")
    arq = populated.create_arqs("dp-used")[0]
    for path in (
        f"{PROFILES}/dp-used",
        f"{PROFILES}?value=dp-unused,dp-used",
    ):
        assert populated.call("DELETE", path).status_int == 409
    assert populated.call("GET", ARQS).status_int == 200
    names = {
        one["name"]
        for one in populated.call("GET", PROFILES).json["device_profiles"]
    }
    assert {"dp-used", "dp-unused"} <= names
    populated.call("DELETE", f"{ARQS}/{arq}")
    for name in ("dp-used", "dp-unused"):
        answer = populated.call("DELETE", f"{PROFILES}/{name}")
        assert answer.status_int == 204


def test_an_unresolved_request_of_the_instance_is_423(
    populated: Lab,
) -> None:
    arq, instance = populated.bound()
    path = f"{ARQS}?bind_state=resolved"
    assert populated.call("GET", f"{path}&instance={instance}").json["arqs"]
    with populated.database.writer() as session:
        session.query(models.AcceleratorRequest).filter_by(uuid=arq).update(
            {"state": "BindStarted"}
        )
    locked = populated.call("GET", f"{path}&instance={instance}")
    assert locked.status_int == 423
    assert populated.call("GET", path).json == {"arqs": []}
    assert populated.call("GET", f"{ARQS}?instance={instance}").json["arqs"]
    assert populated.call("GET", f"{path}&instance={new()}").json["arqs"] == []


def test_a_profile_over_the_limit_gives_no_requests(populated: Lab) -> None:
    text = '{"groups": [{"resources:FPGA": "65"}]}'
    with populated.database.writer() as session:
        session.add(models.DeviceProfile(name="too-many", profile_json=text))
    before = populated.count(models.AcceleratorRequest)
    answer = populated.call("POST", ARQS, {"device_profile_name": "too-many"})
    assert answer.status_int == 400, answer.text
    assert populated.count(models.AcceleratorRequest) == before


@pytest.mark.parametrize(
    "text",
    [
        '{"groups": [{"resources:FPGA": "0", "accel:foo": "bar"}, {}]}',
        '{"groups": 5}',
        "[]",
        "no json",
        "",
    ],
)
def test_an_odd_profile_of_an_older_release_is_shown_and_deleted(
    text: str, populated: Lab
) -> None:
    name = f"odd name {new()}"
    with populated.database.writer() as session:
        session.add(models.DeviceProfile(name=name, profile_json=text))
    listed = populated.call("GET", f"{PROFILES}?name={name}")
    assert listed.json["device_profiles"][0]["name"] == name
    answer = populated.call("POST", ARQS, {"device_profile_name": name})
    assert answer.status_int in {400, 404, 409}, answer.text
    assert populated.call("GET", f"{PROFILES}/{name}").status_int == 200
    assert populated.call("DELETE", f"{PROFILES}/{name}").status_int == 204


def test_one_group_of_a_profile_can_be_asked_for(populated: Lab) -> None:
    groups = [{"resources:FPGA": "1"}, {"resources:FPGA": "2"}]
    body = {"name": "dp-groups", "groups": groups}
    assert populated.call("POST", PROFILES, body).status_int == 201
    ask = {"device_profile_name": "dp-groups"}
    every = populated.call("POST", ARQS, ask).json["arqs"]
    assert [one["device_profile_group_id"] for one in every] == [0, 1, 1]
    second = populated.call(
        "POST", ARQS, {**ask, "device_profile_group_id": 1}
    ).json["arqs"]
    assert [one["device_profile_group_id"] for one in second] == [1, 1]
    absent = populated.call(
        "POST", ARQS, {**ask, "device_profile_group_id": 2}
    )
    assert absent.status_int in {400, 404}


def test_a_xilinx_group_gives_two_requests_each(populated: Lab) -> None:
    required = {"trait:CUSTOM_FPGA_XILINX": "required"}
    populated.create_profile("xilinx", 2, **required)
    assert len(populated.create_arqs("xilinx")) == 4
    body = {
        "name": "xilinx-gpu",
        "groups": [{"resources:PGPU": 3, **required}],
    }
    assert populated.call("POST", PROFILES, body).status_int == 201
    assert len(populated.create_arqs("xilinx-gpu")) == 3


def test_deleting_by_instance_is_done_however_often(populated: Lab) -> None:
    arq, instance = populated.bound()
    path = f"{ARQS}?instance={instance}"
    for _ in range(2):
        answer = populated.call(
            "DELETE", path, persona="member", service_token="nova"
        )
        assert answer.status_int == 204
    assert populated.call("GET", f"{ARQS}/{arq}").status_int == 404
    assert in_use(populated) == 0


def test_a_provider_without_the_class_refuses(populated: Lab) -> None:
    body = {"name": "dp-gpu", "groups": [{"resources:PGPU": 1}]}
    populated.call("POST", PROFILES, body)
    arq = populated.create_arqs("dp-gpu")[0]
    assert populated.bind([arq], new()).status_int == 409
    assert populated.state(arq) == "Initial"


def test_pages_of_a_list_are_the_whole_of_it(populated: Lab) -> None:
    wanted = set(populated.create_arqs("dp-four") + populated.create_arqs())
    seen: list[str] = []
    marker = ""
    while True:
        page = populated.call("GET", f"{ARQS}?limit=2{marker}").json["arqs"]
        seen += [one["uuid"] for one in page]
        if len(page) < 2:
            break
        marker = f"&marker={page[-1]['uuid']}"
    assert len(seen) == 5
    assert set(seen) == wanted

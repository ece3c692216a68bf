# SPDX-License-Identifier: Apache-2.0
"""Whatever a client sends, the answer is a client's error in JSON."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import pytest
import webob

from cyborg.db import models
from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab

PROFILES = "/v2/device_profiles"
ARQS = "/v2/accelerator_requests"
UUID = "0f9ab253-66ea-4693-8601-2277059038cb"
DISABLE = f"/v2/devices/{UUID}/disable"
GROUP = {"resources:FPGA": "1"}
IMAGE = [{"image_uuid": UUID}]
JSON = {"Content-Type": "application/json"}


def profile(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "dp-bad", "groups": [GROUP], **more}]


def add(path: str, value: Any = "x") -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def without(number: int) -> list[Any]:
    entries = lab_module.binding(UUID)
    del entries[number]
    return entries


BODIES = [
    # (method, path, body, status, what the message names)
    ("POST", DISABLE, [], 400, "body"),
    ("POST", DISABLE, "text", 400, "body"),
    ("POST", DISABLE, {"reason": None}, 400, "reason"),
    ("POST", DISABLE, {"reason": ""}, 400, "reason"),
    ("POST", DISABLE, {"reason": "x" * 256}, 400, "reason"),
    ("POST", DISABLE, {"reason": "nul\0"}, 400, "stored"),
    ("POST", DISABLE, {"reason": "\U0001f600"}, 400, "stored"),
    ("POST", DISABLE, {"why": "x"}, 400, "why"),
    ("POST", DISABLE, {"reason": "x" * 255}, 404, "device"),
    ("POST", PROFILES, [], 400, "body"),
    ("POST", PROFILES, {}, 400, "name"),
    ("POST", PROFILES, "text", 400, "body"),
    ("POST", PROFILES, None, 400, "body"),
    ("POST", PROFILES, profile() * 2, 400, "body"),
    ("POST", PROFILES, profile(name="abc\n"), 400, "name"),
    ("POST", PROFILES, profile(name=""), 400, "name"),
    ("POST", PROFILES, profile(name=UUID), 400, "name"),
    ("POST", PROFILES, profile(name="x" * 256), 400, "name"),
    ("POST", PROFILES, profile(name=7), 400, "name"),
    ("POST", PROFILES, profile(uuid="no"), 400, "uuid"),
    ("POST", PROFILES, profile(extra=1), 400, "extra"),
    ("POST", PROFILES, profile(description=5), 400, "description"),
    ("POST", PROFILES, profile(description="x" * 70000), 400, "description"),
    ("POST", PROFILES, profile(description="nul\0"), 400, "stored"),
    ("POST", PROFILES, profile(description="\ud800"), 400, "stored"),
    ("POST", PROFILES, profile(description="\U0001f600"), 400, "stored"),
    ("POST", PROFILES, profile(groups="x"), 400, "groups"),
    ("POST", PROFILES, profile(groups=[]), 400, "groups"),
    ("POST", PROFILES, profile(groups=["x"]), 400, "groups[0]"),
    ("POST", PROFILES, profile(groups=[{}]), 400, "groups[0]"),
    *(
        (
            "POST",
            PROFILES,
            profile(groups=[GROUP, {"resources:FPGA": amount}]),
            400,
            "groups[1]",
        )
        for amount in (0, -1, True, None, "x", "1.5", 10**400, 1.0)
    ),
    (
        "POST",
        PROFILES,
        profile(groups=[{"resources:FPGA": 100000}]),
        400,
        "100000",
    ),
    (
        "POST",
        PROFILES,
        profile(groups=[{**GROUP, "accel:x": "y" * 70000}]),
        400,
        "bytes",
    ),
    ("POST", ARQS, {}, 400, "device_profile_name"),
    ("POST", ARQS, [], 400, "body"),
    ("POST", ARQS, {"device_profile_name": 5}, 400, "device_profile_name"),
    ("POST", ARQS, {"device_profile_name": ""}, 404, ""),
    ("POST", ARQS, {"device_profile_name": "unknown"}, 404, "unknown"),
    *(
        ("POST", ARQS, {"device_profile_name": "dp", **more}, 400, field)
        for field, more in (
            ("device_profile_group_id", {"device_profile_group_id": -1}),
            ("device_profile_group_id", {"device_profile_group_id": 0.0}),
            ("device_profile_group_id", {"device_profile_group_id": 10**30}),
            ("image_uuid", {"image_uuid": "x"}),
            ("other", {"other": 1}),
        )
    ),
    ("PATCH", ARQS, {}, 400, "body"),
    ("PATCH", ARQS, [], 400, "body"),
    ("PATCH", ARQS, {UUID: []}, 400, UUID),
    ("PATCH", ARQS, {UUID: {}}, 400, UUID),
    ("PATCH", ARQS, {"no uuid": lab_module.UNBINDING}, 400, "no uuid"),
    ("PATCH", ARQS, {UUID: [{"path": "/hostname", "value": "h"}]}, 400, "op"),
    ("PATCH", ARQS, {UUID: [{"op": "add", "value": "h"}]}, 400, "path"),
    ("PATCH", ARQS, {UUID: [{"op": "add", "path": "/hostname"}]}, 400, "valu"),
    ("PATCH", ARQS, {UUID: [add("/hostname")]}, 400, "/device_rp_uuid"),
    ("PATCH", ARQS, {UUID: [add("/other")]}, 400, "/other"),
    ("PATCH", ARQS, {UUID: [add("/hostname", 5)]}, 400, "value"),
    ("PATCH", ARQS, {UUID: without(0)}, 400, "/hostname"),
    ("PATCH", ARQS, {UUID: without(1)}, 400, "/device_rp_uuid"),
    ("PATCH", ARQS, {UUID: without(2)}, 400, "/instance_uuid"),
    (
        "PATCH",
        ARQS,
        {UUID: [*lab_module.binding(UUID), add("/hostname")]},
        400,
        "/hostname",
    ),
    ("PATCH", ARQS, {UUID: lab_module.binding("x" * 37)}, 400, "/instance_u"),
    ("PATCH", ARQS, {UUID: lab_module.binding("")}, 400, "/instance_uuid"),
    (
        "PATCH",
        ARQS,
        {UUID: lab_module.binding(UUID, device_rp_uuid="no uuid")},
        400,
        "/device_rp_uuid",
    ),
    (
        "PATCH",
        ARQS,
        {
            UUID: lab_module.binding(UUID),
            UUID.upper(): lab_module.binding(UUID),
        },
        400,
        UUID,
    ),
    ("PATCH", ARQS, {UUID: lab_module.binding(UUID)}, 404, UUID),
    ("PATCH", ARQS, {UUID: lab_module.UNBINDING}, 404, UUID),
    (
        "PATCH",
        f"{ARQS}/{lab_module.IMAGE}",
        {UUID: lab_module.UNBINDING},
        400,
        "path",
    ),
    ("POST", "/v2/attributes", {}, 400, "deployable_id"),
    ("POST", "/v2/attributes", {"key": "a", "value": "b"}, 400, "deployable"),
    *(
        (
            "POST",
            "/v2/attributes",
            {"deployable_id": 1, "key": "k", "value": "v", **more},
            status,
            field,
        )
        for field, status, more in (
            ("key", 400, {"key": ""}),
            ("key", 400, {"key": "x" * 70000}),
            ("value", 400, {"value": 5}),
            ("value", 400, {"key": "trait7", "value": "no trait"}),
            ("value", 400, {"key": "rc", "value": "no class"}),
            ("deployable_id", 400, {"deployable_id": "x"}),
            ("deployable_id", 400, {"deployable_id": None}),
            ("deployable_id", 400, {"deployable_id": True}),
            ("extra", 400, {"extra": 1}),
            ("", 404, {"deployable_id": 4711}),
            ("", 404, {"deployable_id": "4711"}),
            ("", 404, {"deployable_id": 0}),
            ("", 404, {"deployable_id": -1}),
            ("", 404, {"deployable_id": 10**30}),
        )
    ),
    *(
        ("PATCH", f"/v2/deployables/{UUID}/program", body, 400, field)
        for body, field in (
            ({}, "body"),
            ([], "body"),
            ([{}], "path"),
            ([{"path": "/x", "op": "replace", "value": IMAGE}], "path"),
            ([{"path": "/program", "op": "add", "value": IMAGE}], "op"),
            ([{"path": "/program", "op": "replace", "value": []}], "value"),
            (
                [
                    {
                        "path": "/program",
                        "op": "replace",
                        "value": [{"image_uuid": "x"}],
                    }
                ],
                "image_uuid",
            ),
        )
    ),
]


@pytest.fixture(scope="module")
def populated(shared_lab: Lab) -> Lab:
    shared_lab.create_profile("dp-one")
    return shared_lab


@pytest.mark.parametrize(
    "case",
    BODIES,
    ids=[
        f"{number}-{case[0]}-{case[1][4:24]}"
        for number, case in enumerate(BODIES)
    ],
)
def test_a_wrong_body_is_refused_by_name_and_changes_nothing(
    case: tuple[str, str, Any, int, str], populated: Lab
) -> None:
    method, path, body, status, named = case
    before = populated.count(models.DeviceProfile)
    answer = populated.call(
        method,
        path,
        service_token="nova",
        headers=JSON,
        raw=json.dumps(body).encode(),
    )
    assert answer.status_int == status, answer.text
    assert named in lab_module.check_error(answer.json, status)
    assert populated.count(models.DeviceProfile) == before


TWO_FILTERS = (
    "filters.field=limit&filters.value=1&filters.field=type&filters.value=FPGA"
)

RAW = [
    (b"", 400),
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b"\xef\xbb\xbf[]", 400),
    (b'{"name": NaN}', 400),
    (b'{"name": Infinity}', 400),
    (b'{"name": 1e999}', 400),
    (b'{"name": "a", "name": "b", "groups": []}', 400),
    (b"[" * 100_000, 400),
    (b"[" * 50_000 + b"]" * 50_000, 400),
    (b'{"a":' * 33 + b"1" + b"}" * 33, 400),
    (b"1" * 100_000, 400),
    (b'{"groups": [{"resources:FPGA": ' + b"9" * 5000 + b"}]}", 400),
    (b'"\\ud800"', 400),
    (b'"\\u0000"', 400),
    (b"null", 400),
    (b" " * 200_000, 413),
]


@pytest.mark.parametrize(
    ("raw", "status"), RAW, ids=[repr(raw[:20]) for raw, _ in RAW]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", PROFILES),
        ("POST", ARQS),
        ("PATCH", ARQS),
        ("POST", "/v2/attributes"),
        ("PATCH", f"/v2/deployables/{UUID}/program"),
    ],
)
def test_a_body_that_is_no_proper_json_is_refused(
    method: str, path: str, raw: bytes, status: int, populated: Lab
) -> None:
    answer = populated.call(
        method, path, raw=raw, headers=JSON, service_token="nova"
    )
    assert answer.status_int == status, answer.text


def test_nesting_of_32_levels_is_read_and_33_is_named(
    populated: Lab,
) -> None:
    for depth, text in ((32, "'object'"), (33, "nested deeper than 32")):
        answer = populated.call(
            "POST", ARQS, headers=JSON, raw=b"[" * depth + b"]" * depth
        )
        assert text in lab_module.check_error(answer.json, 400)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 201),
        ("application/json; charset=utf-8", 201),
        ("APPLICATION/JSON", 201),
        ("application/json-patch+json", 201),
        ("application/vnd.x+json", 201),
        ("text/plain", 415),
        ("application/xml", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=latin-1", 415),
        ("nonsense", 415),
        (";;;", 201),
        ("", 201),
    ],
)
def test_only_json_is_taken_by_its_content_type(
    content_type: str, status: int, populated: Lab
) -> None:
    body = json.dumps({"device_profile_name": "dp-one"}).encode()
    answer = populated.call(
        "POST",
        ARQS,
        raw=body,
        headers={"Content-Type": content_type} if content_type else {},
    )
    assert answer.status_int == status, answer.text


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json", 200),
        ("*/*", 200),
        ("application/*", 200),
        ("text/html, application/json;q=0.1", 200),
        ("", 200),
        ("bad header ;;", 200),
        ("text/html", 406),
        ("application/json;q=0", 406),
        ("application/xml", 406),
    ],
)
def test_an_accept_header_that_excludes_json_is_not_acceptable(
    accept: str, status: int, populated: Lab
) -> None:
    for path in ("/v2/devices", "/v2", "/"):
        answer = populated.call("GET", path, headers={"Accept": accept})
        assert answer.status_int == status


QUERIES = [
    (ARQS + "?bind_state=unresolved", 400, "bind_state"),
    (ARQS + "?bind_state=", 400, "bind_state"),
    (ARQS + "?nothing=1", 400, "nothing"),
    (ARQS + "?device_profile_group_id=x", 400, "device_profile_group_id"),
    ("/v2/devices?board=1", 400, "board"),
    ("/v2/devices?filters.field=board&filters.value=1", 400, "board"),
    ("/v2/devices?filters.field=type", 400, "filters"),
    (
        "/v2/devices?filters.value=1&filters.value=2&filters.field=type",
        400,
        "",
    ),
    ("/v2/devices?filters=x", 400, "filters"),
    ("/v2/devices?filters.other=x", 400, "filters"),
    ("/v2/devices?filters[0].field=type", 400, "filters"),
    ("/v2/devices?filters[99999999999999999999].field=type", 400, "filters"),
    ("/v2/devices?filters[x].field=type", 400, "filters"),
    ("/v2/devices?filters..field=type", 400, "filters"),
    ("/v2/devices?limit=x", 400, "limit"),
    ("/v2/devices?limit=-1", 400, "limit"),
    ("/v2/devices?limit=1.5", 400, "limit"),
    ("/v2/devices?limit=" + "9" * 5000, 400, "limit"),
    ("/v2/devices?limit=", 400, "limit"),
    ("/v2/devices?limit=1&limit=2", 400, "limit"),
    ("/v2/devices?limit=1&filters.field=limit&filters.value=1", 400, "limit"),
    ("/v2/devices?marker=x", 400, "marker"),
    (f"/v2/devices?marker={UUID}", 400, "marker"),
    ("/v2/devices?sort_key=board", 400, "sort_key"),
    ("/v2/devices?sort_key=__class__", 400, "sort_key"),
    ("/v2/devices?sort_dir=up", 400, "sort_dir"),
    ("/v2/devices?created_at=yesterday", 400, "created_at"),
    ("/v2/devices?vendor=%00", 400, "vendor"),
    ("/v2/devices?vendor=%ff", 400, "UTF-8"),
    ("/v2/devices?vendor=%ED%A0%80", 400, "UTF-8"),
    ("/v2/devices?vendor=%F0%9F%98%80", 400, "vendor"),
    ("/v2/devices?_method=DELETE", 400, "_method"),
    (f"/v2/devices/{UUID}?x=1", 400, "x"),
    ("/v2/attributes?deployable_id=x", 400, "deployable_id"),
    ("/v2/devices?" + "&".join(["a=b"] * 2000), 400, "query"),
]


@pytest.mark.parametrize(
    ("path", "status", "named"), QUERIES, ids=[one[0][:60] for one in QUERIES]
)
def test_a_wrong_query_is_refused_by_name(
    path: str, status: int, named: str, populated: Lab
) -> None:
    answer = populated.call("GET", path)
    assert answer.status_int == status, answer.text
    assert named in lab_module.check_error(answer.json, status)


@pytest.mark.parametrize(
    "query",
    [
        "vendor=nobody",
        "type=fpga",
        "type=FPGA&vendor=0xABCD&limit=99999999999",
        "limit=0",
        "hostname=%25",
        "hostname=%zz",
        "hostname=a'%20or%20'1'='1",
        "sort_key=hostname&sort_dir=desc",
        "filters[0].field=type&filters[0].value=FPGA",
        TWO_FILTERS,
        "",
        "&&",
    ],
)
def test_an_odd_but_proper_query_is_answered(
    query: str, populated: Lab
) -> None:
    answer = populated.call("GET", f"/v2/devices?{query}")
    assert answer.status_int == 200, answer.text


@pytest.mark.parametrize(
    "query",
    [
        *("arqs=", "arqs=x", "arqs=,", f"arqs={UUID}&instance=x", ""),
        *("instance=", f"arqs={UUID},x", "other=1"),
    ],
)
def test_a_deletion_names_what_it_deletes(query: str, populated: Lab) -> None:
    answer = populated.call("DELETE", f"{ARQS}?{query}", service_token="nova")
    assert answer.status_int == 400, answer.text
    for other in ("", "value=", "value=,", "other=1"):
        answer = populated.call("DELETE", f"{PROFILES}?{other}")
        assert answer.status_int == 400, answer.text


PATHS = [
    "/v1",
    "/v3/devices",
    "/v2/nothing",
    "/v2/_route",
    "/v2/__class__",
    "/v2/devices/__init__",
    "/v2/devices/list_all",
    "/v2/devices/no-uuid",
    f"/v2/devices/{UUID}.json",
    f"/v2/devices/{UUID}/",
    f"/v2/devices/{UUID}/nothing",
    "/v2/devices/%00",
    "/v2/devices/%ff",
    "/v2/%F0%9F%98%80",
    "/v2/device_profiles/%00",
    "/v2/device_profiles/%F0%9F%98%80",
    "/v2/device_profiles/" + "x" * 256,
    "/v2/device_profiles/unknown.json",
    "/v2/device_profiles/a%2Fb",
    "/v2/devices.json",
    "/v2/..",
    "/healthcheck/x",
    f"/v2/deployables/{UUID}",
    f"/v2/attributes/{UUID}",
    f"/v2/accelerator_requests/{UUID}",
    "/" + "x/" * 2000,
]


@pytest.mark.parametrize("path", PATHS, ids=[path[:40] for path in PATHS])
def test_a_path_with_nothing_at_it_is_not_found(
    path: str, populated: Lab
) -> None:
    assert populated.call("GET", path).status_int == 404
    assert populated.call("HEAD", path).status_int == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v2/devices", {"GET", "HEAD"}),
        ("OPTIONS", "/v2/devices", {"GET", "HEAD"}),
        ("POST", "/", {"GET", "HEAD"}),
        ("DELETE", "/v2", {"GET", "HEAD"}),
        ("GET", f"/v2/devices/{UUID}/disable", {"POST"}),
        ("HEAD", f"/v2/devices/{UUID}/disable", {"POST"}),
        ("PUT", ARQS, {"GET", "HEAD", "POST", "PATCH", "DELETE"}),
        ("POST", f"{PROFILES}/{UUID}", {"GET", "HEAD", "DELETE"}),
        ("NONSENSE", "/v2/devices", {"GET", "HEAD"}),
        ("GET", f"/v2/deployables/{UUID}/program", {"PATCH"}),
    ],
)
def test_an_unknown_method_is_told_which_are_known(
    method: str, path: str, allowed: set[str], populated: Lab
) -> None:
    answer = populated.call(method, path)
    assert answer.status_int == 405
    assert set(answer.headers["Allow"].split(", ")) == allowed


def test_no_header_overrides_the_method(populated: Lab) -> None:
    one = populated.create_arqs()[0]
    answer = populated.call(
        "GET",
        f"{ARQS}/{one}",
        headers={"X-HTTP-Method-Override": "DELETE", "X-HTTP-Method": "PUT"},
    )
    assert answer.json["uuid"] == one
    assert populated.state(one) == "Initial"


def test_odd_slashes_and_a_missing_version_change_nothing(
    populated: Lab,
) -> None:
    device = populated.call("GET", "/v2/devices").json["devices"][0]
    for path in (
        f"/v2/devices/{device['uuid']}/",
        f"//v2//devices//{device['uuid']}//",
        f"/devices/{device['uuid']}",
        f"/v2/devices/{device['uuid'].upper()}",
    ):
        assert populated.call("GET", path).json == device, path


def test_head_answers_as_get_does_without_a_body(populated: Lab) -> None:
    for path in ("/", "/v2", "/v2/devices", ARQS):
        got = populated.call("GET", path)
        head = populated.call("HEAD", path)
        assert head.status_int == 200
        assert head.body == b""
        assert head.headers["Content-Length"] == str(len(got.body))


def _sent(lab: Lab, **environ: Any) -> webob.Response:
    request = webob.Request.blank("/v2/accelerator_requests", method="POST")
    request.headers["X-Auth-Token"] = "admin"
    request.environ.update(environ)
    return request.get_response(lab.application)


class _Broken(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError("the client has gone")


@pytest.mark.parametrize(
    "environ",
    [
        {"CONTENT_LENGTH": "x"},
        {"CONTENT_LENGTH": "-5"},
        {"CONTENT_LENGTH": "10", "wsgi.input": io.BytesIO(b"{}")},
        {"CONTENT_LENGTH": "10", "wsgi.input": _Broken()},
        {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": _Broken()},
        {"CONTENT_LENGTH": "9" * 5000},
    ],
)
def test_a_body_that_does_not_come_whole_is_refused(
    environ: dict[str, Any], populated: Lab
) -> None:
    answer = _sent(populated, **environ)
    assert answer.status_int in {400, 413}
    lab_module.check_error(answer.json, answer.status_int)


def test_a_chunked_body_is_read_up_to_the_limit(populated: Lab) -> None:
    body = json.dumps({"device_profile_name": "dp-one"}).encode()
    chunked = {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""}
    taken = _sent(populated, **chunked, **{"wsgi.input": io.BytesIO(body)})
    assert taken.status_int == 201
    large = io.BytesIO(b" " * 1_000_000)
    refused = _sent(populated, **chunked, **{"wsgi.input": large})
    assert refused.status_int == 413
    assert large.tell() < 200_000


def test_a_request_id_of_the_client_is_not_taken_for_ours(
    populated: Lab,
) -> None:
    sent = f"req-{uuid.uuid4()}"
    answer = populated.call(
        "GET", "/v2", headers={"X-OpenStack-Request-ID": sent}
    )
    assert answer.headers["x-openstack-request-id"] != sent


@pytest.mark.parametrize(
    "host", ["", "a b", "<script>", 'x"y', "x" * 5000, "a/b", "a@b"]
)
def test_what_is_no_host_reaches_no_link(host: str, populated: Lab) -> None:
    answer = populated.call("GET", "/", headers={"Host": host})
    href = answer.json["versions"][0]["links"][0]["href"]
    if host != "x" * 5000:
        assert href == "http://localhost/v2"

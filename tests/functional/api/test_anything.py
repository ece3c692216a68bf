# SPDX-License-Identifier: Apache-2.0
"""Nothing that a client sends ends in an error of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
import webob
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab

UUID = "0f9ab253-66ea-4693-8601-2277059038cb"
words = st.sampled_from(
    [
        *("v2", "devices", "deployables", "attributes", "device_profiles"),
        *("accelerator_requests", UUID, "enable", "disable", "program"),
        *("dp-one", "", ".", "..", "__class__", "healthcheck", "%", "\0"),
    ]
)
segments = words | st.text(max_size=5) | st.binary(max_size=5)
names = st.sampled_from(
    [
        *("limit", "marker", "sort_key", "sort_dir", "name", "type", "arqs"),
        *("instance", "bind_state", "value", "filters.field", "id"),
        *("filters.value", "filters", "filters[0].field", "created_at"),
    ]
)
values = st.sampled_from(
    ["", "1", "-1", "resolved", UUID, "name", "uuid", "asc", "2026-01-01", "%"]
) | st.text(max_size=5)
keys = st.sampled_from(
    [
        *("name", "groups", "uuid", "description", "device_profile_name"),
        *("deployable_id", "key", "value", "op", "path", "attribute", UUID),
    ]
) | st.text(max_size=3)
bodies = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["add", "remove", "/hostname", "dp-one", UUID, "trait1"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=10,
)
headers = st.dictionaries(
    st.sampled_from(
        [
            *("OpenStack-API-Version", "Accept", "Content-Type", "Host"),
            *("X-OpenStack-Request-ID", "X-Forwarded-For", "If-Match"),
        ]
    ),
    st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"))
    | st.sampled_from(["accelerator 2.3", "application/json", "*/*"]),
    max_size=3,
)


def latin(segment: str | bytes) -> str:
    """A segment of a path, as WSGI has it."""
    data = segment
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    return data.decode("latin-1")


@pytest.fixture(scope="module")
def populated(shared_lab: Lab) -> Lab:
    shared_lab.create_profile("dp-one")
    return shared_lab


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_request_ends_in_a_server_error(
    data: st.DataObject, populated: Lab
) -> None:
    request = webob.Request.blank("/")
    environ: dict[str, Any] = request.environ
    request.headers.update(data.draw(headers))
    path = data.draw(st.lists(segments, max_size=5))
    environ["PATH_INFO"] = "/" + "/".join(map(latin, path))
    query = data.draw(st.lists(st.tuples(names, values), max_size=3))
    environ["QUERY_STRING"] = latin(
        "&".join(f"{name}={value}" for name, value in query)
    )
    request.method = data.draw(
        st.sampled_from(["GET", "POST", "PATCH", "DELETE", "HEAD", "PUT"])
    )
    request.body = data.draw(
        bodies.map(lambda body: json.dumps(body).encode())
        | st.binary(max_size=20)
    )
    request.headers["X-Auth-Token"] = "admin"
    request.headers["X-Service-Token"] = "nova"
    answer = request.get_response(populated.application)
    assert answer.status_int < 500, answer.text
    if answer.status_int >= 400 and request.method != "HEAD":
        lab_module.check_error(answer.json, answer.status_int)


@settings(max_examples=200, deadline=None)
@given(body=bodies, data=st.data())
def test_no_body_ends_in_a_server_error(
    body: object, data: st.DataObject, populated: Lab
) -> None:
    method, path = data.draw(
        st.sampled_from(
            [
                ("POST", "/v2/device_profiles"),
                ("POST", "/v2/accelerator_requests"),
                ("PATCH", "/v2/accelerator_requests"),
                ("PATCH", f"/v2/accelerator_requests/{UUID}"),
                ("POST", "/v2/attributes"),
                ("PATCH", f"/v2/deployables/{UUID}/program"),
            ]
        )
    )
    answer = populated.call(method, path, body, service_token="nova")
    assert answer.status_int < 500, answer.text

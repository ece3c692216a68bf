# SPDX-License-Identifier: Apache-2.0
"""What every answer has in common."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import webob

from cyborg import exception
from cyborg.api import envelope


def raising(error: Exception) -> Callable[..., Any]:
    def application(environ: dict[str, Any], start_response: Any) -> Any:
        raise error

    return application


def ask(application: Any, path: str = "/v2/x", **options: Any) -> Any:
    request = webob.Request.blank(path, **options)
    return request.get_response(envelope.Envelope(application))


@pytest.mark.parametrize(
    "error",
    [
        kind
        for kind in vars(exception).values()
        if isinstance(kind, type) and issubclass(kind, exception.CyborgError)
    ],
    ids=lambda kind: kind.slug,
)
def test_each_error_of_ours_is_told_in_both_shapes(
    error: type[exception.CyborgError],
) -> None:
    answer = ask(raising(error("what it says")))
    assert answer.status_int == error.code
    assert answer.content_type == "application/json"
    message = json.loads(answer.json["error_message"])
    assert message == {
        "faultcode": "Client" if error.code < 500 else "Server",
        "faultstring": "what it says",
        "debuginfo": None,
    }
    (told,) = answer.json["errors"]
    assert told["status"] == error.code
    assert told["detail"] == "what it says"
    assert told["request_id"] == answer.headers["x-openstack-request-id"]
    assert ("Retry-After" in answer.headers) == (error.code in {503, 504})


def test_an_unexpected_error_tells_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = ask(raising(ValueError("SELECT secret FROM /etc/x")))
    assert answer.status_int == 500
    assert "secret" not in answer.text
    assert answer.headers["x-openstack-request-id"] in caplog.text
    assert "SELECT secret" in caplog.text


@pytest.mark.parametrize("status", ["401 No", "404 No", "418 No", "500 No"])
def test_an_error_of_somebody_else_becomes_one_of_ours(status: str) -> None:
    closed = []

    class Body(list[bytes]):
        def close(self) -> None:
            closed.append(True)

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        start_response(
            status,
            [
                ("Content-Type", "text/html"),
                ("Content-Length", "14"),
                ("WWW-Authenticate", "Keystone"),
                ("Set-Cookie", "no"),
            ],
        )
        return Body([b"<html>x</html>"])

    answer = ask(application)
    assert answer.status_int == int(status[:3])
    assert answer.json["errors"][0]["status"] == int(status[:3])
    assert answer.headers["WWW-Authenticate"] == "Keystone"
    assert "Set-Cookie" not in answer.headers
    assert closed == [True]


def hello(environ: dict[str, Any], start_response: Any) -> Any:
    start_response("200 OK", [("Content-Length", "5"), ("Vary", "Origin")])
    return [b"hello"]


def test_head_has_the_headers_of_get() -> None:
    answer = ask(hello, method="HEAD")
    assert answer.headers["Content-Length"] == "5"
    assert answer.body == b""


def test_versions_are_told_below_v2_and_vary_is_kept() -> None:
    answer = ask(hello, headers={"OpenStack-API-Version": "accelerator 2.2"})
    assert answer.headers["OpenStack-API-Version"] == "accelerator 2.2"
    assert answer.headers.getall("Vary") == ["Origin", "OpenStack-API-Version"]
    assert "OpenStack-API-Version" not in ask(hello, "/").headers


def test_only_the_outer_of_two_acts() -> None:
    answer = ask(envelope.Envelope(hello))
    assert len(answer.headers.getall("x-openstack-request-id")) == 1
    assert len(answer.headers.getall("OpenStack-API-Version")) == 1


def test_the_id_of_a_filter_around_us_is_kept() -> None:
    request = webob.Request.blank("/v2")
    request.environ["openstack.request_id"] = "req-of-a-filter"
    answer = request.get_response(envelope.Envelope(hello))
    assert answer.headers["x-openstack-request-id"] == "req-of-a-filter"


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("/v2/", "/v2"),
        ("/devices", "/v2/devices"),
        ("//v2//devices//x/", "/v2/devices/x"),
        ("/healthcheck", "/healthcheck"),
        ("/healthcheck/", "/healthcheck"),
        ("/v1", "/v2/v1"),
    ],
)
def test_paths_have_one_form(path: str, served: str) -> None:
    assert envelope.path_of({"PATH_INFO": path}) == served


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"HTTP_HOST": "x:80"}, "http://x"),
        ({"HTTP_HOST": "x:443", "wsgi.url_scheme": "https"}, "https://x"),
        ({"HTTP_HOST": "x:6666"}, "http://x:6666"),
        ({"HTTP_HOST": "a b"}, "http://server:6666"),
        ({}, "http://server:6666"),
        ({"SERVER_NAME": "::1"}, "http://[::1]:6666"),
        ({"HTTP_HOST": "x", "SCRIPT_NAME": "/a b/"}, "http://x/a%20b"),
        ({"HTTP_HOST": "x", "wsgi.url_scheme": "javascript"}, "http://x"),
    ],
)
def test_the_url_is_made_of_what_can_be_one(
    environ: dict[str, str], url: str
) -> None:
    known = {"SERVER_NAME": "server", "SERVER_PORT": "6666"}
    assert envelope.request_url({**known, **environ}) == url


def test_logging_is_not_needed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ask(raising(exception.Invalid("a client's mistake")))
    assert caplog.records == []

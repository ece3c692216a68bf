# SPDX-License-Identifier: Apache-2.0
"""cyborg-api's own server, on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from cyborg import service
from cyborg.api import envelope
from cyborg.api import server
from tests.functional.api import lab as lab_module
from tests.functional.api.lab import Lab


@contextlib.contextmanager
def serving(
    conf: cfg.ConfigOpts, application: Any
) -> Iterator[server.ApiService]:
    conf.set_override("port", 0, "api")
    running = server.ApiService(conf, application)
    running.start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def address(shared_lab: Lab) -> Iterator[tuple[str, int]]:
    with serving(shared_lab.conf, shared_lab.application) as running:
        yield running.address


def raw(address: tuple[str, int], data: bytes) -> tuple[int, bytes, bytes]:
    """Send bytes; the status, the head and the body of what comes back."""
    with socket.create_connection(address, timeout=15) as connection:
        connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthcheck HTTP/1.0\r\n\r\n", 200),
        (b"HEAD /v2 HTTP/1.0\r\n\r\n", 200),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 401),
        (b"garbage\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        (b"GET /\xff HTTP/1.0\r\n\r\n", 400),
        (b"GET /%ff HTTP/1.0\r\nX-Auth-Token: admin\r\n\r\n", 404),
        (b"GET /%zz HTTP/1.0\r\nX-Auth-Token: admin\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: x\r\nBad header\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n", 413),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_whatever_comes_in_is_answered_in_json(
    data: bytes, status: int, address: tuple[str, int]
) -> None:
    code, head, body = raw(address, data)
    assert code == status, body
    assert b"x-openstack-request-id: req-" in head
    if code >= 400:
        lab_module.check_error(json.loads(body), code)


def test_a_client_that_sends_no_more_does_not_hold_the_stop(
    shared_lab: Lab,
) -> None:
    with serving(shared_lab.conf, shared_lab.application) as running:
        threads = running._server.requests._threads
        connection = socket.create_connection(running.address, 15)
        connection.sendall(POST % b"admin" + b"Content-Length: 9\r\n\r\n[")
        while not any(thread.conn for thread in threads):
            time.sleep(0.01)
    with connection:
        while connection.recv(1000):
            pass
    assert not any(thread.is_alive() for thread in threads)


POST = (
    b"POST /v2/accelerator_requests HTTP/1.1\r\nHost: x\r\n"
    b"X-Auth-Token: %s\r\nContent-Type: application/json\r\n"
)


@pytest.mark.parametrize(
    ("token", "rest", "status"),
    [
        (b"admin", b"Content-Length: 2\r\n\r\n[]", 400),
        (b"admin", b"Content-Length: 2000000\r\n\r\n" + b" " * 2000000, 413),
        (b"nobody", b"Content-Length: 2000000\r\n\r\n" + b" " * 2000000, 401),
        (
            b"admin",
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n",
            400,
        ),
        (b"admin", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[]\r\n", 400),
        (b"admin", b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"admin", b"Content-Length: 20\r\n\r\n[]", 400),
        (b"admin", b"Content-Length: x\r\n\r\n[]", 400),
    ],
)
def test_a_body_is_read_or_refused_but_never_taken_for_a_request(
    token: bytes, rest: bytes, status: int, address: tuple[str, int]
) -> None:
    code, _, body = raw(address, POST % token + rest)
    assert code == status, body
    assert body.count(b"error_message") == 1


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
BODY = POST % b"admin" + b"Content-Length: 100000\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"x"),
        (HEAD, b"X: y\r\n"),
        (BODY, b" "),
        (
            POST % b"admin" + b"Transfer-Encoding: chunked\r\n\r\n",
            b"1\r\n \r\n",
        ),
        (POST % b"nobody" + b"Content-Length: 100000\r\n\r\n", b" "),
        (POST % b"admin" + b"Content-Length: 9000000\r\n\r\n", b" "),
        (b"GET /" + b"x" * 100_000, b"x"),
    ],
    ids=["line", "head", "body", "chunks", "refused", "large", "long"],
)
def test_a_client_that_trickles_does_not_hold_a_thread(
    begin: bytes,
    more: bytes,
    address: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CLIENT_SECONDS", 1)
    monkeypatch.setattr(server, "BODY_SECONDS", 1)
    assert trickle(address, begin, more) < 6


def trickle(address: tuple[str, int], begin: bytes, more: bytes) -> float:
    """Send a little again and again; after how long the server ends it."""
    began = time.monotonic()
    with socket.create_connection(address, timeout=0.2) as connection:
        connection.sendall(begin)
        while time.monotonic() - began < 10:
            try:
                connection.sendall(more)
                if not connection.recv(65536):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    return time.monotonic() - began


def test_a_client_that_does_not_read_does_not_hold_a_thread(
    conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ANSWER_SECONDS", 1)

    def large(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"x" * 100_000_000]

    with (
        serving(conf, large) as running,
        socket.create_connection(running.address, timeout=30) as connection,
    ):
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(10)
        connection.settimeout(1)
        threads = running._server.requests
        end = time.monotonic() + 8
        while threads.idle < server.THREADS and time.monotonic() < end:
            time.sleep(0.05)
            with contextlib.suppress(TimeoutError):
                connection.recv(10)
        assert threads.idle == server.THREADS


def test_connections_that_say_nothing_keep_nobody_waiting(
    address: tuple[str, int],
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(address))
        began = time.monotonic()
        assert raw(address, b"GET / HTTP/1.0\r\n\r\n")[0] == 200
        assert time.monotonic() - began < 5


def test_a_connection_serves_many_requests(address: tuple[str, int]) -> None:
    connection = http.client.HTTPConnection(*address, timeout=15)
    headers = {"X-Auth-Token": "admin"}
    for method, path, status in [
        ("GET", "/v2/devices", 200),
        ("HEAD", "/v2/devices", 200),
        ("DELETE", "/v2/devices", 405),
        ("GET", "/v2/nothing", 404),
        ("GET", "/", 200),
    ] * 3:
        connection.request(method, path, headers=headers)
        used = connection.sock
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
        assert connection.sock is used
    connection.close()


def test_the_log_tells_of_each_request_without_its_secrets(
    address: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "cyborg.api.server"):
        raw(
            address,
            b"HEAD /v2/devices?vendor=hidden HTTP/1.0\r\n"
            b"X-Auth-Token: admin\r\n\r\n",
        )
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        '"HEAD /v2/devices" status: 200' in line and "req-" in line
        for line in lines
    ), lines
    assert "hidden" not in caplog.text
    assert "admin" not in caplog.text


def test_a_port_that_is_taken_is_a_clear_mistake(shared_lab: Lab) -> None:
    with serving(shared_lab.conf, shared_lab.application) as running:
        conf = shared_lab.conf
        conf.set_override("port", running.address[1], "api")
        with pytest.raises(service.Mistake, match=r"\[api\] host_ip, port"):
            server.ApiService(conf, shared_lab.application).start()


def test_it_listens_on_ipv6(shared_lab: Lab) -> None:
    shared_lab.conf.set_override("host_ip", "::1", "api")
    try:
        with serving(shared_lab.conf, shared_lab.application) as running:
            _, _, body = raw(running.address, b"GET / HTTP/1.0\r\n\r\n")
    finally:
        shared_lab.conf.clear_override("host_ip", "api")
    href = json.loads(body)["versions"][0]["links"][0]["href"]
    assert href == f"http://[::1]:{running.address[1]}/v2"


def test_a_stop_lets_what_runs_come_to_its_end(
    shared_lab: Lab,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start_response: Any) -> Any:
        begun.set()
        go_on.wait(10)
        return shared_lab.application(environ, start_response)

    answers = []
    with serving(shared_lab.conf, envelope.Envelope(slow)) as running:
        client = threading.Thread(
            target=lambda: answers.append(
                raw(running.address, b"GET / HTTP/1.0\r\n\r\n")
            )
        )
        client.start()
        assert begun.wait(10)
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        go_on.set()
        stopping.join(10)
        client.join(10)
        assert not stopping.is_alive()
    assert answers[0][0] == 200


def test_tls_without_its_files_is_a_clear_mistake(
    conf: cfg.ConfigOpts,
) -> None:
    conf.set_override("enable_ssl_api", True, "api")
    with pytest.raises(service.Mistake, match="ssl_cert_file"):
        server.ApiService(conf, lambda *_: [])
    conf.set_override("ssl_cert_file", "/nonexistent.pem", "api")
    conf.set_override("ssl_key_file", "/nonexistent.pem", "api")
    with pytest.raises(service.Mistake, match="ssl_cert_file"):
        server.ApiService(conf, lambda *_: [])


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """The files of a certificate for localhost, and of its key."""
    names = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        [
            *[
                "openssl",
                "req",
                "-x509",
                "-nodes",
                "-days",
                "2",
                "-newkey",
                "ec",
            ],
            *["-pkeyopt", "ec_paramgen_curve:prime256v1"],
            *["-subj", "/CN=localhost", "-out"],
            names[0],
            "-keyout",
            names[1],
        ],
        check=True,
        capture_output=True,
    )
    return names


@pytest.fixture
def secured(
    shared_lab: Lab, certificate: tuple[str, str]
) -> Iterator[tuple[str, int]]:
    conf = shared_lab.conf
    conf.set_override("enable_ssl_api", True, "api")
    conf.set_override("ssl_cert_file", certificate[0], "api")
    conf.set_override("ssl_key_file", certificate[1], "api")
    try:
        with serving(conf, shared_lab.application) as running:
            yield running.address
    finally:
        for name in ("enable_ssl_api", "ssl_cert_file", "ssl_key_file"):
            conf.clear_override(name, "api")


def test_it_serves_tls_while_others_do_not_shake_hands(
    secured: tuple[str, int], certificate: tuple[str, str]
) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    trusting.check_hostname = False
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(secured))
        began = time.monotonic()
        connection = http.client.HTTPSConnection(
            *secured, context=trusting, timeout=15
        )
        for _ in range(3):
            connection.request("GET", "/")
            answer = json.loads(connection.getresponse().read())
        connection.close()
        assert time.monotonic() - began < 5
    href = answer["default_version"]["links"][0]["href"]
    assert href.startswith("https://")


def test_plain_http_where_tls_is_spoken_is_no_traceback(
    secured: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(secured, timeout=15) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        with contextlib.suppress(OSError):
            while connection.recv(65536):
                pass
    assert "Traceback" not in caplog.text

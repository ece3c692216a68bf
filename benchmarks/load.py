# SPDX-License-Identifier: Apache-2.0
"""Send prepared requests and time each."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

SERVICE_HEADERS = {
    "Content-Type": "application/json",
    "OpenStack-API-Version": "accelerator 2.3",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to send, and the status (or one of several) that must come
    back."""

    method: str
    path: str
    status: int | tuple[int, ...]
    body: object = None


@dataclasses.dataclass(frozen=True)
class Timing:
    """How one kind of request went."""

    rate: float
    p50: float
    p99: float
    """Seconds."""


def timing(seconds: Sequence[float], elapsed: float) -> Timing:
    ordered = sorted(seconds)
    return Timing(
        rate=len(ordered) / elapsed,
        p50=statistics.median(ordered),
        p99=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    )


class Client:
    """One kept connection to the API; `headers` say who uses it."""

    def __init__(
        self, port: int, headers: Mapping[str, str] | None = None
    ) -> None:
        self._headers = {**SERVICE_HEADERS, **(headers or {})}
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=60
        )

    def send(self, request: Request) -> bytes:
        body = None
        if request.body is not None:
            body = json.dumps(request.body).encode()
        self._connection.request(
            request.method, request.path, body, self._headers
        )
        answer = self._connection.getresponse()
        content = answer.read()
        expected = request.status
        if answer.status not in (
            expected if isinstance(expected, tuple) else (expected,)
        ):
            raise RuntimeError(
                f"{request.method} {request.path}: {answer.status} "
                f"{content[:500].decode()}"
            )
        return content

    def close(self) -> None:
        self._connection.close()


def serially(calls: Sequence[Callable[[], object]]) -> Timing:
    """One call after the other."""
    seconds = []
    began = time.perf_counter()
    for call in calls:
        before = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - before)
    return timing(seconds, time.perf_counter() - began)


def send_all(port: int, requests: Sequence[Request]) -> list[bytes]:
    """The answers, without timing anything."""
    with contextlib.closing(Client(port)) as client:
        return [client.send(request) for request in requests]


def one_by_one(port: int, requests: Sequence[Request]) -> Timing:
    """A single client that waits for each answer."""
    with contextlib.closing(Client(port)) as client:
        return serially([lambda r=one: client.send(r) for one in requests])


def together(port: int, requests: Sequence[Request], clients: int) -> Timing:
    """So many clients share the requests."""
    seconds: list[float] = []
    failures: list[BaseException] = []
    waiting = iter(requests)
    lock = threading.Lock()

    def work() -> None:
        try:
            with contextlib.closing(Client(port)) as client:
                while True:
                    with lock:
                        request = next(waiting, None)
                    if request is None:
                        return
                    before = time.perf_counter()
                    client.send(request)
                    seconds.append(time.perf_counter() - before)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return timing(seconds, time.perf_counter() - began)

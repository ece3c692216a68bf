# SPDX-License-Identifier: Apache-2.0
"""At least 20,000 requests made from the API's own description, to real
processes: no error of the server, no traceback, no hang, and each answer is
as described.

First schemathesis by its own command, with all of its checks.  Then what it
generates, sent by several people in several microversions at once.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import GenerationMode

from tests import described
from tests.integration import children
from tests.integration import deployment
from tests.integration import instance

REQUESTS = 20_000
SEED = 20261130
ANSWER_SECONDS = 45
"""No answer may take longer, whatever else the machine does; what a
conductor is waited for is 20 s."""
SENDERS = 12
"""How many people send each generated request: of the time of five, most
was spent in generating it."""
EXAMPLES = {GenerationMode.POSITIVE: 48, GenerationMode.NEGATIVE: 30}
"""How many requests are generated for each operation."""
VERSIONS = (None, "2.0", "2.1", "2.2", "2.3", "2.4", "latest")
ACCESS = re.compile(r' INFO cyborg\.api\.server \[.* "[^ "]+ [^"]*" status: ')

USERS = (
    *("admin", "nova", "demo-member", "demo-manager", "demo-reader"),
    *("other-member", "plain-service"),
)
PEOPLE = (
    ("admin", "nova"),
    ("admin", None),
    ("demo-member", "nova"),
    ("demo-member", None),
    ("demo-manager", None),
    ("demo-reader", "plain-service"),
    ("other-member", "nova"),
    ("plain-service", None),
    (None, None),
)
"""Users, and whose service token they bring."""

CHECKS = (
    *("not_a_server_error", "status_code_conformance"),
    *("content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "negative_data_rejection"),
    *("unsupported_method", "allow_header_conformance"),
    "refused_for_a_reason",
)


@pytest.fixture(scope="module")
def fuzzed(
    running_cyborg: deployment.Deployment,
) -> deployment.Deployment:
    """A deployment with something in it."""
    for _ in range(3):
        profile = running_cyborg.make_profile([instance.FAKE_GROUP])
        instance.Instance(running_cyborg, profile).boot()
    return running_cyborg


def served(cyborg: deployment.Deployment) -> int:
    """How many requests its API says that it has answered."""
    text = cyborg.processes["api"].output.read_text(errors="replace")
    return sum(1 for line in text.splitlines() if ACCESS.search(line))


def test_schemathesis_finds_nothing(
    fuzzed: deployment.Deployment, tmp_path: Path
) -> None:
    keystone = fuzzed.cloud.keystone
    settings = tmp_path / "settings.json"
    settings.write_text(
        json.dumps(
            {
                "seed": SEED,
                "tokens": {user: keystone.token(user) for user in USERS},
                "provider": fuzzed.provider_name,
                "group": instance.FAKE_GROUP,
            }
        )
    )
    url = f"http://127.0.0.1:{fuzzed.port}"
    done = children.finish(
        [
            *("env", "-C", str(tmp_path)),
            str(Path(sys.executable).with_name("schemathesis")),
            *("run", f"{url}/v2/openapi.json", "--url", url),
            *("--phases", "coverage,fuzzing"),
            *("--checks", ",".join(CHECKS)),
            *("--max-examples", "12", "--seed", str(SEED), "--no-shrink"),
            *("--continue-on-failure", "--no-color", "--warnings", "off"),
            *("--request-timeout", str(ANSWER_SECONDS)),
            *("--generation-database", "none"),
            *("--suppress-health-check", "all"),
        ],
        900,
        {
            **os.environ,
            "CYBORG_FUZZ_SETTINGS": str(settings),
            "SCHEMATHESIS_HOOKS": "tests.integration.fuzz_hooks",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


class Crowd:
    """People who all send the same, at once, each in its own way."""

    def __init__(self, cyborg: deployment.Deployment) -> None:
        self._base = f"http://127.0.0.1:{cyborg.port}"
        self._tokens = {
            user: cyborg.cloud.keystone.token(user) for user in USERS
        }
        self._sessions = [requests.Session() for _ in range(SENDERS)]
        self._pool = futures.ThreadPoolExecutor(SENDERS)
        self._chance = random.Random(SEED)
        self._uuids: list[str] = []

    def send(self, case: schemathesis.Case) -> None:
        """Send a case, and judge each answer."""
        self._make_real(case)
        sent = case.as_transport_kwargs(base_url=self._base)
        jobs = [
            self._pool.submit(self._send_one, session, sent, self._head())
            for session in self._sessions
        ]
        for job in jobs:
            job.result()

    def _head(self) -> dict[str, str]:
        user, service = self._chance.choice(PEOPLE)
        head = {}
        if user is not None:
            head["X-Auth-Token"] = self._tokens[user]
        if service is not None:
            head["X-Service-Token"] = self._tokens[service]
        version = self._chance.choice(VERSIONS)
        if version is not None:
            head["OpenStack-API-Version"] = f"accelerator {version}"
        return head

    def _make_real(self, case: schemathesis.Case) -> None:
        """Ask for something that is there as often as not."""
        if not self._uuids or self._chance.random() < 0.5:
            return
        for name, value in list((case.path_parameters or {}).items()):
            if described.types.as_uuid(value) is not None:
                case.path_parameters[name] = self._chance.choice(self._uuids)

    def _send_one(
        self,
        session: requests.Session,
        sent: dict[str, Any],
        head: dict[str, str],
    ) -> None:
        headers = {**dict(sent["headers"] or {}), **head}
        request = requests.Request(**{**sent, "headers": headers})
        answer = session.send(
            request.prepare(), timeout=ANSWER_SECONDS, allow_redirects=False
        )
        path = requests.utils.urlparse(answer.request.url).path
        where = f"{answer.request.method} {answer.request.url} {head}"
        assert answer.status_code < 500, f"{where}: {answer.text}"
        described.check(
            str(answer.request.method),
            requests.utils.unquote(path),
            answer.status_code,
            answer.headers,
            answer.content,
        )
        if answer.status_code == 200:
            self._uuids += re.findall(r'"uuid": "([^"]+)"', answer.text)[:3]
            del self._uuids[:-200]


@pytest.mark.parametrize("mode", EXAMPLES, ids=lambda mode: mode.value)
def test_many_at_once_find_nothing(
    mode: GenerationMode, fuzzed: deployment.Deployment
) -> None:
    schema = schemathesis.openapi.from_dict(described.description())
    crowd = Crowd(fuzzed)
    for found in schema.get_all_operations():
        operation = found.ok()

        @hypothesis.settings(
            max_examples=EXAMPLES[mode],
            derandomize=True,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def everybody_sends(case: schemathesis.Case) -> None:
            crowd.send(case)

        try:
            everybody_sends()
        except hypothesis.errors.Unsatisfiable:
            # Nothing can be wrong with what takes nothing.
            assert operation.label == "GET /"


def test_it_was_that_many_and_no_log_has_a_traceback(
    fuzzed: deployment.Deployment,
) -> None:
    assert served(fuzzed) >= REQUESTS
    assert fuzzed.tracebacks() == {}
    assert all(child.running for child in fuzzed.processes.values())

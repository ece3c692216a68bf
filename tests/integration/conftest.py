# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests that run Cyborg as processes in a real cloud."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tests import databases
from tests.integration import cloud as cloud_module
from tests.integration import deployment
from tests.integration import resources


@pytest.fixture(scope="session")
def cloud(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[cloud_module.Cloud]:
    """Keystone, Placement, and stand-ins for Nova and Glance."""
    with cloud_module.running(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@contextlib.contextmanager
def _deployer(
    cloud: cloud_module.Cloud, factory: pytest.TempPathFactory
) -> Iterator[deployment.Deploy]:
    with contextlib.ExitStack() as stack:

        def deploy(
            kind: str = "mariadb", *, prepared: bool = True, **options: Any
        ) -> deployment.Deployment:
            folder = factory.mktemp("cyborg")
            made = deployment.Deployment(
                cloud,
                stack.enter_context(databases.empty(kind, folder)),
                stack.enter_context(resources.vhost("cyborg")),
                folder,
                **options,
            )
            stack.callback(made.stop)
            if prepared:
                made.prepare()
            return made

        yield deploy


@pytest.fixture(scope="module")
def deploy(
    cloud: cloud_module.Cloud, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[deployment.Deploy]:
    """Make deployments whose processes the test starts itself."""
    with _deployer(cloud, tmp_path_factory) as deploy:
        yield deploy


@pytest.fixture(scope="module")
def running_cyborg(deploy: deployment.Deploy) -> deployment.Deployment:
    """API, conductor and agent on MariaDB; use `cyborg` in tests."""
    made = deploy()
    made.start()
    made.wait_for_providers()
    return made


@pytest.fixture
def judged(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[deployment.Deployment], deployment.Deployment]]:
    """Watch a deployment: no answer of the test may be a 5xx of our own."""
    watched: list[deployment.Deployment] = []

    def watch(made: deployment.Deployment) -> deployment.Deployment:
        made.answers = deployment.Answers()
        watched.append(made)
        return made

    yield watch
    for made in watched:
        assert made.answers.server_errors == [], made.tails()


@pytest.fixture
def cyborg(
    running_cyborg: deployment.Deployment,
    judged: Callable[[deployment.Deployment], deployment.Deployment],
) -> deployment.Deployment:
    """A running Cyborg, shared by the module's tests and judged in each."""
    return judged(running_cyborg)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Show what the processes said last where a test failed."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, deployment.Deployment):
                report.sections.append(("processes", value.tails()))
                break
    return report

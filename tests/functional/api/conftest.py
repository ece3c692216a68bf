# SPDX-License-Identifier: Apache-2.0
"""Deployments for the tests of the API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.functional.api import lab as lab_module


@pytest.fixture(scope="module")
def shared_lab(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[lab_module.Lab]:
    """A deployment that the tests of a module share."""
    with lab_module.running(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def lab(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[lab_module.Lab]:
    """A deployment for one test."""
    with lab_module.running(tmp_path_factory.mktemp("lab")) as lab:
        yield lab

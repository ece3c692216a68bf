# SPDX-License-Identifier: Apache-2.0
"""The API as `gabbits/` tells it: one file for each resource and version.

gabbi's own plugin for pytest takes every test with a colon in its id for
one of its own, so that each file is run here as one test.
"""

from __future__ import annotations

import unittest
from pathlib import Path

import pytest
from gabbi import driver

from tests.functional.api import fixtures

FILES = sorted((Path(__file__).parent / "gabbits").glob("*.yaml"))


def suite_of(file: Path, directory: Path) -> unittest.TestSuite:
    """The requests of one file; gabbi reads whole directories."""
    (directory / file.name).symlink_to(file)
    suites: unittest.TestSuite = driver.build_tests(
        str(directory),
        unittest.TestLoader(),
        intercept=fixtures.application,
        fixture_module=fixtures,
        test_loader_name="gabbi",
    )
    return suites


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_the_api_answers_as_the_file_says(file: Path, tmp_path: Path) -> None:
    suite = suite_of(file, tmp_path)
    result = unittest.TestResult()
    suite.run(result)
    bad = result.failures + result.errors
    assert not bad, "\n".join(f"{test.id()}\n{text}" for test, text in bad)
    assert result.testsRun > 0

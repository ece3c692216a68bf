# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: does a driver keep the promises of drivers?

For whoever writes one, in this tree or out of it: subclass `Conformance`
(`cyborg.drivers.testing.conformance`) in a test module, and load this
package as a plugin of pytest (`-p cyborg.drivers.testing`).  Needs pytest,
nothing else of the tests of this project.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "cyborg.drivers.testing.abilities",
    "cyborg.drivers.testing.conformance",
    "cyborg.drivers.testing.reports",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the checks on a real host are told (`on_host`)."""
    group = parser.getgroup("cyborg", "drivers of accelerators")
    group.addoption("--cyborg-driver", help="entry point of the driver")
    group.addoption(
        "--cyborg-sysfs", default="/sys", help="where its hardware is read"
    )
    group.addoption(
        "--cyborg-config", help="configuration file with its options"
    )

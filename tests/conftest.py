# SPDX-License-Identifier: Apache-2.0
"""What tests of every kind share."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg import service


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    """A configuration with every option at its default, read from no file."""
    result = cfg.ConfigOpts()
    service.prepare(result)
    result(
        args=[],
        project="cyborg",
        default_config_files=[],
        default_config_dirs=[],
    )
    return result

# SPDX-License-Identifier: Apache-2.0
"""The checks of a driver on hardware that is really there; they change
nothing.

`pytest -p cyborg.drivers.testing --pyargs cyborg.drivers.testing.on_host
--cyborg-driver acme_driver`
"""

from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import cfg

import cyborg.conf
from cyborg.drivers.testing.host import Options
from cyborg.drivers.testing.reports import Reports


class TestOnHost(Reports):
    """The driver, the tree and the options that the command line names."""

    @pytest.fixture
    def root(self, request: pytest.FixtureRequest) -> Path:
        return Path(request.config.getoption("--cyborg-sysfs"))

    @pytest.fixture(autouse=True)
    def _told(self, request: pytest.FixtureRequest) -> None:
        self._file = request.config.getoption("--cyborg-config")
        name = request.config.getoption("--cyborg-driver")
        if not name:
            pytest.skip("--cyborg-driver is not given")
        type(self).driver = name

    def configuration(self, options: Options) -> cfg.ConfigOpts:
        conf = cfg.ConfigOpts()
        cyborg.conf.register(conf)
        files = [self._file] if self._file else []
        conf([], project="cyborg", default_config_files=files)
        return conf

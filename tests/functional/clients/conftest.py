# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable

import pytest
from keystoneauth1 import adapter
from oslo_config import cfg

import cyborg.conf
from cyborg.clients import session
from tests.glance_stand_in import glance_stand_in
from tests.nova_stand_in import nova_stand_in
from tests.placement import placement

__all__ = ["glance_stand_in", "nova_stand_in", "placement"]


@pytest.fixture
def adapter_for() -> Callable[..., adapter.Adapter]:
    """Makes an adapter from a configuration: (group, url, timeout)."""

    def make(group: str, url: str, timeout: int = 10) -> adapter.Adapter:
        conf = cfg.ConfigOpts()
        cyborg.conf.register(conf)
        conf([], project="cyborg", default_config_files=[])
        conf.set_override("auth_type", "none", group)
        conf.set_override("endpoint_override", url, group)
        conf.set_override("timeout", timeout, group)
        return session.adapter(conf, group)

    return make

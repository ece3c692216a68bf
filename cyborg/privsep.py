# SPDX-License-Identifier: Apache-2.0
"""The few things that need more rights than the agent has.

A function becomes privileged by `@agent_privileged.entrypoint`; it then
runs in a helper process that `[cyborg_sys_admin] helper_command` starts.
"""

from __future__ import annotations

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import priv_context

SECTION = "cyborg_sys_admin"

agent_privileged = priv_context.PrivContext(
    "cyborg",
    cfg_section=SECTION,
    pypath=f"{__name__}.agent_privileged",
    capabilities=[
        capabilities.CAP_DAC_OVERRIDE,
        capabilities.CAP_DAC_READ_SEARCH,
        capabilities.CAP_FOWNER,
        capabilities.CAP_SYS_ADMIN,
        capabilities.CAP_SYS_RAWIO,
    ],
)


def prepare(conf: cfg.ConfigOpts) -> None:
    """Let oslo.privsep, which reads its own global, see our section."""
    cfg.CONF(
        args=[],
        project=conf.project,
        prog=conf.prog,
        default_config_files=list(conf.config_file or []),
        default_config_dirs=list(conf.config_dir or []),
    )

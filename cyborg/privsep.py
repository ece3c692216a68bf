# SPDX-License-Identifier: Apache-2.0
"""The helper for the few things that need more rights than the agent has.

A function becomes privileged by `@agent_privileged.entrypoint`; it then runs
in a process of its own that `[cyborg_sys_admin] helper_command` starts at
the first call.  All such functions are in `cyborg.hardware.privileged`.
"""

from __future__ import annotations

import copy
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import comm
from oslo_privsep import daemon
from oslo_privsep import priv_context

SECTION = "cyborg_sys_admin"

CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_SYS_ADMIN")
"""All that the helper keeps of root's rights.

- `CAP_DAC_OVERRIDE`: the files of sysfs that it writes belong to root with
  mode 0200 or 0644.
- `CAP_SYS_ADMIN`: what some of them check besides in the kernel or in a
  vendor's driver, and NVMe admin commands.

A tool that is started as uid 0 has the rights of root again, bounded by what
the agent's service or container was given (capabilities(7)): that is why
only the tools of a short list can be started.
"""

THREADS = 16
"""Calls at one time.  oslo.privsep's default, the number of processors, is
for calls that compute; ours wait, some for minutes."""

GRACE = 30.0
"""Seconds beyond a call's own time in which the helper must be started and
its answer be here."""

_HELPS = {
    "thread_pool_size": "Writes and tools that the helper does at one time; "
    "each card that is erased takes one of them for minutes.",
    "helper_command": "The command that starts the privileged helper; "
    "`--privsep_context` and `--privsep_sock_path` are added to it. Not set: "
    "`privsep-helper` with the agent's own configuration files, by `sudo` "
    "unless the agent runs as root. The helper writes below `[agent] "
    "sysfs_root` of the files that it is given.",
}

agent_privileged = priv_context.PrivContext(
    "cyborg",
    cfg_section=SECTION,
    pypath=f"{__name__}.agent_privileged",
    capabilities=[capabilities.CAPS_BYNAME[name] for name in CAPABILITIES],
)
cfg.CONF.set_default("thread_pool_size", THREADS, group=SECTION)


class HelperError(Exception):
    """The helper cannot be started or does not answer; the message says to
    an operator where to look."""


def options() -> list[cfg.Opt]:
    """oslo.privsep's options with our defaults, for the sample file.

    oslo.privsep registers its own with its own global configuration.
    """
    result: list[cfg.Opt] = copy.deepcopy(priv_context.OPTS)
    cfg.set_defaults(
        result,
        capabilities=list(CAPABILITIES),
        thread_pool_size=THREADS,
    )
    for option in result:
        if option.dest in _HELPS:
            option.help = _HELPS[option.dest]
            option.sample_default = None
    return result


def prepare(conf: cfg.ConfigOpts) -> None:
    """Let oslo.privsep, which reads its own global, see our section.

    A process that is root already (in a container there is no sudo) starts
    the helper itself, unless `helper_command` says otherwise.
    """
    cfg.CONF(
        args=[],
        project=conf.project,
        prog=conf.prog,
        default_config_files=list(conf.config_file or []),
        default_config_dirs=list(conf.config_dir or []),
    )
    cfg.CONF.set_default(
        "helper_command",
        _command_of_root() if os.geteuid() == 0 else None,
        group=SECTION,
    )


def _command_of_root() -> str:
    """The helper that was installed with this Python, without sudo."""
    beside = os.path.dirname(sys.executable)  # noqa: PTH120 - text, as PATH
    path = os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))
    command = [shutil.which("privsep-helper", path=path) or "privsep-helper"]
    for name in cfg.CONF.config_file or ():
        command += ["--config-file", name]
    for name in cfg.CONF.config_dir or ():
        command += ["--config-dir", name]
    return shlex.join(command)


def call(
    function: Callable[..., Any],
    *arguments: object,
    timeout: float,
    grace: float = GRACE,
) -> Any:
    """What the privileged `function` answers, which takes `timeout` as its
    last argument and keeps to it.

    Raises what it raises, if that is none of Python's own exceptions, and
    HelperError where the helper fails: within `timeout` and `grace` seconds.
    """
    if agent_privileged.client_mode:
        _starter.have_one(timeout + grace)
    try:
        return function(*arguments, timeout, _wrap_timeout=timeout + grace)
    except _FAILURES as error:
        raise HelperError(_words(error)) from error


_FAILURES = (
    OSError,  # it ended, or there is no such command
    ValueError,  # the command is not one
    NameError,  # it is of another release
    daemon.FailedToDropPrivileges,
    daemon.ProtocolError,
    comm.PrivsepTimeout,
)


class _Starter:
    """Has one helper started, however many wait for it.

    By a thread that can be left alone: oslo.privsep waits for ever for a
    command that neither fails nor connects.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start: futures.Future[None] | None = None

    def have_one(self, seconds: float) -> None:
        """Returns once a helper runs.  Raises HelperError."""
        with self._lock:
            if _runs():
                return
            if self._start is None or self._start.done():
                self._start = _begin()
            start = self._start
        try:
            start.result(seconds)
        except futures.TimeoutError as error:
            raise HelperError(
                _words(f"it was not there within {seconds:g} s")
            ) from error
        except _FAILURES as error:
            raise HelperError(_words(error)) from error


_starter = _Starter()


def _begin() -> futures.Future[None]:
    """A start of the helper, in the place of one that has ended."""
    start: futures.Future[None] = futures.Future()

    def run() -> None:
        try:
            if agent_privileged.channel is not None:
                agent_privileged.stop()
            agent_privileged.start()
        except Exception as error:  # noqa: BLE001 - for those who wait
            start.set_exception(error)
        else:
            start.set_result(None)

    threading.Thread(target=run, name="privsep", daemon=True).start()
    return start


def _runs() -> bool:
    channel = agent_privileged.channel
    return channel is not None and channel.running


def _words(error: object) -> str:
    reason = str(error) or type(error).__name__
    command = agent_privileged.conf.helper_command or "sudo privsep-helper"
    return (
        f"the privileged helper failed: {reason}; see [{SECTION}] "
        f"helper_command ({command}) and the log of this agent"
    )

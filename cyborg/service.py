# SPDX-License-Identifier: Apache-2.0
"""From a command line to running services, and to their orderly end.

A process reads its configuration once, here, and hands it down.  With one
worker the process that was started does the work itself, so that whoever
watches it (by name, by its connections) watches the service.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import select
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import NoReturn
from typing import Protocol

from oslo_concurrency import lockutils
from oslo_config import cfg
from oslo_log import log as oslo_log

import cyborg.conf
from cyborg import diagnosis
from cyborg import metrics
from cyborg import processes
from cyborg.conf import legacy

LOG = logging.getLogger(__name__)

PROJECT = "cyborg"
FILES_VARIABLE = "OS_CYBORG_CONFIG_FILES"

QUIET = (
    "oslo_service.backend=WARN",
    "amqp=ERROR",
    "keystoneauth=ERROR",
    "kombu=WARN",
)
"""Libraries whose lines tell an operator nothing."""

STOP_SECONDS = 8.0
"""How long a stopping service may finish its work: deployers kill after 15,
and some start counting before we do."""

_MISTAKES = (
    cfg.ArgsAlreadyParsedError,
    cfg.ConfigDirNotFoundError,
    cfg.ConfigFileParseError,
    cfg.ConfigFileValueError,
    cfg.ConfigFilesNotFoundError,
    cfg.ConfigFilesPermissionDeniedError,
    cfg.NoSuchOptError,
    cfg.RequiredOptError,
    cfg.TemplateSubstitutionError,
    oslo_log.LogConfigError,
)

STARTED, FAILED, STOPPED = 253, 254, 255
"""What happens to a process besides signals, whose numbers are below."""

STOPPING = (signal.SIGTERM, signal.SIGINT)

_lock = threading.RLock()
_process_configuration: cfg.ConfigOpts | None = None


class Service(Protocol):
    """Something that runs in threads of its own between start and stop."""

    def start(self) -> None:
        """Begin; returns once it runs, raises where it cannot."""

    def stop(self) -> None:
        """Take nothing new, finish what runs, within some seconds."""


class Mistake(Exception):  # noqa: N818 - what people make, not programs
    """The configuration cannot be used; says which option, and why."""


Services = Sequence[Service] | Callable[[], Sequence[Service]]


def configure(
    argv: Sequence[str] | None,
    program: str,
    default_config_files: Sequence[str] | None = None,
) -> cfg.ConfigOpts:
    """The configuration of a process that was started as `program`.

    `argv` is what follows the program's name (None: that of the process).
    Logging works afterwards.  A mistake ends the process with a message.
    """
    conf = cfg.ConfigOpts()
    files = (
        None if default_config_files is None else list(default_config_files)
    )
    with exits_on_mistake(program):
        prepare(conf)
        conf(
            args=None if argv is None else list(argv),
            project=PROJECT,
            prog=program,
            version=version(),
            default_config_files=files,
        )
        set_up(conf, program)
    adopt(conf)
    return conf


def prepare(conf: cfg.ConfigOpts) -> None:
    """Register every option, those of the command line included."""
    oslo_log.register_options(conf)
    oslo_log.set_defaults(
        default_log_levels=[*oslo_log.get_default_log_levels(), *QUIET]
    )
    cyborg.conf.set_library_defaults()
    cyborg.conf.register(conf)


def set_up(conf: cfg.ConfigOpts, program: str) -> None:
    """Start logging by a parsed `conf`, and judge its values.

    Raises Mistake, or an error of oslo.config, where it cannot be used.
    """
    _look_at_each("DEFAULT", conf, _logging_options())
    _start_logging(conf, program)
    validate(conf)
    _place_locks(conf)
    legacy.report(conf)


def adopt(conf: cfg.ConfigOpts) -> None:
    """Make `conf` what `configuration` answers from now on."""
    global _process_configuration  # noqa: PLW0603 - one per process
    with _lock:
        _process_configuration = conf


def configuration() -> cfg.ConfigOpts:
    """The configuration of the process, read when first asked for.

    For what a WSGI server or PasteDeploy calls, possibly before anything of
    ours ran; everything else is handed its configuration.
    """
    with _lock:
        if _process_configuration is not None:
            return _process_configuration
        names = os.environ.get(FILES_VARIABLE, "").strip().split(";")
        files = [name for name in map(str.strip, names) if name]
        return configure([], "cyborg-api", files or None)


def version() -> str:
    """The version of the installed distribution."""
    try:
        return importlib.metadata.version("openstack-cyborg")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def validate(conf: cfg.ConfigOpts) -> None:
    """Look at every registered option, so that bad values show now.

    Those that drivers read are theirs to judge: a mistake there must not
    stop the agent with all its other drivers.
    """
    _look_at_each("DEFAULT", conf, conf)
    for group, options in cyborg.conf.own():
        name = group or "DEFAULT"
        section = conf if group is None else conf[group]
        for option in options:
            if cyborg.conf.stops_no_service(name, option.dest):
                continue
            reason = cyborg.conf.why_unusable(option, section[option.dest])
            if reason:
                raise Mistake(f"[{name}] {option.dest}: {reason}")


def _look_at_each(
    section: str, values: Mapping[str, Any], names: Iterable[str]
) -> None:
    for name in names:
        if cyborg.conf.stops_no_service(section, name):
            continue
        try:
            value = values[name]
        except ValueError as error:
            raise Mistake(
                f"[{section}] {name}: {cyborg.conf.short(error)}"
            ) from error
        except (cfg.NoSuchOptError, cfg.TemplateSubstitutionError) as error:
            raise Mistake(
                f"[{section}] {name}: {cyborg.conf.NO_SUBSTITUTE}"
            ) from error
        if isinstance(value, cfg.ConfigOpts.GroupAttr):
            _look_at_each(name, value, value)


def _logging_options() -> list[str]:
    """The names of oslo.log's options."""
    reader = cfg.ConfigOpts()
    oslo_log.register_options(reader)
    return list(reader)


def _place_locks(conf: cfg.ConfigOpts) -> None:
    """Tell oslo.concurrency, which reads its own global, where locks go."""
    wanted = conf.oslo_concurrency.lock_path
    path = Path(tempfile.gettempdir()) / f"cyborg-locks-{os.getuid()}"
    if wanted:
        try:
            Path(wanted).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            LOG.warning("[oslo_concurrency] lock_path: %s", error)
        if os.access(wanted, os.W_OK):
            path = Path(wanted)
    lockutils.set_defaults(str(path))


def _start_logging(conf: cfg.ConfigOpts, program: str) -> None:
    missing = conf.log_config_append
    if missing and not Path(missing).exists():
        conf.set_override("log_config_append", None)
    else:
        missing = None
    if not (conf.log_file or conf.log_dir or conf.use_journal):
        # oslo.log would take stdout, which belongs to a tool's answers.
        conf.set_default("use_stderr", True)
    try:
        oslo_log.setup(conf, program, version())
    except OSError as error:
        raise Mistake(f"[DEFAULT] log_file or log_dir: {error}") from error
    except ValueError as error:
        raise Mistake(f"[DEFAULT] default_log_levels: {error}") from error
    except TypeError as error:
        raise Mistake(
            "[DEFAULT] rate_limit_interval, rate_limit_burst: must be numbers"
        ) from error
    if missing:
        LOG.warning(
            "[DEFAULT] log_config_append: %s does not exist; logging is "
            "as without it.",
            missing,
        )


@contextlib.contextmanager
def exits_on_mistake(program: str) -> Iterator[None]:
    """End the process with one line where the configuration is wrong."""
    try:
        yield
    except (Mistake, *_MISTAKES) as error:
        LOG.debug("The configuration cannot be used.", exc_info=True)
        sys.exit(f"{program}: {error}")


def run(conf: cfg.ConfigOpts, services: Services, workers: int = 1) -> None:
    """Run `services` until a signal ends the process.

    SIGTERM and SIGINT stop them in an orderly way, a second one at once;
    SIGHUP reads `debug` and the log levels again, SIGUSR2 has a report
    written of what the process does.  With more than one
    worker, `services` should be a function, called in each worker: what it
    makes must not be shared by processes.
    """
    metrics.begin(
        conf.prog or PROJECT, version(), conf.state_path, workers=workers
    )
    if workers > 1:
        processes.supervise(
            workers, lambda: _Runner(conf, services).run(), STOP_SECONDS
        )
    else:
        _Runner(conf, services).run()


class _Happenings:
    """What happens to this process, in order, one byte each.

    A handler of ours would not do for signals: one that comes just before
    the main thread begins to wait for a lock waits with it.  What the
    interpreter writes to a pipe as the signal comes is always seen.
    """

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def listen(self, *numbers: signal.Signals) -> None:
        """Have these signals come here from now on."""
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)

    def put(self, event: int) -> None:
        """Say what happened; from any thread."""
        os.write(self._writing, bytes([event]))

    def get(self, seconds: float | None = None) -> int | None:
        """What happened next; None where nothing does in time."""
        ready, _, _ = select.select([self._reading], [], [], seconds)
        return os.read(self._reading, 1)[0] if ready else None


class _Runner:
    """One process: its services, and the signals that it gets."""

    def __init__(self, conf: cfg.ConfigOpts, services: Services) -> None:
        self._conf = conf
        self._services = services
        self._started: list[Service] = []
        self._happened = _Happenings()

    def run(self) -> NoReturn:
        self._happened.listen(*STOPPING, signal.SIGHUP, signal.SIGUSR2)
        diagnosis.prepare(self._conf)
        program = self._conf.prog or PROJECT
        # In a thread: a start may wait for a broker, and must not keep the
        # process from being stopped meanwhile.
        threading.Thread(
            target=lambda: self._happened.put(self._start(program)),
            name="start",
            daemon=True,
        ).start()
        code = self._serve()
        self._stop()
        LOG.info("%s has stopped.", program)
        self._end(code)

    def _start(self, program: str) -> int:
        """Start each service; says whether all of them run."""
        try:
            with exits_on_mistake(program):
                self._start_each()
            LOG.info("%s %s runs.", program, version())
            return STARTED
        except SystemExit as error:
            mistake = error.code
        except Exception:
            # Outermost frame: whatever it was, what runs must be stopped.
            LOG.exception("%s could not start.", program)
            return FAILED
        LOG.error("%s", mistake)
        return FAILED

    def _start_each(self) -> None:
        made = self._services() if callable(self._services) else self._services
        for service in made:
            self._started.append(service)
            service.start()

    def _serve(self) -> int:
        """Wait for the end; the exit code."""
        while True:
            event = self._happened.get()
            if event == FAILED:
                return 1
            if event == signal.SIGHUP:
                reload(self._conf)
            elif event == signal.SIGUSR2:
                diagnosis.write(self._conf)
            elif event in STOPPING:
                return 0

    def _stop(self) -> None:
        """Stop in the reverse order, for some seconds at the most.

        Runs in a thread, so that a second signal, or a service that does
        not come to its end, cannot hold the process.
        """
        stopping = threading.Thread(
            target=self._stop_each, name="stop", daemon=True
        )
        stopping.start()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if self._left() != STOPPED:
            LOG.warning("Work is left unfinished; the next start repairs it.")
            self._end(0)

    def _left(self) -> int | None:
        """What ends the wait for the stop; None where time does."""
        event: int | None = STARTED
        # A start that ends only now is no reason to leave.
        while event not in {STOPPED, *STOPPING, None}:
            event = self._happened.get(STOP_SECONDS)
        return event

    def _stop_each(self) -> None:
        for service in reversed(self._started):
            try:
                service.stop()
            except Exception:
                # Outermost loop: the others must be stopped all the same.
                LOG.exception("%s did not stop cleanly.", service)
        self._happened.put(STOPPED)

    def _end(self, code: int) -> NoReturn:
        """Leave without waiting for threads that a library left behind."""
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def reload(conf: cfg.ConfigOpts) -> None:
    """Read `debug` and the log levels again; a bad file changes nothing."""
    try:
        conf.mutate_config_files()
        fresh = _fresh_levels(conf)
    except (cfg.Error, OSError, ValueError, SystemExit) as error:
        # SystemExit: argparse judges `debug`, which is also an argument.
        LOG.warning("The configuration was not read again: %s", error)
        return
    for pair in fresh:
        name, _, level = pair.partition("=")
        oslo_log.getLogger(name).logger.setLevel(level)
    LOG.info("The log levels were read again.")


def _fresh_levels(conf: cfg.ConfigOpts) -> list[str]:
    """`default_log_levels` as the files have it now."""
    reader = cfg.ConfigOpts()
    oslo_log.register_options(reader)
    reader(
        args=[],
        project=conf.project,
        prog=conf.prog,
        default_config_files=list(conf.config_file or []),
        default_config_dirs=list(conf.config_dir or []),
    )
    return list(reader.default_log_levels)

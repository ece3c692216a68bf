# SPDX-License-Identifier: Apache-2.0
"""Writes bitstreams to the cards of this host.

A conductor asks for it by a job; one that asks again after it (or the
broker) was lost joins the same job or gets the same result, so that a card
is never written twice for one job.  One card is written by one job at a
time.  The image is here only while it is needed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from oslo_config import cfg
from oslo_log import log

from cyborg import exception
from cyborg.agent import discovery
from cyborg.agent import isolation
from cyborg.agent import vetting
from cyborg.drivers import base
from cyborg.rpc import agent as rpc_agent

LOG = log.getLogger(__name__)

KEPT_RESULTS = 100
STOP_SECONDS = 4.0
"""How long a stopping agent waits for cards that are being written."""
CANCEL_SECONDS = 1.0
"""How long, after that, for drivers to give up."""
LATE_SECONDS = 5.0
"""How much later than its limit a driver may say that it failed."""


class Image(Protocol):
    """A downloaded image (clients.glance.Image)."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Glance's properties of it."""


class Images(Protocol):
    """What we need of Glance (clients.glance.Glance)."""

    def download(
        self,
        image_uuid: str,
        directory: Path,
        max_bytes: int,
        max_seconds: float,
    ) -> Image:
        """Fetch and verify an image."""

    def find_by_function(self, function_id: str) -> str:
        """The uuid of the image that holds a function."""


@dataclasses.dataclass
class _Job:
    """One order under way or done."""

    controlpath: str
    driver: base.Driver
    done: bool = False
    result: rpc_agent.ProgramResult | None = None
    error: exception.CyborgError | None = None


class Workspace:
    """A private directory for images, emptied of what a killed agent left.

    Below `state_path`; a temporary one where that cannot be written to.
    """

    def __init__(self, state_path: str | None, host: str) -> None:
        self._root: Path | None = None
        if state_path:
            name = "images-" + re.sub(r"[^A-Za-z0-9._-]", "_", host)
            self._root = Path(state_path) / name

    def clear(self) -> None:
        """Remove what is left of an earlier run."""
        for path in self._root.glob("image-*") if self._root else ():
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """A directory that only we can read and that goes afterwards."""
        root = self._root
        try:
            if root is not None:
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            LOG.info("No images in %s (%s): in a temporary one", root, error)
            root = None
        with tempfile.TemporaryDirectory(prefix="image-", dir=root) as path:
            yield Path(path)


class Programmer:
    """Does the jobs of this host."""

    def __init__(
        self,
        found: discovery.Discovery,
        images: Callable[[], Images],
        workspace: Workspace,
        *,
        max_image_bytes: int,
        finished: Callable[[], None],
        late: float = LATE_SECONDS,
    ) -> None:
        self._discovery = found
        self._connect = images
        self._images: Images | None = None
        self._workspace = workspace
        self._max_image_bytes = max_image_bytes
        self._finished = finished
        self._late = late
        self._changed = threading.Condition()
        self._stopped = False
        self._running: dict[str, _Job] = {}
        self._results: collections.OrderedDict[str, _Job] = (
            collections.OrderedDict()
        )

    def program(
        self, order: rpc_agent.ProgramOrder
    ) -> rpc_agent.ProgramResult:
        """Write the order's image; returns once it runs.

        Raises Invalid, NotFound (no such image), Conflict (the card is busy
        or cannot be programmed), DeviceFailed, Timeout, and Unavailable
        where Glance does not answer or the agent stops.
        """
        deadline = time.monotonic() + order.timeout
        job = self._known(order.job_uuid)
        if job is None:
            driver, controlpath = self._driver(order)
            order = dataclasses.replace(order, controlpath=controlpath)
            job = self._begin(order, driver, deadline)
        return self._wait(job, order.timeout)

    def stop(
        self, wait: float = STOP_SECONDS, give_up: float = CANCEL_SECONDS
    ) -> None:
        """Take no more jobs; give those that run `wait` seconds to end, then
        `give_up` seconds to fail."""
        with self._changed:
            self._stopped = True
            self._changed.wait_for(lambda: not self._running, wait)
            running = list(self._running.values())
        for job in running:
            if isinstance(job.driver, base.Cancellable):
                job.driver.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, give_up)
            for job in self._running.values():
                job.error = job.error or _stopping()
            self._changed.notify_all()

    def _known(self, job_uuid: str) -> _Job | None:
        with self._changed:
            return self._running.get(job_uuid) or self._results.get(job_uuid)

    def _driver(
        self, order: rpc_agent.ProgramOrder
    ) -> tuple[base.Driver, str]:
        """The driver that reports the card, if it is the one that the order
        names and can program; and the control path in its spelling."""
        owner = self._discovery.owner(order.controlpath, order.timeout)
        if owner is None:
            raise exception.Conflict("The host has no such device now.")
        name, controlpath = owner
        if not _is_called(name, order.driver):
            raise exception.Conflict(
                f"The device belongs to the driver {name}, not to "
                f"{order.driver}."
            )
        driver = self._discovery.instance(name)
        if driver is None or not isinstance(driver, base.Programmable):
            raise exception.Conflict(
                f"The driver {name} cannot program its devices."
            )
        return driver, controlpath

    def _begin(
        self,
        order: rpc_agent.ProgramOrder,
        driver: base.Driver,
        deadline: float,
    ) -> _Job:
        controlpath = vetting.address(order.controlpath)
        job = _Job(controlpath, driver)
        with self._changed:
            if self._stopped:
                raise _stopping()
            known = self._running.get(order.job_uuid) or self._results.get(
                order.job_uuid
            )
            if known is not None:
                return known
            if any(
                other.controlpath == controlpath
                for other in self._running.values()
            ):
                raise exception.Conflict("The device is being programmed.")
            self._running[order.job_uuid] = job
        threading.Thread(
            target=self._work,
            args=(job, order, deadline),
            name=f"program-{order.job_uuid}",
            daemon=True,
        ).start()
        return job

    def _wait(self, job: _Job, timeout: float) -> rpc_agent.ProgramResult:
        with self._changed:
            self._changed.wait_for(
                lambda: job.done or job.error is not None,
                timeout + self._late,
            )
            if job.error is not None:
                # One exception may be raised to several who wait.
                raise type(job.error)(job.error.message)
            if job.result is None:
                raise exception.Timeout(
                    f"The device was not programmed within {timeout:g} s."
                )
            return job.result

    def _work(
        self, job: _Job, order: rpc_agent.ProgramOrder, deadline: float
    ) -> None:
        result: rpc_agent.ProgramResult | None = None
        error: exception.CyborgError | None = exception.DeviceFailed(
            f"The driver {order.driver} ended without an answer."
        )
        try:
            result = self._program(job.driver, order, deadline)
            error = None
        except exception.CyborgError as failure:
            error = failure
        except Exception as failure:
            LOG.exception("Driver %s failed to program", order.driver)
            error = exception.DeviceFailed(isolation.reason(failure))
        finally:
            self._end(order, job, result, error)

    def _end(
        self,
        order: rpc_agent.ProgramOrder,
        job: _Job,
        result: rpc_agent.ProgramResult | None,
        error: exception.CyborgError | None,
    ) -> None:
        with self._changed:
            job.result, job.error, job.done = result, error, True
            self._running.pop(order.job_uuid, None)
            self._keep(order.job_uuid, job)
            self._changed.notify_all()
        LOG.info(
            "Programming %s: %s",
            order.deployable_name,
            error.message if error else "done",
        )
        self._finished()

    def _keep(self, job_uuid: str, job: _Job) -> None:
        """Remember a result; not that Glance was away, which passes and
        left the card alone."""
        if isinstance(job.error, exception.Unavailable):
            return
        self._results[job_uuid] = job
        while len(self._results) > KEPT_RESULTS:
            self._results.popitem(last=False)

    def _program(
        self,
        driver: base.Driver,
        order: rpc_agent.ProgramOrder,
        deadline: float,
    ) -> rpc_agent.ProgramResult:
        images = self._glance(driver)
        if images is None or order.image_uuid:
            image_uuid = order.image_uuid
        elif order.function_id:
            image_uuid = images.find_by_function(order.function_id)
        else:
            raise exception.Invalid("Neither an image nor a function is named")
        with self._workspace.directory() as directory:
            path, properties = directory / "none", dict[str, str]()
            if images is None:
                path.touch()
            elif image_uuid:
                image = images.download(
                    image_uuid,
                    directory,
                    self._max_image_bytes,
                    deadline - time.monotonic(),
                )
                path, properties = image.path, dict(image.properties)
            _write(driver, order, path, properties, deadline)
        return rpc_agent.ProgramResult(bitstream_id=image_uuid)

    def _glance(self, driver: base.Driver) -> Images | None:
        """Glance; None where a simulated card does without, since there is
        none."""
        try:
            if self._images is None:
                self._images = self._connect()
        except cfg.Error as error:
            if getattr(driver, "simulated", False):
                LOG.info("Simulating without an image: %s", error)
                return None
            raise exception.DeviceFailed(
                f"The agent cannot fetch images: {error}"
            ) from error
        return self._images


def _write(
    driver: base.Driver,
    order: rpc_agent.ProgramOrder,
    image: Path,
    properties: Mapping[str, str],
    deadline: float,
) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise exception.Timeout("Fetching the image took all the time.")
    if not isinstance(driver, base.Programmable):
        raise exception.Conflict("The driver cannot program its devices.")
    driver.program(
        order.deployable_name, order.controlpath, image, properties, left
    )


def _is_called(entry_point: str, name: str) -> bool:
    """Whether a stored name means this driver.

    New rows hold the entry point.  Adopted ones hold what deployed services
    show (`fake`, `NVIDIA`, `intel`, `XILINX` ...): the first word of the
    entry point, in any case.
    """
    wanted = name.casefold()
    actual = entry_point.casefold()
    return actual == wanted or actual.startswith(f"{wanted}_")


def _stopping() -> exception.Unavailable:
    return exception.Unavailable("The agent of this host is stopping.")

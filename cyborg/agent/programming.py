# SPDX-License-Identifier: Apache-2.0
"""Writes bitstreams to the cards of this host.

One card is written by one job at a time, and once for one order
(agent/orders.py).  The image is here only while it is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import tempfile
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
from cyborg.agent import orders
from cyborg.agent import vetting
from cyborg.drivers import base
from cyborg.rpc import agent as rpc_agent

LOG = log.getLogger(__name__)

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
        with self._made() as path:
            yield Path(path)

    def _made(self) -> tempfile.TemporaryDirectory[str]:
        root = self._root
        if root is not None:
            try:
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                return tempfile.TemporaryDirectory(prefix="image-", dir=root)
            except OSError as error:
                LOG.info(
                    "No images in %s (%s): in a temporary one", root, error
                )
        return tempfile.TemporaryDirectory(prefix="image-")


class Programmer:
    """Programs the cards of this host."""

    def __init__(
        self,
        found: discovery.Discovery,
        queue: orders.Orders,
        images: Callable[[], Images],
        workspace: Workspace,
        *,
        max_image_bytes: int,
        late: float = LATE_SECONDS,
    ) -> None:
        self._discovery = found
        self._orders = queue
        self._connect = images
        self._images: Images | None = None
        self._workspace = workspace
        self._max_image_bytes = max_image_bytes
        self._late = late

    def program(
        self, order: rpc_agent.ProgramOrder
    ) -> rpc_agent.ProgramResult:
        """Write the order's image; returns once it runs.

        Raises Invalid, NotFound (no such image), Conflict (the card is busy
        or cannot be programmed), DeviceFailed, Timeout, and Unavailable
        where Glance does not answer or the agent stops.
        """
        job = self._orders.known(order.job_uuid) or self._begin(order)
        if not self._orders.wait(job, order.timeout + self._late):
            raise exception.Timeout(
                "The device was not programmed within"
                f" {round(order.timeout, 2):g} s."
            )
        result: rpc_agent.ProgramResult = job.answer()
        return result

    def _begin(
        self, order: rpc_agent.ProgramOrder
    ) -> orders.Job[rpc_agent.ProgramResult]:
        deadline = time.monotonic() + order.timeout
        self._discovery.looked(order.timeout)
        owner = self._discovery.owner(order.controlpath, order.driver)
        driver = owner.driver
        if not isinstance(driver, base.Programmable):
            raise exception.Conflict(
                f"The driver {owner.name} cannot program its devices."
            )
        order = dataclasses.replace(order, controlpath=owner.controlpath)
        return self._orders.begin(
            order.job_uuid,
            orders.Job(
                f"Programming {order.deployable_name}",
                orders.Place(vetting.address(order.controlpath)),
                driver,
            ),
            lambda _: self._program(driver, order, deadline),
            max(0.0, deadline - time.monotonic()),
        )

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

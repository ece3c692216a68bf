# SPDX-License-Identifier: Apache-2.0
"""What the gabbi files need: a deployment each, and values of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from gabbi import fixture

from tests.functional.api import lab as lab_module


class Deployment(fixture.GabbiFixture):  # type: ignore[misc]
    """One host with one simulated FPGA, one profile, nothing else."""

    current: lab_module.Lab | None = None

    def start_fixture(self) -> None:
        """Start it, and put into the environment what the files name."""
        self._stack = contextlib.ExitStack()
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        lab = self._stack.enter_context(lab_module.running(Path(directory)))
        Deployment.current = lab
        self._export(lab)

    def _export(self, lab: lab_module.Lab) -> None:
        profile = lab.create_profile("dp-one")
        os.environ["PROFILE"] = profile["uuid"]
        for thing in ("device", "deployable", "attribute"):
            listed = lab.call("GET", f"/v2/{thing}s").json[f"{thing}s"]
            os.environ[thing.upper()] = listed[0]["uuid"]
        os.environ["ARQ"] = lab.create_arqs()[0]
        os.environ["PROVIDER"] = lab_module.provider()
        os.environ["PROJECT"] = lab_module.PROJECT

    def stop_fixture(self) -> None:
        """Stop it."""
        Deployment.current = None
        self._stack.close()


def application() -> Any:
    """The application of the deployment that runs."""

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        assert Deployment.current is not None
        return Deployment.current.application(environ, start_response)

    return serve

# SPDX-License-Identifier: Apache-2.0
"""Serve Keystone or Placement on a loopback port.

Run by the Python of the cloud's own environment: `serve.py keystone 5000`.
It imports nothing of ours.
"""

from __future__ import annotations

import importlib
import sys

from cheroot import wsgi

APPLICATIONS = {
    "keystone": "keystone.wsgi.api",
    "placement": "placement.wsgi.api",
}


def main() -> None:
    name, port = sys.argv[1:3]
    sys.argv[1:] = []
    application = importlib.import_module(APPLICATIONS[name]).application
    server = wsgi.Server(
        ("127.0.0.1", int(port)),
        application,
        numthreads=8,
        request_queue_size=128,
        # Of connections that are kept: nobody should lose a race with it.
        timeout=600,
    )
    server.safe_start()


if __name__ == "__main__":
    main()

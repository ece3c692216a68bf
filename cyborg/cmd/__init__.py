# SPDX-License-Identifier: Apache-2.0
"""Console scripts.

A service can be told to read its levels again, or to report, while it is
still loading its modules: that must not end it, as the kernel would.
"""

import signal
import sys
from pathlib import Path

SERVICES = {
    "cyborg-agent",
    "cyborg-api",
    "cyborg-conductor",
    "cyborg-standalone",
}

if Path(sys.argv[0]).name in SERVICES:
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)

# SPDX-License-Identifier: Apache-2.0
"""Run cyborg/wsgi/api.py as a script, as mod_wsgi does, and serve it.

`serve_file.py 6666`: one thread, on loopback.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from wsgiref import simple_server

import cyborg.wsgi


def main() -> None:
    port = int(sys.argv[1])
    sys.argv = ["mod_wsgi"]
    script = Path(next(iter(cyborg.wsgi.__path__))) / "api.py"
    application = runpy.run_path(str(script))["application"]
    simple_server.make_server("127.0.0.1", port, application).serve_forever()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Subunit on standard input to one JSON object per test on standard output.

Run by the Python of the environment that stestr is in.  It imports nothing
of ours.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import subunit
import testtools


def show(test: dict[str, Any]) -> None:
    print(
        json.dumps(
            {
                "id": test["id"],
                "status": test["status"],
                "details": "\n".join(
                    content.as_text()
                    for content in test["details"].values()
                    if content.content_type.type == "text"
                ),
            }
        )
    )


def main() -> None:
    result = testtools.StreamToDict(show)
    result.startTestRun()
    subunit.ByteStreamToStreamResult(
        sys.stdin.buffer, non_subunit_name="stdout"
    ).run(result)
    result.stopTestRun()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The versions of the API: their list, and the headers that carry them."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from cyborg import exception

SERVICE_TYPE = "accelerator"
HEADER = "OpenStack-API-Version"


class Version(NamedTuple):
    """A microversion; compares as a pair of numbers."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


HISTORY = {
    Version(2, 0): "The first version.",
    Version(2, 1): "project_id in the PATCH of accelerator requests.",
    Version(2, 2): "GET of one device profile by name.",
    Version(2, 3): "status of devices.",
    Version(2, 4): "state, reason and place of devices; reason to disable.",
}
"""Each version, and what it adds."""

MINIMUM = min(HISTORY)
MAXIMUM = max(HISTORY)

_NUMBERS = re.compile(r"([1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")


@functools.lru_cache(maxsize=256)
def negotiate(header: str | None) -> Version:
    """The version that the value of `OpenStack-API-Version` asks for.

    Entries of other services do not count; without one for this service
    it is the minimum.  Raises NotAcceptable, which names the range.
    """
    wanted = {
        entry
        for entry in map(_wanted, (header or "").split(","))
        if entry is not None
    }
    if not wanted:
        return MINIMUM
    if len(wanted) > 1:
        raise _refusal("one version can be asked for, not several")
    return _known(wanted.pop())


def _wanted(entry: str) -> str | None:
    """What one entry of the header asks of this service, if anything."""
    words = entry.split()
    if not words:
        return None
    if words[0].lower() == SERVICE_TYPE:
        return " ".join(words[1:]).lower()
    return words[0].lower() if len(words) == 1 else None


def _known(text: str) -> Version:
    if text == "latest":
        return MAXIMUM
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise _refusal("not a version of the form X.Y")
    version = Version(int(match[1]), int(match[2]))
    if version not in HISTORY:
        raise _refusal(f"version {version} is not supported")
    return version


def _refusal(reason: str) -> exception.NotAcceptable:
    return exception.NotAcceptable(
        f"{HEADER}: {reason}; supported are {MINIMUM} to {MAXIMUM}."
    )


def headers(version: Version) -> list[tuple[str, str]]:
    """What each answer below /v2 carries."""
    return [
        (HEADER, f"{SERVICE_TYPE} {version}"),
        ("OpenStack-API-Minimum-Version", str(MINIMUM)),
        ("OpenStack-API-Maximum-Version", str(MAXIMUM)),
        ("Vary", HEADER),
    ]

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judge what we depend on, without a network.

    tools/audit_dependencies.py

Looks at everything that the installed service draws in, and at the lower
bounds of requirements.txt and of the extras: no release with a published
vulnerability that `advisories.csv` beside this lists may be installed or
allowed, no licence may be one that a deployer cannot take, nothing may be
abandoned.  `tox -e audit` asks the vulnerability services besides.
"""

from __future__ import annotations

import csv
import dataclasses
import re
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from packaging import requirements
from packaging import utils
from packaging import version

TOOLS = Path(__file__).parent
ADVISORIES = TOOLS / "advisories.csv"
REQUIREMENTS = TOOLS.parent / "requirements.txt"
OURSELVES = "openstack-cyborg"
EXTRAS = ("mysql", "postgresql")
"""Extras that are deployed."""

LICENCES = re.compile(
    r"\b(?:Apache|MIT|BSD|MPL|Mozilla Public|PSF|Python Software Foundation"
    r"|ISC|LGPL|Lesser General Public|Zope Public|ZPL|Unlicense|0BSD"
    r"|Public Domain|CC0)\b",
    re.IGNORECASE,
)
"""What a deployer can take; the LGPL, of what is only imported."""
LICENCES_BY_HAND = {
    "python-memcached": "PSF",
    "repoze-lru": "ZPL",
}
"""Packages whose metadata do not name their licence as others do."""

ABANDONED = frozenset(
    {
        *("anyjson", "eventlet", "funcsigs", "mock", "mox3", "nose"),
        *("pycrypto", "pysnmp", "python-daemon", "retrying", "suds"),
        *("unittest2", "testscenarios", "toml"),
    }
)
"""Packages that nobody maintains, or whose own authors say to leave."""
TOLERATED = {
    "eventlet": "oslo.privsep and oslo.service name it; nobody imports it",
    "testscenarios": "oslo.db names it; only its tests import it",
}
"""Abandoned ones that OpenStack's libraries still draw in."""


@dataclasses.dataclass(frozen=True)
class Advisory:
    """A published vulnerability, and the first release without it."""

    identifier: str
    package: str
    fixed: version.Version


def advisories() -> list[Advisory]:
    """The reviewed table."""
    with ADVISORIES.open(newline="") as lines:
        return [
            Advisory(
                row["advisory"],
                utils.canonicalize_name(row["package"]),
                version.Version(row["fixed"]),
            )
            for row in csv.DictReader(lines)
        ]


def vulnerable(
    releases: Mapping[str, str], known: Iterable[Advisory], what: str
) -> Iterator[str]:
    """What is to be said of these releases, by package."""
    for one in known:
        release = releases.get(one.package)
        if release and version.Version(release) < one.fixed:
            yield (
                f"{one.package}: {what} {release} has {one.identifier},"
                f" fixed in {one.fixed}"
            )


def lower_bounds(lines: Iterable[str]) -> dict[str, str]:
    """Package -> the oldest release that the requirements allow."""
    found = {}
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text or text.startswith("-"):
            continue
        wanted = requirements.Requirement(text)
        for bound in wanted.specifier:
            if bound.operator in {">=", "==", "~="}:
                found[utils.canonicalize_name(wanted.name)] = bound.version
    return found


def closure(name: str, extras: Iterable[str] = ()) -> set[str]:
    """All installed packages that a package draws in, itself too."""
    found: set[str] = set()
    left = [(utils.canonicalize_name(name), tuple(extras))]
    while left:
        name, extras = left.pop()
        try:
            wanted = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        for line in wanted:
            one = requirements.Requirement(line)
            inner = utils.canonicalize_name(one.name)
            if inner not in found and _applies(one, extras):
                left.append((inner, tuple(one.extras)))
    return found


def _applies(one: requirements.Requirement, extras: Iterable[str]) -> bool:
    if one.marker is None:
        return True
    return any(
        one.marker.evaluate({"extra": extra}) for extra in ("", *extras)
    )


def licence(name: str) -> str:
    """What a package's metadata say of its licence, all of it."""
    if name in LICENCES_BY_HAND:
        return LICENCES_BY_HAND[name]
    told = metadata.metadata(name)
    said = [
        *(told.get_all("License-Expression") or []),
        *(
            line
            for line in told.get_all("Classifier") or []
            if line.startswith("License ::")
        ),
    ]
    return "; ".join(said) or (told["License"] or "").split("\n")[0]


def complaints() -> list[str]:
    """All that is wrong, one line each."""
    known = advisories()
    names = closure(OURSELVES, EXTRAS)
    installed = {name: metadata.version(name) for name in names}
    lines = [
        *REQUIREMENTS.read_text().splitlines(),
        *(
            line.partition(";")[0]
            for line in metadata.requires(OURSELVES) or []
            if any(
                f"extra == '{extra}'" in line.replace('"', "'")
                for extra in EXTRAS
            )
        ),
    ]
    found = list(vulnerable(installed, known, "installed"))
    found += vulnerable(lower_bounds(lines), known, "the lower bound")
    found += [
        f"{name}: licence {licence(name)[:80]!r}"
        for name in sorted(names)
        if not LICENCES.search(licence(name))
    ]
    left = (names & ABANDONED) - TOLERATED.keys()
    found += [f"{name}: abandoned" for name in sorted(left)]
    return found


def main() -> int:
    """0 where all is well."""
    found = complaints()
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

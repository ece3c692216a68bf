# SPDX-License-Identifier: Apache-2.0
"""pbr's hook, and a version for trees that have none.

pbr reads the version from git or from an sdist's PKG-INFO.  A tarball that
a hosting site makes of the tree has neither, and must install all the same.
"""

import os
import subprocess

import setuptools

FALLBACK_VERSION = "1.0.0.dev0"
HERE = os.path.dirname(os.path.abspath(__file__))


def has_history():
    """Whether git can read a history that belongs to this very tree."""
    if not os.path.exists(os.path.join(HERE, ".git")):
        return False
    try:
        subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"],
            cwd=HERE,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def stand_in_for_git():
    """Tell pbr the version, and not to ask the git of a tree around us."""
    for switch in (
        "SKIP_GIT_SDIST",
        "SKIP_GENERATE_AUTHORS",
        "SKIP_WRITE_GIT_CHANGELOG",
    ):
        os.environ.setdefault(switch, "1")
    if not os.path.exists(os.path.join(HERE, "PKG-INFO")):
        os.environ.setdefault("PBR_VERSION", FALLBACK_VERSION)


if not has_history():
    stand_in_for_git()

setuptools.setup(pbr=True)

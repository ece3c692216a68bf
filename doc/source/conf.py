# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from docutils.parsers import rst
from sphinx.application import Sphinx

project = "Cyborg"
copyright = "the Cyborg developers"  # noqa: A001
extensions: list[str] = []
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_auto_name = False
html_theme = "alabaster"
master_doc = "index"
exclude_patterns: list[str] = []

HAS_HISTORY = (Path(__file__).parents[2] / ".git").exists()

if HAS_HISTORY:  # both ask git
    extensions += ["openstackdocstheme", "reno.sphinxext"]
    html_theme = "openstackdocs"


class NoReleaseNotes(rst.Directive):
    """What stands where git is not, which knows a note's release."""

    def run(self) -> list[nodes.Node]:
        """One sentence."""
        text = "They are in releasenotes/notes/ of this tree."
        return [nodes.paragraph(text=text)]


def setup(app: Sphinx) -> None:
    """Let an unpacked archive build as a clone does."""
    if not HAS_HISTORY:
        app.add_directive("release-notes", NoReleaseNotes)

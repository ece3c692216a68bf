# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

project = "Cyborg"
copyright = "the Cyborg developers"  # noqa: A001
extensions = ["openstackdocstheme", "reno.sphinxext"]
openstackdocs_repo_name = "openstack/cyborg"
openstackdocs_auto_name = False
html_theme = "openstackdocs"
master_doc = "index"
exclude_patterns: list[str] = []

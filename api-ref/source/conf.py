# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the API reference."""

project = "Cyborg API Reference"
copyright = "The Cyborg developers"
extensions = []
master_doc = "index"
exclude_patterns = []
html_theme = "alabaster"

# SPDX-License-Identifier: Apache-2.0
"""The documentation tells what the policy does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from cyborg.api import policies

TOOL = Path(__file__).parents[3] / "tools" / "policy_table.py"


def test_the_page_has_the_policy_of_today() -> None:
    specification = importlib.util.spec_from_file_location("table", TOOL)
    assert specification is not None
    assert specification.loader is not None
    tool = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(tool)
    text = tool.PAGE.read_text()
    assert tool.page(text) == text, "run tools/policy_table.py"
    for rule in policies.list_rules():
        if rule.name.startswith("cyborg:"):
            assert f"``{rule.name}``" in text

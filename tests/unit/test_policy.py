# SPDX-License-Identifier: Apache-2.0
"""Policy files of operators, good and bad."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_policy import policy as oslo_policy

from cyborg import exception
from cyborg import policy

RULE = "cyborg:thing:do"

BROKEN = {
    "not YAML": '"cyborg:thing:do: "@"\n',
    "a list": "- a\n- b\n",
    "a number": '"cyborg:thing:do": 5\n',
    "a word": "everything\n",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


@pytest.fixture
def conf(path: Path) -> cfg.ConfigOpts:
    result = cfg.ConfigOpts()
    result([], default_config_files=[], default_config_dirs=[])
    oslo_policy.Enforcer(result)
    result.set_override("policy_file", str(path), "oslo_policy")
    return result


def made(conf: cfg.ConfigOpts) -> policy.Policy:
    return policy.Policy(conf, [oslo_policy.RuleDefault(RULE, "role:admin")])


def may(rules: policy.Policy, *roles: str) -> bool:
    context = oslo_context.RequestContext(roles=list(roles), overwrite=False)
    try:
        rules.authorize(context, RULE, {})
    except exception.Forbidden:
        return False
    return True


def test_there_need_not_be_a_file(conf: cfg.ConfigOpts) -> None:
    rules = made(conf)
    assert may(rules, "admin")
    assert not may(rules, "member")


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_one_clear_line_at_start(
    kind: str, conf: cfg.ConfigOpts, path: Path
) -> None:
    path.write_text(BROKEN[kind])
    with pytest.raises(cfg.ConfigFileValueError) as caught:
        made(conf)
    assert str(caught.value).startswith("[oslo_policy] policy_file")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_breaks_later_changes_nothing(
    kind: str,
    conf: cfg.ConfigOpts,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(policy, "LOOK_SECONDS", 0)
    path.write_text(f'"{RULE}": "role:member"\n')
    rules = made(conf)
    path.write_text(BROKEN[kind])
    os.utime(path, (1, 4_000_000_000))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert may(rules, "member")
            assert not may(rules, "reader")
    assert "policy_file" in caplog.text
    path.write_text(f'"{RULE}": "role:reader"\n')
    os.utime(path, (1, 4_000_000_001))
    assert may(rules, "reader")

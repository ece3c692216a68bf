# SPDX-License-Identifier: Apache-2.0
"""The operator's rules, as they are asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from oslo_config import cfg

from cyborg import exception
from cyborg import policy
from cyborg.api import policies
from cyborg.context import RequestContext

CREATE = "cyborg:device_profile:create"
ARQ = "cyborg:arq:get_one"


@pytest.fixture
def file(tmp_path: Path, conf: cfg.ConfigOpts) -> Path:
    """The policy file in force, empty."""
    path = tmp_path / "policy.yaml"
    path.write_text("{}\n")
    policy.opts.set_defaults(conf, policy_file=str(path))
    conf.set_override("policy_file", str(path), "oslo_policy")
    return path


def caller(*roles: str, project: str = "p", **more: object) -> RequestContext:
    return RequestContext(
        roles=list(roles), project_id=project, overwrite=False, **more
    )


def allows(
    rules: policy.Policy,
    context: RequestContext,
    rule: str,
    project: str = "p",
) -> bool:
    try:
        rules.authorize(context, rule, {"project_id": project})
    except exception.Forbidden:
        return False
    return True


@pytest.fixture
def rules(
    file: Path, conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> policy.Policy:
    made = policy.Policy(conf, policies.list_rules())
    # So that a test need not wait for the files to be looked at again.
    monkeypatch.setattr(policy, "LOOK_SECONDS", 0.0)
    return made


def test_an_answer_belongs_to_the_one_who_asked(rules: policy.Policy) -> None:
    for _ in range(2):
        assert allows(rules, caller("admin"), CREATE)
        assert not allows(rules, caller("member"), CREATE)
        assert allows(rules, caller("member"), ARQ)
        assert not allows(rules, caller("member"), ARQ, project="q")
        assert not allows(rules, caller("member", project="q"), ARQ)
        assert allows(rules, caller("service", project="q"), ARQ)


def test_a_token_of_another_scope_does_nothing(rules: policy.Policy) -> None:
    assert not allows(rules, caller("admin", system_scope="all"), CREATE)
    assert not allows(rules, caller("admin", domain_id="d"), CREATE)


def test_a_change_of_the_file_is_seen(
    rules: policy.Policy, file: Path
) -> None:
    rules._look_at_files()
    assert not allows(rules, caller("member"), CREATE)
    file.write_text(f'"{CREATE}": "role:member"\n')
    os.utime(file, (1, 2_000_000_000))
    assert allows(rules, caller("member"), CREATE)
    assert not allows(rules, caller("admin"), CREATE)

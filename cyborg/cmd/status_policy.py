# SPDX-License-Identifier: Apache-2.0
"""What `cyborg-status` thinks of an operator's policy files.

Only a file that keeps the API from starting is a failure.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

import yaml
from oslo_config import cfg
from oslo_policy import opts as policy_opts
from oslo_policy import policy

from cyborg.api import policies
from cyborg.policy import POLICY_FILE

SHOWN = 10
"""Rules that one line names."""


class UnusableError(Exception):
    """The API could not start with these files; says why."""


def remarks(conf: cfg.ConfigOpts) -> list[str]:
    """What should be changed in the policy files, a line each.

    Raises UnusableError.
    """
    policy_opts.set_defaults(conf, policy_file=POLICY_FILE)
    return [
        remark
        for file in _files(conf)
        for remark in _remarks(file, _read(file))
    ]


def _files(conf: cfg.ConfigOpts) -> Iterator[Path]:
    """Those that oslo.policy would read, in its order."""
    section = conf.oslo_policy
    found = conf.find_file(section.policy_file)
    if not found:
        return
    yield Path(found)
    for name in section.policy_dirs:
        place = conf.find_file(name)
        if place and Path(place).is_dir():
            yield from sorted(
                file
                for file in Path(place).iterdir()
                if file.is_file() and not file.name.startswith(".")
            )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnusableError(f"{file} is not YAML.") from error


def _remarks(file: Path, text: str) -> Iterator[str]:
    rules = _rules(file, text)
    if rules and _is_json(text):
        yield (
            f"{file} is JSON; rewrite it as YAML "
            "(oslopolicy-convert-json-to-yaml)."
        )
    known = {rule.name for rule in policies.list_rules()}
    for what, names in (
        ("old names of rules", _renamed(rules)),
        (
            "rules that do not exist",
            [name for name in rules if ":" in name and name not in known],
        ),
        (
            "rules that cannot be understood, so that they forbid",
            [name for name, check in rules.items() if _is_garbled(check)],
        ),
    ):
        if names:
            yield f"{file} has {what}: {_list(names)}."


def _rules(file: Path, text: str) -> Mapping[str, str | list[object]]:
    try:
        rules = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UnusableError(f"{file} is not YAML.") from error
    if rules is None:
        return {}
    if not isinstance(rules, Mapping):
        raise UnusableError(f"{file} holds no rules by name.")
    for name, check in rules.items():
        if not isinstance(name, str) or not isinstance(check, str | list):
            raise UnusableError(f"{file}: {name} is no rule.")
    return rules


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _renamed(rules: Mapping[str, object]) -> list[str]:
    """Names that count today, and are to go."""
    return [
        f"{rule.deprecated_rule.name} (now {rule.name})"
        for rule in policies.list_rules()
        if rule.deprecated_rule is not None
        and rule.deprecated_rule.name != rule.name
        and rule.deprecated_rule.name in rules
    ]


def _is_garbled(check: str | list[object]) -> bool:
    """Whether oslo.policy takes a rule for one that nobody meets."""
    if not isinstance(check, str) or check.strip() == "!":
        return False
    parser = logging.getLogger("oslo_policy")
    level = parser.level
    parser.setLevel(logging.CRITICAL + 1)  # it would write a traceback
    try:
        return str(policy.RuleDefault("judged", check).check) == "!"
    finally:
        parser.setLevel(level)


def _list(names: list[str]) -> str:
    more = ", ..." if names[SHOWN:] else ""
    return ", ".join(sorted(names)[:SHOWN]) + more

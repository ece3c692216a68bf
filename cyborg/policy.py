# SPDX-License-Identifier: Apache-2.0
"""Whether a caller may do something, by the operator's rules."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from collections.abc import Sequence
from importlib import metadata

from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_policy import opts
from oslo_policy import policy

from cyborg import exception

POLICY_FILE = "policy.yaml"

LOOK_SECONDS = 1.0
"""How old the knowledge of the policy files may be."""

LOG = logging.getLogger(__name__)

_UNUSABLE = (cfg.Error, OSError, AttributeError, TypeError, ValueError)
"""What oslo.policy makes of files that it cannot read or understand."""


class Policy:
    """The rules in force: our defaults and what the policy file changes."""

    def __init__(
        self, conf: cfg.ConfigOpts, rules: Sequence[policy.RuleDefault]
    ) -> None:
        opts.set_defaults(conf, policy_file=POLICY_FILE)
        self._enforcer = policy.Enforcer(conf)
        self._enforcer.suppress_default_change_warnings = True
        self._enforcer.register_defaults(rules)
        self._lock = threading.Lock()
        self._known: dict[object, bool] = {}
        self._look_again_at = 0.0
        try:
            self._look_at_files()
        except _UNUSABLE as error:
            raise cfg.ConfigFileValueError(
                f"[oslo_policy] policy_file, policy_dirs: {_reason(error)}"
            ) from error

    @property
    def enforcer(self) -> policy.Enforcer:
        """oslo.policy's enforcer, for its tools."""
        return self._enforcer

    def authorize(
        self,
        context: oslo_context.RequestContext,
        rule: str,
        target: Mapping[str, object],
    ) -> None:
        """Raises Forbidden unless the rule lets the caller do it."""
        if time.monotonic() >= self._look_again_at:
            self._look_again()
        question = (rule, _frozen(target), _frozen(_credentials(context)))
        allowed = self._known.get(question)
        if allowed is None:
            allowed = self._ask(context, rule, target)
            self._known[question] = allowed
        if not allowed:
            raise exception.Forbidden(
                f"Policy does not allow {rule} to be performed."
            )

    def _ask(
        self,
        context: oslo_context.RequestContext,
        rule: str,
        target: Mapping[str, object],
    ) -> bool:
        try:
            return bool(self._enforcer.authorize(rule, dict(target), context))
        except policy.InvalidScope:
            return False

    def _look_again(self) -> None:
        """Take over what changed; a file that cannot be used changes
        nothing, for whoever edits it may not be done."""
        try:
            self._look_at_files()
        except _UNUSABLE as error:
            LOG.error(  # noqa: TRY400 - the trace tells nothing of the file
                "[oslo_policy] policy_file, policy_dirs: %s; the rules stay"
                " as they are.",
                _reason(error),
            )

    def _look_at_files(self) -> None:
        """Read the policy files where they changed, and forget the answers.

        oslo.policy would look at each file, and inspect the code of each
        check, at every question: a third of the time of a request.
        """
        with self._lock:
            self._known = {}
            self._look_again_at = time.monotonic() + LOOK_SECONDS
            self._enforcer.use_conf = True
            try:
                self._enforcer.load_rules()
            finally:
                self._enforcer.use_conf = False


def _reason(error: Exception) -> str:
    """What is wrong with a file, on one line."""
    return " ".join(str(error).split())


def _credentials(
    context: oslo_context.RequestContext,
) -> Mapping[str, object]:
    """All that a check may read of the caller, except the request's id."""
    return {**context.to_policy_values(), "is_admin": context.is_admin}


def _frozen(values: Mapping[str, object]) -> frozenset[tuple[str, object]]:
    return frozenset(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in values.items()
    )


def get_enforcer() -> policy.Enforcer:
    """An enforcer with every rule, for oslopolicy's tools.

    They parse their command line into oslo.config's global object, which is
    read here for the files that it names, and nowhere else.
    """
    try:
        files = list(cfg.CONF.config_file)
    except cfg.NoSuchOptError:
        files = []
    conf = cfg.ConfigOpts()
    conf(args=[], project="cyborg", default_config_files=files or None)
    rules = [
        rule
        for entry in metadata.entry_points(group="oslo.policy.policies")
        if entry.name == "cyborg.api"
        for rule in entry.load()()
    ]
    return Policy(conf, rules).enforcer

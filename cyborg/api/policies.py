# SPDX-License-Identifier: Apache-2.0
"""Who may do what: the rules, their defaults, and the personas behind them."""

from __future__ import annotations

from collections.abc import Sequence

from oslo_policy import policy

ADMIN = "rule:admin_api"
READER = "rule:reader_api"
MANAGER_OR_ADMIN = "rule:manager_or_admin"
ARQ_READER = "rule:arq_reader"
ARQ_MEMBER = "rule:arq_member"

_PERSONAS = [
    policy.RuleDefault(
        "admin_api",
        "role:admin or is_admin:True",
        description="An administrator of the cloud.",
        scope_types=["project"],
    ),
    policy.RuleDefault(
        "service_api",
        "role:service",
        description="Another service, with its own credentials.",
        scope_types=["project"],
    ),
    policy.RuleDefault(
        "reader_api",
        "role:reader or role:member or role:manager or rule:admin_api",
        description="Whoever may read in some project.",
        scope_types=["project"],
    ),
    policy.RuleDefault(
        "manager_or_admin",
        "role:manager or rule:admin_api",
        description="A manager of some project.",
        scope_types=["project"],
    ),
    policy.RuleDefault(
        "arq_reader",
        "((role:reader or role:member or role:manager) and "
        "project_id:%(project_id)s) or rule:service_api or rule:admin_api",
        description="Whoever may read in the request's project.",
        scope_types=["project"],
    ),
    policy.RuleDefault(
        "arq_member",
        "((role:member or role:manager) and project_id:%(project_id)s) or "
        "rule:service_api or rule:admin_api",
        description="Whoever may change things in the request's project.",
        scope_types=["project"],
    ),
]


def _rule(
    name: str, check: str, description: str, *operations: tuple[str, str]
) -> policy.DocumentedRuleDefault:
    return policy.DocumentedRuleDefault(
        name=f"cyborg:{name}",
        check_str=check,
        description=description,
        operations=[
            {"method": method, "path": f"/v2/{path}"}
            for method, path in operations
        ],
        scope_types=["project"],
    )


_PROFILES = [
    _rule(
        "device_profile:get_all",
        READER,
        "List device profiles.",
        ("GET", "device_profiles"),
    ),
    _rule(
        "device_profile:get_one",
        READER,
        "Show a device profile.",
        ("GET", "device_profiles/{uuid}"),
        ("GET", "device_profiles/{name}"),
    ),
    _rule(
        "device_profile:create",
        ADMIN,
        "Create a device profile.",
        ("POST", "device_profiles"),
    ),
    _rule(
        "device_profile:delete",
        ADMIN,
        "Delete device profiles.",
        ("DELETE", "device_profiles/{uuid}"),
        ("DELETE", "device_profiles/{name}"),
        ("DELETE", "device_profiles?value={names}"),
    ),
]

_ARQS = [
    _rule(
        "arq:get_all",
        ARQ_READER,
        "List the accelerator requests of a project (of all projects for an "
        "administrator or a service).",
        ("GET", "accelerator_requests"),
    ),
    _rule(
        "arq:get_one",
        ARQ_READER,
        "Show an accelerator request.",
        ("GET", "accelerator_requests/{uuid}"),
    ),
    _rule(
        "arq:create",
        ARQ_MEMBER,
        "Create the accelerator requests of a device profile.",
        ("POST", "accelerator_requests"),
    ),
    _rule(
        "arq:update",
        ARQ_MEMBER,
        "Bind and unbind accelerator requests; a service token is needed "
        "besides.",
        ("PATCH", "accelerator_requests"),
        ("PATCH", "accelerator_requests/{uuid}"),
    ),
    _rule(
        "arq:delete",
        ARQ_MEMBER,
        "Delete accelerator requests; for bound ones, and for those of an "
        "instance, a service token is needed besides.",
        ("DELETE", "accelerator_requests?arqs={uuids}"),
        ("DELETE", "accelerator_requests?instance={uuid}"),
        ("DELETE", "accelerator_requests/{uuid}"),
    ),
]

_INVENTORY = [
    _rule(
        f"{thing}:{action}",
        MANAGER_OR_ADMIN,
        f"{verb} {thing}s.",
        ("GET", f"{thing}s{suffix}"),
    )
    for thing in ("device", "deployable", "attribute")
    for action, verb, suffix in (
        ("get_all", "List", ""),
        ("get_one", "Show one of the", "/{uuid}"),
    )
]

_HARDWARE = [
    _rule(
        "device:enable",
        ADMIN,
        "Let a device be scheduled on again.",
        ("POST", "devices/{uuid}/enable"),
    ),
    _rule(
        "device:disable",
        ADMIN,
        "Keep a device from being scheduled on.",
        ("POST", "devices/{uuid}/disable"),
    ),
    _rule(
        "deployable:program",
        ADMIN,
        "Program a deployable with an image.",
        ("PATCH", "deployables/{uuid}/program"),
    ),
    _rule(
        "attribute:create",
        ADMIN,
        "Give a deployable an attribute.",
        ("POST", "attributes"),
    ),
    _rule(
        "attribute:delete",
        ADMIN,
        "Take an attribute from a deployable.",
        ("DELETE", "attributes/{uuid}"),
    ),
]


def list_rules() -> Sequence[policy.RuleDefault]:
    """Every rule, for the enforcer and oslopolicy's generators."""
    return [*_PERSONAS, *_PROFILES, *_ARQS, *_INVENTORY, *_HARDWARE]

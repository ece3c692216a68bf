# SPDX-License-Identifier: Apache-2.0
"""What each ARQ of a bind gets: decided purely, from rows that were read."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from cyborg import arq
from cyborg import exception
from cyborg import profile
from cyborg.db.arq_writes import FreeHandle
from cyborg.db.arq_writes import StoredArq
from cyborg.db.hosts import Names
from cyborg.db.hosts import Provider
from cyborg.rpc.conductor import Binding


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """What a deployable must be programmed with; one of the two is set."""

    image_uuid: str | None
    function_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What an ARQ of a request gets."""

    arq: StoredArq
    binding: Binding
    provider: Provider
    handle: FreeHandle


def divide(
    bindings: Sequence[Binding], arqs: Mapping[str, StoredArq]
) -> tuple[list[Binding], list[StoredArq]]:
    """Which bindings are still to be made, and which ARQs have theirs.

    Raises NotFound for an ARQ that there is not, Conflict for one that
    holds something else.
    """
    missing = sorted({b.arq_uuid for b in bindings} - arqs.keys())
    if missing:
        raise missing_arqs(missing)
    wanted: list[Binding] = []
    done: list[StoredArq] = []
    for binding in bindings:
        found = arqs[binding.arq_uuid]
        if found.state in arq.HOLDING and _is_same(found, binding):
            done.append(found)
        elif found.state in arq.TRANSITIONS[arq.Event.BIND].sources:
            wanted.append(binding)
        else:
            raise exception.Conflict(
                f"accelerator request {found.uuid} is {found.state}: only"
                " one that is Initial or Unbound can be bound"
            )
    return wanted, done


def missing_arqs(uuids: Iterable[str]) -> exception.NotFound:
    """The error for ARQs that do not exist for the caller."""
    return exception.NotFound(
        f"there is no accelerator request {', '.join(uuids)}"
    )


def _is_same(found: StoredArq, binding: Binding) -> bool:
    return (
        found.hostname == binding.hostname
        and found.device_rp_uuid == binding.device_rp_uuid
        and found.instance_uuid == binding.instance_uuid
        and binding.project_id in (None, found.project_id)
    )


def find_providers(
    bindings: Iterable[Binding], found: Iterable[Provider]
) -> dict[str, Provider]:
    """The provider of each binding, by its uuid.  Raises NotFound."""
    by_uuid: dict[str, Provider] = {}
    for provider in found:
        by_uuid.setdefault(provider.rp_uuid, provider)
    for binding in bindings:
        if binding.device_rp_uuid not in by_uuid:
            raise exception.NotFound(
                "there is no accelerator with the resource provider"
                f" {binding.device_rp_uuid}"
            )
    return by_uuid


def check(
    binding: Binding,
    group: Mapping[str, str],
    provider: Provider,
    names: Mapping[str, Names],
) -> None:
    """Raises Conflict where the provider is not one to bind the ARQ to."""
    host = names.get(provider.hostname)
    called = {provider.hostname}
    if host is not None:
        called |= {host.name, host.provider_name}
    if binding.hostname not in called:
        raise exception.Conflict(
            f"resource provider {provider.rp_uuid} is not one of host"
            f" {binding.hostname}"
        )
    asked = {
        key[len(profile.RESOURCES) :].strip()
        for key in group
        if key.startswith(profile.RESOURCES)
    }
    if not asked & provider.resource_classes():
        raise exception.Conflict(
            f"resource provider {provider.rp_uuid} has no"
            f" {' or '.join(sorted(asked)) or 'resource class to ask for'}"
        )
    if provider.maintaining:
        raise exception.Conflict(
            f"the device of resource provider {provider.rp_uuid} is disabled"
        )
    reason = provider.broken or provider.fault
    if reason:
        raise exception.Conflict(
            f"the device of resource provider {provider.rp_uuid} cannot be"
            f" used: {reason}"
        )
    if provider.job_id is not None:
        raise exception.Conflict(
            f"the device of resource provider {provider.rp_uuid} is busy"
        )


def choose(
    wanted: Iterable[tuple[Binding, StoredArq, Provider]],
    free: Mapping[int, Sequence[FreeHandle]],
    rng: random.Random,
) -> list[Choice]:
    """A free handle for each ARQ.

    At random, so that two that choose at once seldom choose the same.
    Raises Conflict where there are not enough.
    """
    left: dict[int, list[FreeHandle]] = {}
    result: list[Choice] = []
    for binding, found, provider in wanted:
        pool = left.get(provider.deployable_id)
        if pool is None:
            pool = list(free.get(provider.deployable_id, ()))
            rng.shuffle(pool)
            left[provider.deployable_id] = pool
        if not pool:
            raise exception.Conflict(
                f"resource provider {provider.rp_uuid} has no free"
                " accelerator left"
            )
        result.append(Choice(found, binding, provider, pool.pop()))
    return result


def by_function(choices: Iterable[Choice]) -> set[int]:
    """Programmed deployables of which a function is wanted."""
    return {
        choice.provider.deployable_id
        for choice in choices
        if choice.provider.bitstream_id is not None
        and profile.wanted_function(choice.arq.group) is not None
    }


def programs(
    choices: Iterable[Choice], functions: Mapping[int, str]
) -> dict[int, Program]:
    """What has to be programmed first, by deployable.

    `functions` says what those of `by_function` were programmed with.
    Raises Conflict where two ARQs want different things of one.
    """
    result: dict[int, Program] = {}
    for choice in choices:
        needed = _program(choice, functions)
        if needed is None:
            continue
        known = result.setdefault(choice.provider.deployable_id, needed)
        if known != needed:
            raise exception.Conflict(
                f"resource provider {choice.provider.rp_uuid} cannot be"
                " programmed with two things at once"
            )
    return result


def _program(choice: Choice, functions: Mapping[int, str]) -> Program | None:
    image = profile.wanted_bitstream(choice.arq.group)
    function = profile.wanted_function(choice.arq.group)
    if image is None and function is None:
        image = choice.arq.image_uuid
    if image is not None:
        programmed = (choice.provider.bitstream_id or "").lower()
        if image.lower() != programmed:
            return Program(image, None)
        return None
    if function is None:
        return None
    if functions.get(choice.provider.deployable_id) == function:
        return None
    return Program(None, function)

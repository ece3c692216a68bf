# SPDX-License-Identifier: Apache-2.0
"""What is wrong with hosts as a whole.  Pure."""

from __future__ import annotations

from collections.abc import Iterator

from cyborg import inventory
from cyborg.audit.findings import Action
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.state import State
from cyborg.clients.placement_survey import Entry
from cyborg.db.fleet import HostRow


def check(state: State) -> Iterator[Finding]:
    """Findings of hosts that are gone, and of providers of none."""
    for host in state.rows.hosts:
        if state.trees.get(host.id, ()) is None:
            yield from _rootless(state, host)
        elif host.provider_uuid is None and host.id in state.rootless:
            yield from _vanished(state, host)
    for hostname in state.rows.unknown_hosts:
        yield _unknown(state, hostname)
    yield from _owned(state)


def _rootless(state: State, host: HostRow) -> Iterator[Finding]:
    if state.older(host.last_seen_at, state.patience.vanish):
        yield from _vanished(state, host)
        return
    yield Finding(
        Kind.MISSING_ROOT,
        host.provider_uuid or "",
        host.provider_name,
        "the host's root provider is not in Placement",
        Action.SYNC,
        facts=host.id,
    )


def _vanished(state: State, host: HostRow) -> Iterator[Finding]:
    """A host that nova-compute and our agent have left alike."""
    if host.id not in state.rootless or not state.older(
        host.last_seen_at, state.patience.vanish
    ):
        return
    seen = host.last_seen_at
    silent = "ever" if seen is None else f"since {seen.isoformat()}Z"
    yield _gone(
        state,
        Kind.VANISHED_HOST,
        host.provider_name,
        host.names,
        f"its agent has not been heard {silent}, and Placement has no"
        " provider of its name",
    )


def _unknown(state: State, hostname: str) -> Finding:
    return _gone(
        state,
        Kind.UNKNOWN_HOST,
        hostname,
        frozenset((hostname,)),
        "devices belong to a host that no agent has reported",
    )


def _gone(
    state: State,
    kind: Kind,
    hostname: str,
    names: frozenset[str],
    explanation: str,
) -> Finding:
    """Of a host; its uuid is that of no row but of its name."""
    found = [
        state.rows.holdings[name]
        for name in names
        if name in state.rows.holdings
    ]
    devices = sum(one.devices for one in found)
    arqs = sum(one.arqs for one in found)
    said = f"{explanation} ({devices} devices)"
    uuid = inventory.provider_uuid(hostname)
    if arqs:
        return Finding(
            kind,
            uuid,
            hostname,
            said,
            refusal=f"{arqs} accelerator requests still hold something of"
            " it: delete their instances, or heal those whose instances are"
            f" gone ({Kind.ORPHANED_ARQ})",
        )
    return Finding(
        kind,
        uuid,
        hostname,
        said,
        Action.DROP_HOST,
        facts=names,
    )


def _owned(state: State) -> Iterator[Finding]:
    """Providers that carry our trait below no host of ours, or are none of
    ours by name."""
    hosts = {
        host.provider_uuid: host
        for host in state.rows.hosts
        if host.provider_uuid is not None
    }
    wanted = {
        offer.rp_uuid
        for host in state.offers.values()
        for offer in host.offers
    }
    for entry in state.owned:
        host = hosts.get(entry.root)
        unread = host is not None and host.id not in state.offers
        if unread or entry.uuid in wanted:
            continue
        if entry.uuid != inventory.provider_uuid(entry.name):
            yield _foreign(entry, "" if host is None else host.provider_name)
        elif host is None:
            yield Finding(
                Kind.FOREIGN_PROVIDER,
                entry.uuid,
                "",
                f"provider {entry.name} is below root {entry.root}, which is"
                " no host's that this database knows",
                Action.REMOVE_PROVIDERS,
                facts=entry,
            )


def _foreign(entry: Entry, hostname: str) -> Finding:
    return Finding(
        Kind.FOREIGN_TRAIT,
        entry.uuid,
        hostname,
        f"provider {entry.name} carries {inventory.OWNER_TRAIT} and is none"
        " of ours: no deployable has it, and its uuid is not made from its"
        " name",
        refusal="somebody else made it: delete the trait from it, or the"
        " provider, by hand",
    )

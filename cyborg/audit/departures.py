# SPDX-License-Identifier: Apache-2.0
"""Whether an instance that Nova does not have is really gone.  Pure.

A Nova that was asked by mistake (the catalogue's first region, where
`[nova] region_name` is not set) has none of our instances.  But what a guest
runs on is in Placement as long as it lives.
"""

from __future__ import annotations

from cyborg.audit.state import State
from cyborg.clients.nova_servers import Fate
from cyborg.clients.nova_servers import Server
from cyborg.clients.placement_survey import Claim

NOVAS = frozenset({"", "INSTANCE", "MIGRATION"})
"""What consumers of Nova are said to be; mostly nothing is said of them."""


def instances(state: State, hostnames: frozenset[str] | None) -> set[str]:
    """Those of which Nova has to tell: of requests (on these hosts alone,
    or on none), and whoever has something of the trees that were read."""
    return {
        request.instance_uuid
        for request in state.rows.requests
        if request.instance_uuid is not None
        and (
            hostnames is None
            or not request.hostname
            or request.hostname in hostnames
        )
    } | {
        consumer
        for tree in state.trees.values()
        for each in (tree.providers if tree else ())
        for consumer in each.allocations
    }


def ours(state: State) -> frozenset[str]:
    """The providers (uuids) that are of accelerators."""
    roots = {host.provider_uuid for host in state.rows.hosts}
    return (
        frozenset(
            {
                each.uuid
                for tree in state.trees.values()
                for each in (tree.providers if tree else ())
            }
            | {
                offer.rp_uuid
                for host in state.offers.values()
                for offer in host.offers
                if offer.rp_uuid
            }
            | {
                request.provider_uuid
                for request in state.rows.requests
                if request.provider_uuid
            }
            | {entry.uuid for entry in state.owned if entry.uuid != entry.root}
        )
        - roots
    )


def judged(
    claim: Claim | None, accelerators: frozenset[str], known: bool
) -> Server:
    """What is to be thought of a consumer that Nova does not have.

    `claim` is what Placement says of it, None where there is no Placement;
    `known`: whether that has the root of any host of ours.
    """
    if claim is None:
        return Server(
            Fate.UNTOLD,
            why="Nova does not have it; without Placement nobody confirms"
            " that this is the Nova of this cloud",
        )
    if claim.kind not in NOVAS:
        return Server(
            Fate.UNTOLD,
            why=f"Placement calls it {claim.kind}, which is none of Nova's",
        )
    if claim.providers - accelerators:
        return Server(
            Fate.UNTOLD,
            why="Nova does not have it, but Placement still has other"
            " resources for it: see that [nova] is this cloud's (region_name),"
            " then remove them (nova-manage placement audit)",
        )
    if not (known or claim.providers):
        return Server(
            Fate.UNTOLD,
            why="Nova does not have it, but Placement knows none of our hosts"
            " either: see that [nova] and [placement] are this cloud's"
            " (region_name)",
        )
    return Server(Fate.GONE)

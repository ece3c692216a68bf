# SPDX-License-Identifier: Apache-2.0
"""Placement made to say what our hosts have.

`reconcile` is level-triggered: it makes one host's tree as it is wanted,
whatever it is now, and costs one call when it is right already.  Which
providers are wanted is not decided here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Sequence

from keystoneauth1 import adapter as ks_adapter

from cyborg import exception
from cyborg.clients import placement_api
from cyborg.clients import placement_names
from cyborg.clients import placement_tree
from cyborg.clients.placement_values import WantedProvider

__all__ = ["Placement", "ProvidersRefused", "WantedProvider"]


class ProvidersRefused(exception.PlacementUnavailable):
    """Placement works, but will not have some of the host's providers.

    The message names each and says why; the others are right.
    """


class Placement:
    """The Placement service; one object serves many threads and hosts.

    Two threads never work on one host's tree at once; other processes are
    kept from overwriting each other by the providers' generations.
    Each method raises PlacementUnavailable where Placement does not answer
    or fails; nothing is rolled back, call again later.
    """

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._api = placement_api.Api(adapter)
        self._names = placement_names.Names(self._api)
        self._lock = threading.Lock()
        self._trees: dict[str, placement_tree.HostTree] = {}

    def find_provider(self, name: str) -> str | None:
        """The uuid of the root provider called `name`, None without one."""
        try:
            found = self._api.get("/resource_providers", {"name": name})
        except (placement_api.MovedError, placement_api.RefusedError) as error:
            raise _unavailable(error) from error
        for entry in found["resource_providers"]:
            if entry["parent_provider_uuid"] is None:
                return str(entry["uuid"])
        return None

    def reconcile(
        self, root_uuid: str, wanted: Sequence[WantedProvider]
    ) -> bool:
        """Make our providers below `root_uuid` exactly the `wanted` ones.

        Whether something had to be changed for that.  A provider that is
        not wanted goes, or is closed while it has allocations.  Raises
        NotFound where the root is not there, and ProvidersRefused, after
        doing all the others.
        """
        tree = self._tree(root_uuid)
        with tree.lock:
            self._finish(tree, wanted, tree.reconcile)
            return tree.written

    def remove(self, root_uuid: str, uuid: str) -> bool:
        """Make one of our providers below `root_uuid` go, and no other.

        Whether it was there to be changed.  Raises as `reconcile` does.
        """
        tree = self._tree(root_uuid)
        with tree.lock:
            self._finish(tree, (), lambda: tree.remove(uuid))
            return tree.written

    def refresh_inventories(
        self, root_uuid: str, wanted: Sequence[WantedProvider]
    ) -> None:
        """Make the inventories of these providers right, and no more.

        At most 2 + K calls for K providers, even in a new process; one that
        is missing is made whole.  Raises as `reconcile` does.
        """
        tree = self._tree(root_uuid)
        with tree.lock:
            self._finish(tree, wanted, tree.refresh_inventories)

    def _tree(self, root_uuid: str) -> placement_tree.HostTree:
        with self._lock:
            return self._trees.setdefault(
                root_uuid,
                placement_tree.HostTree(self._api, self._names, root_uuid),
            )

    def _finish(
        self,
        tree: placement_tree.HostTree,
        wanted: Sequence[WantedProvider],
        step: Callable[[], list[str]],
    ) -> None:
        """Read the tree, do the step, and report what was refused."""
        try:
            tree.read(wanted)
            refusals = step()
        except (placement_api.MovedError, placement_api.RefusedError) as error:
            raise _unavailable(error) from error
        finally:
            tree.release()
        if refusals:
            raise ProvidersRefused(f"Placement refuses {'; '.join(refusals)}")


def _unavailable(error: Exception) -> exception.PlacementUnavailable:
    return exception.PlacementUnavailable(f"Placement refuses: {error}")

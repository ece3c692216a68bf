# SPDX-License-Identifier: Apache-2.0
"""Nova told of our results, and asked whose an instance is.

Nova's answer to an event never changes what we decided: it tells only
whether telling it again could help.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from keystoneauth1 import adapter as ks_adapter

from cyborg import exception
from cyborg.clients import session

LOG = logging.getLogger(__name__)

MICROVERSION = "compute 2.82"
"""The first that knows the event `accelerator-request-bound`."""

EVENTS_PER_CALL = 500


@dataclasses.dataclass(frozen=True, slots=True)
class BindEvent:
    """An accelerator request ended binding; `status` as Nova names it,
    `completed` or `failed`."""

    instance_uuid: str
    arq_uuid: str
    status: str


class Nova:
    """The compute service; one object serves many threads."""

    def __init__(self, adapter: ks_adapter.Adapter) -> None:
        self._service = session.Service(adapter, "Nova")

    def notify(self, events: Sequence[BindEvent]) -> frozenset[str]:
        """Tell Nova; the ARQs (uuids) whose event should be sent again.

        An instance's events go in one call.  Again means that Nova did not
        do its work: no answer, an error of its own, our credential refused.
        An instance that is unknown (404) or not on a host yet (422, it asks
        us before it waits) was told for good.
        """
        again: set[str] = set()
        for batch in _batches(events):
            again |= self._post(batch)
        return frozenset(again)

    def project_of(self, instance_uuid: str) -> str | None:
        """The project that owns an instance, None where Nova has none.

        Raises Unavailable.
        """
        response = self._service.call(
            "GET", f"/servers/{instance_uuid}", version=MICROVERSION
        )
        if response.status_code in (400, 404):
            return None
        if response.status_code != 200:
            raise self._service.failed(f"answered {response.status_code}")
        server = self._service.decoded(response).get("server")
        found = server.get("tenant_id") if isinstance(server, dict) else None
        return str(found) if found else None

    def _post(self, events: Sequence[BindEvent]) -> set[str]:
        every = {event.arq_uuid for event in events}
        body = {
            "events": [
                {
                    "name": "accelerator-request-bound",
                    "server_uuid": event.instance_uuid,
                    "tag": event.arq_uuid,
                    "status": event.status,
                }
                for event in events
            ]
        }
        try:
            response = self._service.call(
                "POST",
                "/os-server-external-events",
                version=MICROVERSION,
                body=body,
            )
            if response.status_code in (200, 207):
                return _failed(self._service.decoded(response)) & every
        except exception.Unavailable:
            return every
        if response.status_code != 404:
            LOG.error(
                "Nova answered %d to events of accelerator requests %s; "
                "they are not sent again",
                response.status_code,
                ", ".join(sorted(every)),
            )
        return set()


def _failed(answer: dict[str, object]) -> set[str]:
    """The tags of the events that Nova failed on by a fault of its own."""
    events = answer.get("events")
    return {
        str(event.get("tag"))
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, dict)
        and isinstance(event.get("code"), int)
        and event["code"] >= 500
    }


def _batches(events: Iterable[BindEvent]) -> Iterator[list[BindEvent]]:
    """The events in calls of bounded size, no instance split over two."""
    batch: list[BindEvent] = []
    by_instance = sorted(events, key=lambda event: event.instance_uuid)
    for _, group in itertools.groupby(
        by_instance, key=lambda event: event.instance_uuid
    ):
        together = list(group)
        if batch and len(batch) + len(together) > EVENTS_PER_CALL:
            yield batch
            batch = []
        batch.extend(together)
    if batch:
        yield batch

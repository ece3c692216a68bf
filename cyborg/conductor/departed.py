# SPDX-License-Identifier: Apache-2.0
"""A host that is gone for good is forgotten, with what it had."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

from oslo_db import exception as db_exception

from cyborg.conductor import report_plan
from cyborg.db import report_rows
from cyborg.db import reports as rows
from cyborg.db.engine import Database
from cyborg.db.engine import retried


@retried
def remove(
    database: Database, names: Collection[str], before: dt.datetime
) -> str:
    """Removes the devices under these names, and the host; why not, or what
    is left of it.

    What is in use is marked as lost, and goes when it is given back.  A host
    that was heard after `before` is not gone.
    """
    try:
        with database.writer() as session:
            found = rows.lock_hosts_called(session, names)
            if any(
                host.last_seen_at is not None and host.last_seen_at > before
                for host in found
            ):
                return "its agent has been heard again"
            devices = report_rows.load(session, names)
            changes = report_rows.Plan()
            for device in devices:
                report_plan.lose_device(changes, device)
            rows.apply(session, changes)
            held = sum(device.held for device in devices)
            if not held and found:
                rows.delete_hosts(session, [host.id for host in found])
    except (rows.Overtaken, db_exception.DBReferenceError):
        return "something of it was taken just now"
    if held:
        return (
            f"{held} devices are in use or not clean yet: they are marked as"
            " lost, and go when their units are given back or a day has gone"
        )
    return ""

# SPDX-License-Identifier: Apache-2.0
"""Drive Nova's own Cyborg client through one instance's life.

Run by the Python of the cloud's own environment: `nova_client.py FILE`,
where FILE holds JSON with what to do it with; prints JSON of what it saw.
It imports nothing of ours.
"""

from __future__ import annotations

import json
import pathlib
import sys

import nova.conf
from nova import context
from nova import objects
from nova.accelerator import cyborg

CONF = nova.conf.CONF


def main() -> None:
    task = json.loads(pathlib.Path(sys.argv[1]).read_text())
    CONF([], project="nova", default_config_files=[task["configuration"]])
    objects.register_all()
    who = context.RequestContext(
        user_id=task["user_id"],
        project_id=task["project_id"],
        auth_token=task["token"],
        service_catalog=task["catalogue"],
    )
    client = cyborg.get_client(who)
    groups = cyborg.get_device_profile_request_groups(who, task["profile"])
    seen = {
        "groups": [
            {
                "requester_id": group.requester_id,
                "resources": group.resources,
                "required": sorted(group.required_traits),
            }
            for group in groups
        ],
    }
    arqs = client.create_arqs_and_match_resource_providers(
        task["profile"],
        {group.requester_id: [task["provider"]] for group in groups},
    )
    client.bind_arqs(
        {
            arq["uuid"]: {
                "hostname": task["hostname"],
                "device_rp_uuid": arq["device_rp_uuid"],
                "instance_uuid": task["instance"],
            }
            for arq in arqs
        }
    )
    seen["bound"] = client.get_arqs_for_instance(
        task["instance"], only_resolved=True
    )
    seen["one"] = client.get_arq_by_uuid(arqs[0]["uuid"])
    client.delete_arqs_for_instance(task["instance"])
    client.delete_arqs_for_instance(task["instance"])
    (unused, *_) = client.create_arqs(task["profile"])
    client.delete_arqs_by_uuid([unused["uuid"]])
    print(json.dumps(seen))


if __name__ == "__main__":
    main()

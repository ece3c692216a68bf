# SPDX-License-Identifier: Apache-2.0
"""Every accelerator call of openstacksdk, judged by its effect.

Run by the Python of any environment with an openstacksdk: `sdk_walk.py
FILE`, where FILE holds JSON with whom to be and what to use; prints JSON of
what it saw.  It imports nothing of ours.
"""

from __future__ import annotations

import functools
import inspect
import json
import pathlib
import sys
import traceback
import uuid
from collections.abc import Callable
from typing import Any

from keystoneauth1 import identity
from keystoneauth1 import service_token
from keystoneauth1 import session
from openstack import connection
from openstack import exceptions
from openstack import version
from openstack.accelerator.v2 import _proxy

CALLS = frozenset(
    name
    for name, value in vars(_proxy.Proxy).items()
    if inspect.isfunction(value) and not name.startswith("_")
)
"""The public calls of this openstacksdk."""

NOBODY = str(uuid.UUID(int=0x5EED))
PERIOD = 0.2

worked: set[str] = set()


class Recorder:
    """openstacksdk's accelerator proxy; what returned is in `worked`."""

    def __init__(self, proxy: _proxy.Proxy) -> None:
        self.proxy = proxy

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in CALLS:
            raise AttributeError(name)
        call = getattr(self.proxy, name)

        @functools.wraps(call)
        def recorded(*words: Any, **options: Any) -> Any:
            result = call(*words, **options)
            if inspect.isgenerator(result):
                result = list(result)
            worked.add(name)
            return result

        return recorded

    def raw(self, path: str) -> Any:
        """The service's own answer, past the resources of the library."""
        answer = self.proxy.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


class Walk:
    """The administrator's, a member's, and that one's in Nova's hands."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.admin = self._accelerator("admin")
        self.member = self._accelerator("demo-member")
        self.nova = self._accelerator("demo-member", "nova")
        self.faults: list[str] = []

    def profiles(self) -> str:
        name = f"sdk-{uuid.uuid4().hex[:12]}"
        words = {
            "name": name,
            "groups": self.task["groups"],
            "description": "made by sdk",
        }
        made = self.admin.create_device_profile(**words)
        stored = self.admin.raw(f"/device_profiles/{made.id}")
        assert words.items() <= stored["device_profile"].items()
        assert made.name in {
            profile.name for profile in self.member.device_profiles()
        }
        for wanted in (made, made.id, name):
            shown = self.member.get_device_profile(wanted)
            assert (shown.uuid, shown.groups) == (made.id, words["groups"])
        refuses(
            exceptions.ConflictException,
            lambda: self.admin.create_device_profile(**words),
        )
        refuses(
            exceptions.BadRequestException,
            lambda: self.admin.create_device_profile(name="x", groups=[{}]),
        )
        refuses(
            exceptions.ForbiddenException,
            lambda: self.member.create_device_profile(**words),
        )
        self._missing("device_profile")
        return name

    def devices(self) -> None:
        (device,) = self.admin.devices()
        assert device.hostname == self.task["hostname"]
        assert [one.id for one in self.admin.devices(type=device.type)] == [
            device.id
        ]
        assert self.admin.devices(hostname="elsewhere") == []
        shown = self.admin.get_device(device.id)
        assert shown.model == device.model
        refuses(exceptions.ForbiddenException, self.member.devices)
        self._missing("device")
        if "disable_device" not in CALLS:
            return
        self.admin.disable_device(device.id)
        assert self._status(device) == "maintaining"
        self.admin.enable_device(device)
        assert self._status(device) == "enabled"
        same = self.admin.wait_for_status(device, "enabled", wait=30)
        assert same.id == device.id
        for call in (self.admin.disable_device, self.admin.enable_device):
            # The service says 404, and the library does not look.
            call(NOBODY)
        answer = self.admin.proxy.post(f"/devices/{NOBODY}/disable")
        assert answer.status_code == 404
        self.faults.append("disable_device and enable_device tell no error")

    def deployables(self) -> None:
        (deployable,) = self.admin.deployables()
        shown = self.admin.get_deployable(deployable.id)
        assert shown.num_accelerators == self.task["accelerators"]
        assert shown.name == deployable.name
        self._missing("deployable")
        first, second = self.task["images"]
        if "patch_deployable" in CALLS:
            self.admin.patch_deployable(deployable.id, _program(first))
            assert self._bitstream(deployable) == first
        try:
            self.admin.update_deployable(deployable.id, _program(second))
        except RecursionError as error:
            self._recursion(error)
            assert self._bitstream(deployable) == first
        else:
            assert self._bitstream(deployable) == second

    def attributes(self) -> None:
        number = self.admin.raw("/attributes")["attributes"][0][
            "deployable_id"
        ]
        words = {"deployable_id": number, "key": "note", "value": "by sdk"}
        made = self.admin.create_attribute(**words)
        stored = self.admin.raw(f"/attributes/{made.id}")
        assert words.items() <= stored.items()
        assert self.admin.get_attribute(made.id).value == "by sdk"
        assert made.id in {one.id for one in self.admin.attributes()}
        self.admin.delete_attribute(made, ignore_missing=False)
        assert made.id not in {one.id for one in self.admin.attributes()}
        self._missing("attribute")

    def requests(self, profile: str) -> str:
        """The instance that was bound for, for Nova's events."""
        arq = self.member.create_accelerator_request(
            device_profile_name=profile
        )
        assert (arq.state, arq.device_profile_name) == ("Initial", profile)
        server = str(uuid.uuid4())
        values = {
            "hostname": self.task["hostname"],
            "device_rp_uuid": self.task["provider"],
            "instance_uuid": server,
        }
        refuses(
            exceptions.ForbiddenException,
            lambda: self._bind(self.member, arq.id, _add(values)),
        )
        self._bind(self.nova, arq.id, _add(values))
        bound = self.member.wait_for_status(
            self.member.get_accelerator_request(arq.id),
            "Bound",
            interval=PERIOD,
            wait=30,
            attribute="state",
        )
        assert bound.instance_uuid == server
        assert bound.attach_handle_info["bus"] == "0c"
        (found,) = self.member.accelerator_requests(instance_uuid=server)
        assert found.id == arq.id
        refuses(
            exceptions.ConflictException,
            lambda: self.admin.delete_device_profile(
                profile_id(self.admin, profile)
            ),
        )
        self.nova.update_accelerator_request(
            arq.id, [{"op": "remove", "path": f"/{key}"} for key in values]
        )
        unbound = self.member.get_accelerator_request(arq.id)
        assert (unbound.state, unbound.instance_uuid) == ("Unbound", None)
        self.member.delete_accelerator_request(arq, ignore_missing=False)
        self.member.wait_for_delete(unbound, interval=PERIOD, wait=30)
        assert self.member.accelerator_requests() == []
        self._missing("accelerator_request")
        refuses(
            exceptions.NotFoundException,
            lambda: self.member.create_accelerator_request(
                device_profile_name="no-such-profile"
            ),
        )
        return server

    def forget(self, profile: str) -> None:
        wanted = profile_id(self.admin, profile)
        self.admin.delete_device_profile(wanted, ignore_missing=False)
        refuses(
            exceptions.NotFoundException,
            lambda: self.admin.get_device_profile(wanted),
        )

    def _bind(self, cloud: Recorder, arq: str, patch: Any) -> None:
        name = "patch_accelerator_request"
        if name not in CALLS:
            name = "update_accelerator_request"
        getattr(cloud, name)(arq, patch)

    def _missing(self, thing: str) -> None:
        """What is not there is told, or not where that is asked for."""
        refuses(
            exceptions.NotFoundException,
            lambda: getattr(self.admin, f"get_{thing}")(NOBODY),
        )
        delete = f"delete_{thing}"
        if delete in CALLS:
            getattr(self.admin, delete)(NOBODY)
            refuses(
                exceptions.NotFoundException,
                lambda: getattr(self.admin, delete)(
                    NOBODY, ignore_missing=False
                ),
            )

    def _status(self, device: Any) -> Any:
        return self.admin.raw(f"/devices/{device.id}")["status"]

    def _bitstream(self, deployable: Any) -> Any:
        return self.admin.raw(f"/deployables/{deployable.id}")["bitstream_id"]

    def _recursion(self, error: RecursionError) -> None:
        """Note that the call ended in itself and asked nobody anything."""
        inside = [
            frame.name
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == _proxy.__file__
        ]
        assert set(inside) == {"update_deployable"}
        assert len(inside) > 100
        self.faults.append("update_deployable calls itself")

    def _accelerator(self, user: str, service: str | None = None) -> Recorder:
        auth: Any = self._password(user)
        if service is not None:
            auth = service_token.ServiceTokenAuthWrapper(
                user_auth=auth, service_auth=self._password(service)
            )
        cloud = connection.Connection(
            session=session.Session(auth=auth),
            region_name=self.task["region"],
            accelerator_default_microversion="2.3",
        )
        return Recorder(cloud.accelerator)

    def _password(self, user: str) -> identity.Password:
        return identity.Password(
            auth_url=self.task["auth_url"],
            username=user,
            password=self.task["password"],
            project_name=self.task["projects"][user],
            user_domain_id="default",
            project_domain_id="default",
        )


def refuses(kind: type[Exception], call: Callable[[], Any]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"not refused by {kind.__name__}")


def profile_id(cloud: Recorder, name: str) -> str:
    (found,) = (one for one in cloud.device_profiles() if one.name == name)
    return str(found.id)


def _program(image: str) -> list[dict[str, Any]]:
    return [
        {
            "path": "/program",
            "op": "replace",
            "value": [{"image_uuid": image}],
        }
    ]


def _add(values: dict[str, str]) -> list[dict[str, str]]:
    return [
        {"op": "add", "path": f"/{key}", "value": value}
        for key, value in values.items()
    ]


def main() -> None:
    walk = Walk(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    profile = walk.profiles()
    walk.devices()
    walk.deployables()
    walk.attributes()
    server = walk.requests(profile)
    walk.forget(profile)
    print(
        json.dumps(
            {
                "version": version.__version__,
                "calls": sorted(CALLS),
                "worked": sorted(worked),
                "faults": walk.faults,
                "server": server,
            }
        )
    )


if __name__ == "__main__":
    main()

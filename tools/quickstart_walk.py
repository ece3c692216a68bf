# SPDX-License-Identifier: Apache-2.0
"""Start cyborg-standalone and walk through the life of an accelerator.

Plays Nova: asks Placement for candidates, claims one, creates and binds an
accelerator request, takes the event, and gives everything back.  Each answer
is printed and checked.  Needs the standard library only; run it by
tools/quickstart.sh, with the Python of its virtual environment.
"""

# A tool, not a package: it prints, and asks only our own loopback URLs.
# ruff: noqa: INP001, S310, T201

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import shutil
import signal
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any
from typing import NoReturn

from quickstart_service import HOST_NAME
from quickstart_service import START_SECONDS
from quickstart_service import Nova
from quickstart_service import Standalone
from quickstart_service import WalkError
from quickstart_service import check
from quickstart_service import running

PROJECT = str(uuid.uuid4())
GROUP = "_device_profile_0"
WAIT_SECONDS = 30
SHOWN_LINES = 30
SHOWN_CHARACTERS = 100
STEP = "  "

VERSIONS = {
    "cyborg": "accelerator 2.3",
    "placement": "placement 1.39",
}


class Walk:
    """Requests to the running service, printed and checked."""

    def __init__(self, service: Standalone, nova: Nova) -> None:
        self._service = service
        self._nova = nova
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({})
        )
        self._number = 0
        self.instance = str(uuid.uuid4())

    # -- asking and telling

    def title(self, text: str) -> None:
        self._number += 1
        print(f"\n{self._number}. {text}")

    def fetch(
        self, service: str, method: str, path: str, body: object = None
    ) -> tuple[int, Any]:
        """Status and decoded answer, without a word."""
        request = urllib.request.Request(
            self._service.urls[service] + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Accept": "application/json",
                "Content-Type": "application/json",
                "OpenStack-API-Version": VERSIONS[service],
            },
        )
        try:
            with self._opener.open(request, timeout=30) as response:
                status, content = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        return status, json.loads(content) if content else None

    def ask(
        self,
        service: str,
        method: str,
        path: str,
        body: object = None,
        expected: int = 200,
    ) -> Any:
        """The answer, printed with its request; WalkError if refused."""
        shown = urllib.parse.unquote(path)
        print(f"   -> {service}: {method} {shown}")
        if body is not None:
            show(body, "      ")
        status, answer = self.fetch(service, method, path, body)
        print(f"   <- {status}")
        if answer is not None:
            show(answer, "      ")
        check(status == expected, f"{method} {shown} answered {status}")
        return answer

    def wait_for(self, what: str, path: str, key: str) -> None:
        """Until a list of Cyborg has something; WalkError if it never has.

        While the service starts nothing answers at all.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._service.check()
            with contextlib.suppress(urllib.error.URLError, OSError):
                status, answer = self.fetch("cyborg", "GET", path)
                if status == 200 and answer[key]:
                    return
            time.sleep(0.1)
        raise WalkError(f"{what} did not come within {START_SECONDS} s")

    # -- the steps

    def run(self) -> None:
        """Every step; raises WalkError at the first that goes wrong."""
        self.wait_for("the service's first answer", "/", "versions")
        self.wait_for("the agent's first report", "/v2/devices", "devices")
        try:
            self.see_providers(self.see_devices())
            self.create_profile()
            provider = self.claim()
            arq = self.request()
            self.bind(arq, provider)
            self.give_back(arq, provider)
        except (LookupError, TypeError, ValueError, OSError) as error:
            self._service.check()
            raise WalkError(f"an answer is not as it should: {error!r}") from (
                error
            )

    def see_devices(self) -> str:
        """The uuid of the device's resource provider."""
        self.title("The agent has found a device (the fake driver's)")
        self.ask("cyborg", "GET", "/")
        devices = self.ask("cyborg", "GET", "/v2/devices")["devices"]
        found = self.ask("cyborg", "GET", "/v2/deployables")["deployables"]
        check(
            [device["hostname"] for device in devices] == [HOST_NAME],
            "the device is not on this host",
        )
        check(found[0]["num_accelerators"] == 16, "not 16 accelerators")
        return str(found[0]["rp_uuid"])

    def see_providers(self, provider_uuid: str) -> None:
        self.title("The conductor has told Placement")
        status, found = self.fetch(
            "placement", "GET", f"/resource_providers?name={HOST_NAME}"
        )
        check(status == 200, "Placement does not list its providers")
        (root,) = found["resource_providers"]
        path = f"/resource_providers/{provider_uuid}"
        deadline = time.monotonic() + WAIT_SECONDS
        while self.fetch("placement", "GET", f"{path}/inventories")[1].get(
            "inventories"
        ) in (None, {}):
            check(time.monotonic() < deadline, "no inventory in Placement")
            time.sleep(0.1)
        provider = self.ask("placement", "GET", path)
        inventory = self.ask("placement", "GET", f"{path}/inventories")
        traits = self.ask("placement", "GET", f"{path}/traits")
        check(
            provider["parent_provider_uuid"] == root["uuid"],
            "the provider is not below its host's",
        )
        check(inventory["inventories"]["FPGA"]["total"] == 16, "not 16 FPGA")
        check("OWNER_CYBORG" in traits["traits"], "no trait OWNER_CYBORG")

    def create_profile(self) -> None:
        self.title("An operator creates a device profile")
        groups = [
            {"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}
        ]
        self.ask(
            "cyborg",
            "POST",
            "/v2/device_profiles",
            [{"name": "quickstart", "groups": groups}],
            expected=201,
        )

    def claim(self) -> str:
        """Claim an accelerator; the provider's uuid."""
        self.title("Nova schedules an instance: candidates, then a claim")
        found = self.ask(
            "cyborg", "GET", "/v2/device_profiles?name=quickstart"
        )
        group = found["device_profiles"][0]["groups"][0]
        check(group["resources:FPGA"] == "1", "the profile has other groups")
        query = urllib.parse.urlencode(
            {
                "resources": "VCPU:1,MEMORY_MB:64",
                f"resources{GROUP}": "FPGA:1",
                f"required{GROUP}": "CUSTOM_FAKE_DEVICE",
                "limit": 1,
            }
        )
        answer = self.ask(
            "placement", "GET", f"/allocation_candidates?{query}"
        )
        check(bool(answer["allocation_requests"]), "nothing can be scheduled")
        candidate = answer["allocation_requests"][0]
        self.ask(
            "placement",
            "PUT",
            f"/allocations/{self.instance}",
            {
                **candidate,
                "project_id": PROJECT,
                "user_id": PROJECT,
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            },
            expected=204,
        )
        (provider,) = candidate["mappings"][GROUP]
        check(self.used(provider) == 1, "the claim does not show")
        return str(provider)

    def used(self, provider: str) -> int:
        """How many accelerators of a provider are allocated."""
        path = f"/resource_providers/{provider}/usages"
        return int(self.fetch("placement", "GET", path)[1]["usages"]["FPGA"])

    def request(self) -> str:
        """Create an accelerator request; its uuid."""
        self.title("Nova creates an accelerator request (ARQ)")
        answer = self.ask(
            "cyborg",
            "POST",
            "/v2/accelerator_requests",
            {"device_profile_name": "quickstart"},
            expected=201,
        )
        (arq,) = answer["arqs"]
        check(arq["state"] == "Initial", f"the ARQ is {arq['state']}")
        return str(arq["uuid"])

    def bind(self, arq: str, provider: str) -> None:
        self.title("Nova binds it, and waits for the event")
        wanted = {
            "hostname": HOST_NAME,
            "device_rp_uuid": provider,
            "instance_uuid": self.instance,
        }
        self.ask(
            "cyborg",
            "PATCH",
            "/v2/accelerator_requests",
            {
                arq: [
                    {"op": "add", "path": f"/{name}", "value": value}
                    for name, value in wanted.items()
                ]
            },
            expected=202,
        )
        self.take_event(arq)
        path = (
            f"/v2/accelerator_requests?instance={self.instance}"
            "&bind_state=resolved"
        )
        (bound,) = self.ask("cyborg", "GET", path)["arqs"]
        check(bound["uuid"] == arq, "another ARQ")
        check(bound["state"] == "Bound", f"the ARQ is {bound['state']}")
        check(bool(bound["attach_handle_info"]), "no attach handle")

    def take_event(self, arq: str) -> None:
        try:
            event = self._nova.events.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise WalkError("no event came to Nova") from None
        print("   The event that came to Nova:")
        show(event, "      ")
        check(
            (event["tag"], event["server_uuid"], event["status"])
            == (arq, self.instance, "completed"),
            "the event is not this ARQ's",
        )

    def give_back(self, arq: str, provider: str) -> None:
        self.title("The instance is deleted, and all is free again")
        self.ask(
            "cyborg",
            "DELETE",
            f"/v2/accelerator_requests?instance={self.instance}",
            expected=204,
        )
        self.ask("cyborg", "GET", f"/v2/accelerator_requests/{arq}", None, 404)
        path = f"/allocations/{self.instance}"
        self.ask("placement", "DELETE", path, None, 204)
        self.ask("placement", "GET", f"/resource_providers/{provider}/usages")
        check(self.used(provider) == 0, "an accelerator is still in use")
        path = "/v2/device_profiles/quickstart"
        self.ask("cyborg", "DELETE", path, None, 204)


def show(value: object, indent: str) -> None:
    """Print JSON, in lines, and cut where it is long."""
    width = max(40, min(shutil.get_terminal_size().columns, 100))
    lines = lines_of(without_noise(value), width - len(indent))
    if len(lines) > SHOWN_LINES:
        lines[SHOWN_LINES:] = ["..."]
    for line in lines:
        print(indent + line)


def lines_of(value: Any, width: int, label: str = "") -> list[str]:
    """JSON: one line where it fits, else one for each member."""
    if isinstance(value, str) and len(value) > SHOWN_CHARACTERS:
        value = value[:SHOWN_CHARACTERS] + " ..."
    flat = label + json.dumps(value)
    if len(flat) <= width or not isinstance(value, dict | list):
        return [flat]
    if isinstance(value, dict):
        ends = "{}"
        members = [(f"{json.dumps(key)}: ", value[key]) for key in value]
    else:
        ends = "[]"
        members = [("", each) for each in value]
    lines = [label + ends[0]]
    for name, member in members:
        inner = lines_of(member, width - len(STEP) - 1, name)
        inner[-1] += ","
        lines += [STEP + line for line in inner]
    lines[-1] = lines[-1].removesuffix(",")
    return [*lines, ends[1]]


def without_noise(value: Any) -> Any:
    """The value without links and nulls, which only fill the screen here."""
    if isinstance(value, dict):
        return {
            key: without_noise(each)
            for key, each in value.items()
            if key != "links" and each is not None
        }
    if isinstance(value, list):
        return [without_noise(each) for each in value]
    return value


def stay(service: Standalone) -> None:
    """Leave it running until Ctrl-C."""
    print(
        f"\nIt runs until Ctrl-C. Try, in another terminal:\n"
        f"  curl {service.urls['cyborg']}/v2/deployables\n"
        f"  curl {service.urls['placement']}/resource_providers\n"
        f"Its log: {service.log}",
        flush=True,
    )
    service.process.wait()
    service.check()


def interrupted(*_: object) -> NoReturn:
    """SIGTERM ends us as Ctrl-C does: in order."""
    raise KeyboardInterrupt


def main() -> int:
    """0 where every step went as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--exit", action="store_true", help="end after the walk"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupted)
    walked = False
    try:
        nova = Nova()
        print("Starting API, conductor, agent and Placement ...", flush=True)
        print("(Links and nulls are left out below.)", flush=True)
        with running(nova) as service:
            Walk(service, nova).run()
            walked = True
            print("\nEvery step went as it should.", flush=True)
            if not options.exit:
                stay(service)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0 if walked else 130
    except WalkError as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

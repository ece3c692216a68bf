# SPDX-License-Identifier: Apache-2.0
"""TLS to the API, and to all that Cyborg talks to."""

from __future__ import annotations

import contextlib
import socket
import ssl
import urllib.parse
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

import pytest
import requests

from tests.integration import certificates
from tests.integration import children
from tests.integration import cloud as clouds
from tests.integration import deployment
from tests.integration import instance as instances
from tests.integration import logs
from tests.integration import resources
from tests.integration import servers
from tests.integration import tls_proxy

START_SECONDS = 90


@pytest.fixture(scope="module")
def authority(
    tmp_path_factory: pytest.TempPathFactory,
) -> certificates.Authority:
    return certificates.Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    cloud: clouds.Cloud,
    authority: certificates.Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[deployment.Deployment]:
    """All three services, and each that they talk to, by TLS."""
    pair = authority.issue("servers")
    server, client = authority.issue("api"), authority.issue("caller")
    with contextlib.ExitStack() as stack:
        mariadb = servers.MariaDB(
            tmp_path_factory.mktemp("mariadb"), pair, authority.file
        )
        stack.callback(mariadb.kill)
        cyborg = deployment.Deployment(
            cloud,
            mariadb.url,
            stack.enter_context(resources.vhost("cyborg")),
            tmp_path_factory.mktemp("cyborg"),
        )
        stack.callback(cyborg.stop)
        cyborg.prepare()
        cyborg.scheme = "https"
        cyborg.trusted = str(authority.file)
        cyborg.certificate = (str(client.certificate), str(client.key))
        proxies = {
            name: stack.enter_context(tls_proxy.before(pair, url.port or 5672))
            for name, url in {
                "keystone": urllib.parse.urlsplit(cloud.keystone.auth_url),
                "placement": urllib.parse.urlsplit(cloud.placement.url),
                "nova": urllib.parse.urlsplit(cloud.nova.url),
                "glance": urllib.parse.urlsplit(cloud.glance.url),
                "broker": urllib.parse.urlsplit(cyborg.vhost.url),
            }.items()
        }
        environment = _by_tls(
            cyborg,
            {name: proxy.port for name, proxy in proxies.items()},
            authority,
        )
        for name in ("conductor", "agent"):
            cyborg.launch(name, environment=environment)
        cyborg.launch(
            "api",
            environment=environment
            | {
                "OS_API__ENABLE_SSL_API": "true",
                "OS_API__SSL_CERT_FILE": str(server.certificate),
                "OS_API__SSL_KEY_FILE": str(server.key),
                "OS_API__SSL_CA_FILE": str(authority.file),
            },
        )
        resources.wait_until(
            lambda: resources.answers(cyborg.port),
            START_SECONDS,
            "the API listens",
        )
        cyborg.wait_for_providers(seconds=START_SECONDS)
        yield cyborg
        assert [
            name for name, proxy in proxies.items() if not proxy.handshakes
        ] == []


def _by_tls(
    cyborg: deployment.Deployment,
    ports: Mapping[str, int],
    authority: certificates.Authority,
) -> dict[str, str]:
    """What leads each service to the ports that speak TLS."""
    urls = {name: f"https://127.0.0.1:{port}" for name, port in ports.items()}
    broker = urllib.parse.urlsplit(cyborg.vhost.url)
    user = broker.netloc.rpartition("@")[0]
    path = urllib.parse.urlsplit(cyborg.cloud.keystone.auth_url).path
    environment = {
        "OS_DEFAULT__TRANSPORT_URL": (
            f"rabbit://{user}@127.0.0.1:{ports['broker']}{broker.path}"
        ),
        "OS_OSLO_MESSAGING_RABBIT__SSL": "true",
        "OS_OSLO_MESSAGING_RABBIT__SSL_CA_FILE": str(authority.file),
        "OS_PLACEMENT__ENDPOINT_OVERRIDE": urls["placement"],
        "OS_NOVA__ENDPOINT_OVERRIDE": f"{urls['nova']}/v2.1",
        "OS_GLANCE__ENDPOINT_OVERRIDE": urls["glance"],
    }
    for group in ("KEYSTONE_AUTHTOKEN", "PLACEMENT", "NOVA", "GLANCE"):
        environment |= {
            f"OS_{group}__AUTH_URL": urls["keystone"] + path,
            f"OS_{group}__CAFILE": str(authority.file),
        }
    return environment


def _get(
    cyborg: deployment.Deployment,
    trusted: Path,
    client: certificates.Pair | None,
    path: str = "/v2/devices",
) -> requests.Response:
    return requests.get(
        f"https://127.0.0.1:{cyborg.port}{path}",
        headers={"X-Auth-Token": cyborg.cloud.keystone.token("admin")},
        verify=str(trusted),
        cert=tuple(map(str, client)) if client else None,
        timeout=60,
    )


def test_the_whole_flow_goes_by_tls(secured: deployment.Deployment) -> None:
    """A card is programmed with an image from Glance, Nova is told, and all
    is given back; the database takes nobody without TLS."""
    image = secured.cloud.glance.add(b"a bitstream")
    group = {**instances.FAKE_GROUP, "accel:bitstream_id": image}
    instance = instances.Instance(secured, secured.make_profile([group]))
    (arq,) = instance.boot()
    assert arq["state"] == "Bound"
    secured.cloud.nova.wait_for(instance.uuid, 1, 60)
    (event,) = secured.cloud.nova.events_of(instance.uuid)
    assert (event["tag"], event["status"]) == (arq["uuid"], "completed")
    instance.delete()
    assert secured.handles_in_use() == 0
    (version,) = secured.caller(None).get("/")["versions"]
    (link,) = version["links"]
    assert link["href"] == f"https://127.0.0.1:{secured.port}/v2"
    assert secured.tracebacks() == {}


def test_a_client_that_the_api_does_not_know_gets_nothing(
    secured: deployment.Deployment,
    authority: certificates.Authority,
    tmp_path: Path,
) -> None:
    stranger = certificates.Authority(tmp_path, "stranger").issue("client")
    for client in (None, stranger):
        with pytest.raises(requests.ConnectionError):
            _get(secured, authority.file, client)
    known = authority.issue("client")
    assert _get(secured, authority.file, known).status_code == 200
    assert secured.tracebacks() == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_tls_is_not_spoken(
    secured: deployment.Deployment, authority: certificates.Authority
) -> None:
    client = authority.issue("client")
    context = ssl.create_default_context(cafile=str(authority.file))
    context.load_cert_chain(client.certificate, client.key)
    # What this machine's own library refuses must not count.
    context.set_ciphers("ALL:@SECLEVEL=0")
    for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
        context.minimum_version = context.maximum_version = version
        assert _speaks(secured.port, context) == ""
    version = ssl.TLSVersion.TLSv1_1
    context.minimum_version = context.maximum_version = version
    assert "alert" in _speaks(secured.port, context).lower()


def _speaks(port: int, context: ssl.SSLContext) -> str:
    """Why a server does not speak so, empty where it does."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        try:
            tls = context.wrap_socket(plain, server_hostname="127.0.0.1")
            tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return "" if tls.recv(5) == b"HTTP/" else "no HTTP"
        except ssl.SSLError as error:
            return str(error)


def test_an_authority_that_is_not_ours_is_one_clear_line(
    secured: deployment.Deployment, tmp_path: Path
) -> None:
    """The agent goes on without Placement, and says why."""
    proxied = certificates.Authority(tmp_path, "stranger")
    placement = urllib.parse.urlsplit(secured.cloud.placement.url)
    assert placement.port
    with tls_proxy.before(proxied.issue("server"), placement.port) as proxy:
        child = secured.launch(
            "agent",
            "agent-wary",
            {
                "OS_DEFAULT__HOST": "wary",
                "OS_DEFAULT__STATE_PATH": str(tmp_path),
                "OS_PLACEMENT__ENDPOINT_OVERRIDE": "https://127.0.0.1:"
                f"{proxy.port}",
            },
        )
        resources.wait_until(
            lambda: (
                not child.running or "Placement does not answer" in _log(child)
            ),
            START_SECONDS,
            "the agent says that it cannot trust Placement",
        )
        assert child.running
        assert "certificate verify failed" in _log(child).lower()
        child.stop()
    assert logs.tracebacks(_log(child)) == []


def _log(child: children.Child) -> str:
    return child.output.read_text(errors="replace")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"SSL_CERT_FILE": "/nonexistent/cert.pem"}, "No such file"),
        ({"SSL_KEY_FILE": "/nonexistent/key.pem"}, "No such file"),
        ({"SSL_CA_FILE": "/nonexistent/ca.pem"}, "No such file"),
        ({"SSL_KEY_FILE": ""}, "is needed with enable_ssl_api"),
        ({"SSL_CERT_FILE": "/etc/hostname"}, "PEM"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_said_at_start(
    secured: deployment.Deployment,
    authority: certificates.Authority,
    changed: dict[str, str],
    said: str,
) -> None:
    pair = authority.issue("start")
    options = {
        "ENABLE_SSL_API": "true",
        "SSL_CERT_FILE": str(pair.certificate),
        "SSL_KEY_FILE": str(pair.key),
        "PORT": str(resources.free_port()),
        **changed,
    }
    child = secured.launch(
        "api",
        "api-mistaken",
        {f"OS_API__{name}": value for name, value in options.items()},
    )
    assert child.process.wait(START_SECONDS) == 1
    told = _log(child)
    child.output.unlink()
    assert "[api] ssl_" in told
    assert said in told
    assert logs.tracebacks(told) == []

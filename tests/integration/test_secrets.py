# SPDX-License-Identifier: Apache-2.0
"""No secret in any log, at debug level, of any service: when all goes well
and when nothing does.

Each secret is one that nobody has used before, so that finding it anywhere,
plain or in another spelling, is a leak.
"""

from __future__ import annotations

import base64
import contextlib
import re
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import databases
from tests.integration import children
from tests.integration import deployment
from tests.integration import instance
from tests.integration import resources

SERVICES = ("api", "conductor", "agent")
TALKERS = (
    *(("api", name) for name in ("keystoneauth", "keystonemiddleware")),
    *(("api", name) for name in ("amqp", "oslo_messaging", "sqlalchemy")),
    *(("conductor", name) for name in ("keystoneauth", "amqp")),
    *(("agent", name) for name in ("keystoneauth", "amqp")),
)
"""Services, and libraries that tell of what they do with their secrets."""
FERNET = re.compile(r"gAAAAA[A-Za-z0-9_-]{20,}")
"""A token of Keystone, whoever's."""
TROUBLE = re.compile(
    r"^(?!.* DEBUG )"
    r"(?:.* (?:WARNING|ERROR|CRITICAL) |Traceback|.*: .*error)",
    re.IGNORECASE | re.MULTILINE,
)
TROUBLE_SECONDS = 60


class Secrets:
    """Words that must be nowhere."""

    def __init__(self) -> None:
        self._known: list[tuple[str, str]] = []

    def new(self, name: str) -> str:
        """A secret with characters that a URL must spell otherwise.

        Each half of it is a secret too: an error may tell a part.
        """
        halves = uuid.uuid4().hex[:16], uuid.uuid4().hex[:16]
        for half in halves:
            self.keep(f"part of {name}", half)
        return self.keep(name, "{}+={}".format(*halves))

    def keep(self, name: str, secret: str) -> str:
        self._known.append((name, secret))
        return secret

    def value(self, name: str) -> str:
        return dict(self._known)[name]

    def found_in(self, text: str) -> set[str]:
        """The names of those that the text has, however spelt."""
        found = {
            name.removeprefix("part of ")
            for name, secret in self._known
            if any(spelt in text for spelt in _spellings(secret))
        }
        return found | {f"token {one[:12]}" for one in FERNET.findall(text)}


def _spellings(secret: str) -> set[str]:
    quoted = urllib.parse.quote(secret, safe="")
    spelt = {
        secret,
        quoted,
        quoted.lower(),
        urllib.parse.quote_plus(secret),
        urllib.parse.quote(secret),
        repr(secret)[1:-1],
    }
    for length in range(3):
        # Base64 of a text that the secret is in, at any offset.
        data = b"x" * length + secret.encode()
        whole = base64.b64encode(data).decode()
        spelt.add(whole[4 if length else 0 : len(data) // 3 * 4])
    return spelt


def test_every_spelling_of_a_secret_is_found() -> None:
    secrets = Secrets()
    secret = secrets.new("one")
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    for text in (
        f"x{secret}x",
        f"mysql://u:{urllib.parse.quote(secret, safe='')}@h/d",
        f"Authorization: Basic {basic}",
        base64.b64encode(f"ab{secret}cd".encode()).decode(),
    ):
        assert secrets.found_in(text) == {"one"}, text
    assert secrets.found_in(f"port {secret.partition('+')[0]!r}") == {"one"}
    assert secrets.found_in("mysql://u:***@h/d") == set()
    assert secrets.found_in("X-Auth-Token: gAAAAABm" + "x" * 30)


@pytest.fixture(scope="module")
def secrets() -> Secrets:
    return Secrets()


@pytest.fixture(scope="module")
def careful(
    deploy: deployment.Deploy, secrets: Secrets
) -> Iterator[deployment.Deployment]:
    """A deployment with a secret of its own in each option for one."""
    made = deploy()
    name = f"cyborg_test_{uuid.uuid4().hex[:10]}"
    with (
        _database_user(made, name, secrets.new("database")) as database,
        _broker_user(made, name, secrets.new("transport_url")) as broker,
    ):
        keystone = made.cloud.keystone
        keystone.add_user(name, secrets.new("password"), "service", "admin")
        credential = keystone.application_credential("cyborg")
        secrets.keep("credential", credential["credential_secret"])
        text = made.configuration.read_text()
        text = _set(
            text,
            "DEFAULT",
            transport_url=broker,
            # Libraries, too, then tell all that they can.
            default_log_levels="sqlalchemy=DEBUG",
        )
        text = _set(text, "database", connection=database)
        for group in ("keystone_authtoken", "nova", "glance"):
            text = _set(
                text,
                group,
                username=name,
                password=secrets.value("password"),
            )
        text = _set(
            text,
            "keystone_authtoken",
            memcached_servers=f"127.0.0.1:{resources.free_port()}",
            memcache_security_strategy="ENCRYPT",
            memcache_secret_key=secrets.new("memcache"),
        )
        text = _set(
            text,
            "placement",
            auth_type="v3applicationcredential",
            application_credential_id=credential["credential_id"],
            application_credential_secret=credential["credential_secret"],
            username="",
            password="",
            user_domain_name="",
            project_name="",
            project_domain_name="",
        )
        made.configuration.write_text(text)
        yield made
        made.stop()


@contextlib.contextmanager
def _database_user(
    made: deployment.Deployment, name: str, password: str
) -> Iterator[str]:
    """A user of the deployment's database; the URL with its password."""
    engine = sa.create_engine(
        databases.SERVERS["mariadb"], poolclass=sa.pool.NullPool
    )
    url = sa.make_url(made.database)

    def run(*statements: str) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    run(
        f"CREATE USER '{name}'@'%%' IDENTIFIED BY '{password}'",
        f"CREATE USER '{name}'@'localhost' IDENTIFIED BY '{password}'",
        f"GRANT ALL ON {url.database}.* TO '{name}'@'%%'",
        f"GRANT ALL ON {url.database}.* TO '{name}'@'localhost'",
    )
    try:
        changed = url.set(username=name, password=password)
        yield changed.render_as_string(hide_password=False)
    finally:
        run(f"DROP USER '{name}'@'%%'", f"DROP USER '{name}'@'localhost'")


@contextlib.contextmanager
def _broker_user(
    made: deployment.Deployment, name: str, password: str
) -> Iterator[str]:
    """A user of the deployment's vhost; the URL with its password."""
    with resources.broker_user(made.vhost, name, password):
        address = made.vhost.url.rpartition("@")[2]
        quoted = urllib.parse.quote(password, safe="")
        yield f"rabbit://{name}:{quoted}@{address}"


def _set(text: str, group: str, **options: str) -> str:
    """The configuration with other values in a group; empty ones go."""
    head, mark, rest = text.partition(f"[{group}]\n")
    assert mark, group
    body, bracket, tail = rest.partition("\n[")
    kept = [
        line
        for line in body.splitlines()
        if line.partition("=")[0].strip() not in options
    ]
    kept += [
        f"{key} = {value.replace('$', '$$')}"
        for key, value in options.items()
        if value
    ]
    return head + mark + "\n".join(kept) + bracket + tail


def test_the_main_flow_tells_no_secret(
    careful: deployment.Deployment, secrets: Secrets
) -> None:
    keystone = careful.cloud.keystone
    for user in ("admin", "nova", "demo-member"):
        secrets.keep(f"token of {user}", keystone.token(user))
    careful.start()
    careful.wait_for_providers()
    server = instance.Instance(
        careful, careful.make_profile([instance.FAKE_GROUP])
    )
    server.boot()
    admin = careful.caller("admin")
    listed = admin.get("/v2/devices")["devices"]
    admin.post(f"/v2/devices/{listed[0]['uuid']}/disable", status=204)
    admin.post(f"/v2/devices/{listed[0]['uuid']}/enable", status=204)
    deployables = admin.get("/v2/deployables")["deployables"]
    admin.patch(
        f"/v2/deployables/{deployables[0]['uuid']}/program",
        _programming(str(uuid.uuid4())),
        409,
    )
    forged = secrets.new("forged token")
    answer = careful.caller(None).request(
        "GET", "/v2/devices", headers={"X-Auth-Token": forged}
    )
    assert answer.status_code == 401
    unknown = keystone.token("demo-reader")
    secrets.keep("token while Keystone is away", unknown)
    with careful.cloud.nova.away(), keystone.away():
        answer = careful.caller("demo-reader").request("GET", "/v2/devices")
        assert answer.status_code == 503
    server.delete()
    # Nobody has the card now: its agent asks Glance for the image.
    image = careful.cloud.glance.add(b"a bitstream")
    admin.patch(
        f"/v2/deployables/{deployables[0]['uuid']}/program",
        _programming(image),
        200,
    )
    assert any(
        image in request.path for request in careful.cloud.glance.requests
    )
    for command in (
        ("cyborg-status", "upgrade", "check"),
        ("cyborg-dbsync", "version"),
        ("cyborg-manage", "audit"),
    ):
        done = children.finish(
            [
                deployment.program(command[0]),
                *("--config-file", str(careful.configuration)),
                *command[1:],
            ]
        )
        (careful.folder / f"{command[0]}.log").write_text(
            done.stdout + done.stderr
        )
    careful.stop()
    for name, talker in TALKERS:
        told = (careful.folder / f"{name}.log").read_text()
        assert f" DEBUG {talker}" in told, (name, talker)
    _judge(careful.folder, secrets)


def _programming(image: str) -> list[dict[str, object]]:
    return [
        {
            "path": "/program",
            "op": "replace",
            "value": [{"image_uuid": image}],
        }
    ]


def _judge(folder: Path, secrets: Secrets) -> None:
    logs = list(folder.rglob("*.log"))
    assert len(logs) >= len(SERVICES)
    for log in logs:
        text = log.read_text(errors="replace")
        found = secrets.found_in(text)
        lines = [line for line in text.splitlines() if secrets.found_in(line)]
        assert not found, f"{log.name}: {sorted(found)}: {lines[:3]}"


def _malformed(password: str) -> dict[str, dict[str, str]]:
    return {
        "url without a port": {
            "DEFAULT": f"transport_url=rabbit://me:{password}@h:port/",
        },
        "url with a slash": {
            "DEFAULT": f"transport_url=rabbit://me:a%2F{password}@h/",
        },
        "url of nothing": {
            "DEFAULT": f"transport_url=rubbish://me:{password}@h:1/",
        },
        "url with a slip": {
            "DEFAULT": f"transport_url=rabbit:/me:{password}@127.0.0.1/",
        },
        "database without a port": {
            "database": f"connection=mysql+pymysql://me:{password}@h:p/d",
        },
        "database of nothing": {
            "database": f"connection=rubbish://me:{password}@h/d",
        },
        "database with a slip": {
            "database": f"connection=mysql+pymysql:/me:{password}@h/d",
        },
    }


def _broken(
    careful: deployment.Deployment, secrets: Secrets
) -> dict[str, dict[str, str]]:
    """Trouble -> group -> options, as `key=value` in lines."""
    wrong = secrets.new("wrong password")
    quoted = urllib.parse.quote(wrong, safe="")
    closed = resources.free_port()
    database = sa.make_url(careful.database)

    def at(port: int, more: str = "") -> str:
        return (
            f"connection=mysql+pymysql://me:{quoted}@127.0.0.1:{port}"
            f"/{database.database}{more}"
        )

    real = database.port or 3306
    vhost = careful.vhost.url.rpartition("/")[2]
    address = resources.BROKER.rpartition("@")[2]
    return {
        "wrong passwords": {
            "DEFAULT": f"transport_url=rabbit://me:{quoted}@{address}/{vhost}",
            "database": at(real),
            "keystone_authtoken": f"password={wrong}",
            "nova": f"password={wrong}",
        },
        "all down": {
            "DEFAULT": f"transport_url=rabbit://me:{quoted}@127.0.0.1:{closed}"
            f"/{vhost}",
            "database": at(closed),
        },
        "no tls": {
            "DEFAULT": f"transport_url=rabbit://me:{quoted}@{address}/{vhost}"
            "?ssl=true",
            "database": at(real, "?ssl_ca=/nonexistent"),
        },
        **_malformed(quoted),
    }


TROUBLES = (
    *("wrong passwords", "all down", "no tls"),
    *_malformed(""),
)


def _troubled(trouble: str) -> tuple[str, ...]:
    """Who meets it; an agent has no database."""
    if trouble.startswith("database"):
        return ("conductor",)
    return ("conductor", "agent")


@pytest.mark.parametrize("trouble", TROUBLES)
def test_no_trouble_makes_a_service_tell_a_secret(
    trouble: str,
    careful: deployment.Deployment,
    secrets: Secrets,
    tmp_path: Path,
) -> None:
    text = careful.configuration.read_text()
    for group, line in _broken(careful, secrets)[trouble].items():
        key, _, value = line.partition("=")
        text = _set(text, group, **{key: value})
    port = resources.free_port()
    text = _set(text, "api", port=str(port))
    file = tmp_path / "cyborg.conf"
    file.write_text(text)
    started = {
        name: children.Child(
            [deployment.program(f"cyborg-{name}"), "--config-file", str(file)],
            tmp_path / f"{name}.log",
        )
        for name in SERVICES
    }
    done = children.finish(
        [
            deployment.program("cyborg-dbsync"),
            *("--config-file", str(file), "upgrade"),
        ]
    )
    (tmp_path / "dbsync.log").write_text(done.stdout + done.stderr)
    try:
        api = started["api"]
        resources.wait_until(
            lambda: not api.running or resources.answers(port),
            TROUBLE_SECONDS,
            "the API serves or ends",
        )
        if api.running:
            careful.caller("admin", "nova", port).request("GET", "/v2/devices")
        for name in _troubled(trouble):
            child = started[name]
            resources.wait_until(
                lambda child=child: (
                    not child.running
                    or TROUBLE.search(child.output.read_text())
                ),
                TROUBLE_SECONDS,
                f"{name} has trouble: {trouble}",
            )
    finally:
        for child in started.values():
            if child.running:
                child.process.terminate()
        for child in started.values():
            with contextlib.suppress(Exception):
                child.stop()
    _judge(tmp_path, secrets)

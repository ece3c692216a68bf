# SPDX-License-Identifier: Apache-2.0
"""Deployers' check 1: what devstack's plugin does in each phase.

The real plugin runs in a node that `tests/devstack` makes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.devstack import sandbox
from tests.devstack.sandbox import named

CONTROLLERS = "cyborg-api,cyborg-cond"
SUBNODE = {
    "ENABLED_SERVICES": "n-cpu,cyborg-agent",
    "DISABLED_SERVICES": CONTROLLERS,
}
NODES: dict[str, dict[str, str]] = {
    "all in one": {},
    "agent alone": SUBNODE,
    "cyborg-api itself": {"CYBORG_USE_UWSGI": "False"},
    "IPv6": {
        "HOST_IP": "2001:db8::10",
        "SERVICE_HOST": "[2001:db8::10]",
        "SERVICE_LISTEN_ADDRESS": "::",
    },
    "IPv6, cyborg-api itself": {
        "CYBORG_USE_UWSGI": "False",
        "SERVICE_HOST": "[2001:db8::10]",
        "SERVICE_LISTEN_ADDRESS": "[::]",
    },
    "no virtual environment": {"GLOBAL_VENV": "False"},
    "TLS": {"SERVICE_PROTOCOL": "https", "SSL_BUNDLE_FILE": "/ca.pem"},
    "PCI": {"CYBORG_PCI_VENDOR_ID": "10de", "CYBORG_PCI_PRODUCT_ID": "1eb8"},
    "client from git": {"LIBS_FROM_GIT": "python-cyborgclient"},
    "no client": {"CYBORG_CLIENT_INSTALL": "False"},
    "no agent": {"DISABLED_SERVICES": "cyborg-agent"},
    "conductor alone": {
        "ENABLED_SERVICES": "",
        "DISABLED_SERVICES": "cyborg-api,cyborg-agent",
    },
    "simulated PCI": {"ENABLE_PCI_SIM": "True", "PCI_SIM_NUM_PFS": "2"},
}


def make(folder: Path, name: str = "all in one", **more: str) -> sandbox.Node:
    return sandbox.Node(folder / "node", **{**NODES[name], **more})


@pytest.fixture(params=NODES, ids=str)
def node(request: pytest.FixtureRequest, tmp_path: Path) -> sandbox.Node:
    """Each kind of node."""
    return make(tmp_path, request.param)


def lawful(node: sandbox.Node) -> None:
    """What no call may ever be."""
    for name in ("undefined", "outside", "failed", "die"):
        assert named(node.calls, name) == [], node.stderr
    assert "unbound" not in node.stderr


def test_all_phases_in_order_on_each_kind_of_node(
    node: sandbox.Node,
) -> None:
    """Settings written, then the database, then the services."""
    calls = node.stack()
    lawful(node)
    written = sandbox.writes(calls, node.conf_file)
    extra = calls.index(["phase", "stack", "extra"])
    assert written
    assert max(written) < extra
    assert (
        node.conf_file.read_text() == (node.folder / "merged.conf").read_text()
    )
    databases = sandbox.positions(calls, "recreate_database")
    syncs = sandbox.positions(calls, "cyborg-dbsync")
    starts = sandbox.positions(calls, "started")
    waits = sandbox.positions(calls, "wait_for_service")
    assert starts
    for earlier, later in (
        (written, databases),
        (databases, syncs),
        (syncs, starts),
        ([calls.index(["started", *starts_of(node)["cyborg-api"]])], waits)
        if waits
        else ([], []),
    ):
        if earlier and later:
            assert max(earlier) < min(later)
    assert len(databases) == len(syncs) <= 1
    for _, command, *rest in named(calls, "run_process"):
        assert command.startswith("/")
        assert "sudo" not in command
        assert rest == []


def starts_of(node: sandbox.Node) -> dict[str, tuple[str, str]]:
    """Unit -> the words that `started` noted."""
    return {
        name: (name, command) for name, command in named(node.calls, "started")
    }


@pytest.mark.parametrize("name", ["all in one", "agent alone", "PCI"])
def test_stacking_again_writes_the_same(name: str, tmp_path: Path) -> None:
    """A second stack.sh finds everything there already."""
    node = make(tmp_path, name)
    node.stack()
    first = node.conf_file.read_text()
    node.stack()
    lawful(node)
    assert node.conf_file.read_text() == first


@pytest.mark.parametrize("done", [0, 2, 4])
@pytest.mark.parametrize(
    "name", ["all in one", "agent alone", "cyborg-api itself"]
)
def test_unstack_and_clean_twice_wherever_it_ended(
    name: str, done: int, tmp_path: Path
) -> None:
    """Half installed, or stopped before: no difference."""
    node = make(tmp_path, name)
    if done:
        node.run(*sandbox.STACK[:done])
    node.run("unstack", "unstack")
    lawful(node)
    enabled = {"all in one": 3, "cyborg-api itself": 3, "agent alone": 1}
    assert len(named(node.calls, "stopped")) == 2 * enabled[name]
    node.run("clean", "clean")
    lawful(node)
    assert node.left() == set()


@pytest.mark.parametrize(
    "phase", ["stack", "stack later", "destroy", "clean up", "unstack now"]
)
def test_an_unknown_phase_is_no_call(phase: str, tmp_path: Path) -> None:
    node = make(tmp_path)
    calls = node.run(phase)
    assert calls == [["define_plugin", "cyborg"], ["phase", *phase.split()]]


def test_with_all_of_cyborg_disabled_nothing_is_called(
    tmp_path: Path,
) -> None:
    node = make(
        tmp_path, DISABLED_SERVICES=f"cyborg,cyborg-agent,{CONTROLLERS}"
    )
    phases = [*sandbox.STACK[:2], *sandbox.STACK[3:], "unstack", "clean"]
    calls = node.run(*phases)
    assert {call[0] for call in calls} == {"define_plugin", "phase"}


def test_the_callers_trace_is_given_back(tmp_path: Path) -> None:
    """On and off; run() itself compares the shell's flags each time."""
    node = make(tmp_path)
    node.stack(before="set -x")
    lawful(node)
    assert "+ " in node.stderr


def test_the_settings_only_set_and_can_be_sourced_twice(
    tmp_path: Path,
) -> None:
    node = make(tmp_path)
    twice = f"source {sandbox.PLUGIN}/settings\n"
    calls = node.run(before=twice + 'record services "$ENABLED_SERVICES"')
    (services,) = named(calls, "services")[0]
    for name in ("cyborg", "cyborg-api", "cyborg-cond", "cyborg-agent"):
        assert services.split(",").count(name) == 1
    assert {call[0] for call in calls} == {"define_plugin", "services"}


def test_a_program_of_devstacks_ci_finds_the_plugins_name() -> None:
    text = (sandbox.PLUGIN / "settings").read_text()
    assert re.findall(r"^define_plugin\s+(\S+)", text, re.MULTILINE) == [
        "cyborg"
    ]


KEPT = {
    "CYBORG_CONF_DIR": "/etc/cyborg",
    "CYBORG_CONF": "/etc/cyborg/cyborg.conf",
    "CYBORG_CONF_FILE": "/etc/cyborg/cyborg.conf",
    "CYBORG_SERVICE_HOST": "192.0.2.10",
    "CYBORG_SERVICE_PORT": "6666",
    "CYBORG_SERVICE_PROTOCOL": "http",
    "CYBORG_ENABLED_DRIVERS": "fake_driver",
    "CYBORG_USE_UWSGI": "True",
    "CYBORG_CLIENT_INSTALL": "True",
    "CYBORG_CLIENT_REPO": "https://git.example.org/openstack/"
    "python-cyborgclient.git",
    "CYBORG_CLIENT_BRANCH": "master",
    "TEMPEST_ACCELERATOR_MIN_MICROVERSION": "2.0",
    "TEMPEST_ACCELERATOR_MAX_MICROVERSION": "latest",
    "ENABLE_PCI_SIM": "False",
    "CYBORG_STATE_PATH": "/var/lib/cyborg",
    "CYBORG_API_PASTE_INI": "/etc/cyborg/api-paste.ini",
    "CYBORG_UWSGI": "cyborg.wsgi.api:application",
    "CYBORG_UWSGI_CONF": "/etc/cyborg/cyborg-api-uwsgi.ini",
    "CYBORG_API_URL": "http://192.0.2.10/accelerator",
    "CYBORG_DIR": str(sandbox.ROOT),
}


def variables(node: sandbox.Node, names: list[str]) -> dict[str, str]:
    """What the settings make of these variables."""
    script = "\n".join(
        [
            sandbox.BEGIN,
            f"source {sandbox.PLUGIN}/settings",
            *(f'record {name} "${name}"' for name in names),
        ]
    )
    environment = node.environment()
    for name in ("CYBORG_CONF_DIR", "CYBORG_STATE_PATH"):
        if name not in node.variables:
            del environment[name]
    calls = node.bash(script, environment)
    return {call[0]: call[1] for call in calls if call[0] in names}


def test_every_variable_that_users_know_has_its_default(
    tmp_path: Path,
) -> None:
    node = make(tmp_path)
    assert variables(node, list(KEPT)) == KEPT
    found = variables(node, ["CYBORG_DATA_DIR", "CYBORG_BIN_DIR"])
    assert found == {
        "CYBORG_DATA_DIR": f"{node.folder}/opt/stack/data/cyborg",
        "CYBORG_BIN_DIR": str(node.bin),
    }


def test_what_users_set_stays(tmp_path: Path) -> None:
    fixed = {"CYBORG_API_PASTE_INI", "CYBORG_UWSGI", "CYBORG_UWSGI_CONF"}
    switches = {
        "CYBORG_USE_UWSGI": "False",
        "CYBORG_CLIENT_INSTALL": "False",
        "ENABLE_PCI_SIM": "True",
    }
    given = {
        name: switches.get(name, f"of-the-user-{name}")
        for name in KEPT
        if name not in fixed | {"CYBORG_API_URL", "CYBORG_DIR"}
    }
    given["CYBORG_CONF_FILE"] = given["CYBORG_CONF"]
    assert variables(make(tmp_path, **given), list(given)) == given


def test_the_older_name_of_the_file_still_names_it(tmp_path: Path) -> None:
    node = make(tmp_path, CYBORG_CONF_FILE="/srv/cyborg.conf")
    assert variables(node, ["CYBORG_CONF"]) == {
        "CYBORG_CONF": "/srv/cyborg.conf"
    }


def test_the_clone_may_have_any_name(tmp_path: Path) -> None:
    node = make(tmp_path)
    clone = tmp_path / "accelerators"
    (clone / "devstack").mkdir(parents=True)
    text = (sandbox.PLUGIN / "settings").read_text()
    (clone / "devstack" / "settings").write_text(text)
    calls = node.bash(
        f"{sandbox.BEGIN}\nsource {clone}/devstack/settings\n"
        'record dir "$CYBORG_DIR"',
        node.environment(),
    )
    assert named(calls, "dir") == [[str(clone)]]


def test_the_configuration_of_one_machine(tmp_path: Path) -> None:
    node = make(tmp_path)
    node.stack()
    conf = node.read()
    assert conf["DEFAULT"]["auth_strategy"] == "keystone"
    assert conf["DEFAULT"]["debug"] == "True"
    assert conf["DEFAULT"]["use_syslog"] == "False"
    assert conf["DEFAULT"]["state_path"] == f"{node.folder}/var/lib/cyborg"
    assert conf["database"]["connection"].endswith("&plugin=dbcounter")
    for section in ("placement", "nova", "glance", "keystone_authtoken"):
        assert conf[section]["region_name"] == "RegionOne", section
        assert conf[section]["username"] == "cyborg", section
        assert conf[section]["auth_type"] == "password", section
    token = conf["keystone_authtoken"]
    assert token["service_type"] == "accelerator"
    assert token["www_authenticate_uri"] == "http://192.0.2.10/identity"
    assert token["service_token_roles"] == "service"
    assert token["service_token_roles_required"] == "True"
    assert Path(conf["oslo_policy"]["policy_file"]).is_file()
    assert Path(conf["api"]["api_paste_config"]).is_file()
    assert conf["agent"] == {
        "enabled_drivers": "fake_driver",
        "resource_provider_startup_retries": "6",
    }
    empty = {
        (section, name)
        for section, options in conf.items()
        for name, value in options.items()
        if not value
    }
    assert empty == {("keystone_authtoken", "cafile")}


def test_the_catalog_and_the_account(tmp_path: Path) -> None:
    node = make(tmp_path)
    calls = node.stack()
    assert named(calls, "create_service_user") == [["cyborg", "admin"]]
    (service,) = named(calls, "get_or_create_service")
    assert service[:2] == ["cyborg", "accelerator"]
    url = "http://192.0.2.10/accelerator/v2"
    assert named(calls, "get_or_create_endpoint") == [
        ["cyborg", "RegionOne", url, url, url]
    ]


@pytest.mark.parametrize(
    ("name", "url", "listen"),
    [
        ("cyborg-api itself", "http://192.0.2.10:6666", "0.0.0.0"),
        ("IPv6, cyborg-api itself", "http://[2001:db8::10]:6666", "::"),
        ("IPv6", "http://[2001:db8::10]/accelerator", None),
        ("TLS", "https://192.0.2.10/accelerator", None),
    ],
)
def test_where_the_api_is(
    name: str, url: str, listen: str | None, tmp_path: Path
) -> None:
    """With and without uwsgi; brackets in URLs, none where one listens."""
    node = make(tmp_path, name)
    calls = node.stack()
    (endpoint,) = named(calls, "get_or_create_endpoint")
    assert set(endpoint[2:]) == {f"{url}/v2"}
    assert named(calls, "wait_for_service") == [["60", url]]
    conf = node.read()
    command = starts_of(node)["cyborg-api"][1]
    if listen:
        assert conf["api"]["host_ip"] == listen
        assert conf["api"]["port"] == "6666"
        assert command == f"{node.bin}/cyborg-api --config-file " + str(
            node.conf_file
        )
        assert named(calls, "write_uwsgi_config", "restart_apache_server") == (
            []
        )
    else:
        assert "host_ip" not in conf["api"]
        assert f"--ini {node.conf_file.parent}/cyborg-api-uwsgi.ini" in command


def test_the_configuration_may_be_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "node" / "conf" / "elsewhere.conf"
    file.parent.mkdir(parents=True)
    node = make(tmp_path, CYBORG_CONF=str(file))
    calls = node.stack()
    lawful(node)
    assert named(calls, "write_uwsgi_config") == [
        [
            f"{node.folder}/etc/cyborg/cyborg-api-uwsgi.ini",
            "cyborg.wsgi.api:application",
            "/accelerator",
            "",
            "cyborg-api",
        ]
    ]
    ini = node.read(node.folder / "etc/cyborg/cyborg-api-uwsgi.ini")["uwsgi"]
    assert ini["pyargv"] == f"--config-file {file}"
    commands = dict(named(calls, "started"))
    assert commands["cyborg-cond"].endswith(f"--config-file {file}")


@pytest.mark.parametrize("name", ["all in one", "no virtual environment"])
def test_programs_are_those_of_devstacks_python(
    name: str, tmp_path: Path
) -> None:
    node = make(tmp_path, name)
    commands = dict(named(node.stack(), "started"))
    venv = f"{node.folder}/opt/stack/data/venv"
    assert commands["cyborg-api"].startswith(f"{node.bin}/uwsgi ")
    assert (f"--venv {venv}" in commands["cyborg-api"]) == (
        name == "all in one"
    )
    assert commands["cyborg-cond"].startswith(f"{node.bin}/cyborg-conductor ")
    assert commands["cyborg-agent"].startswith(f"{node.bin}/cyborg-agent ")


def test_a_subnode_has_what_its_agent_needs_and_no_more(
    tmp_path: Path,
) -> None:
    node = make(tmp_path, "agent alone")
    calls = node.stack()
    assert set(node.read()) == {
        "DEFAULT",
        "agent",
        "cyborg_sys_admin",
        "fake",
        "oslo_concurrency",
        "oslo_messaging_rabbit",
        "placement",
    }
    assert list(dict(named(calls, "started"))) == ["cyborg-agent"]
    assert {call[0] for call in calls}.isdisjoint(
        {
            "create_service_user",
            "cyborg-dbsync",
            "enable_apache_site",
            "get_or_create_endpoint",
            "get_or_create_service",
            "recreate_database",
            "restart_apache_server",
            "wait_for_service",
            "write_uwsgi_config",
        }
    )
    calls = node.run("unstack", "clean")
    assert named(calls, "disable_apache_site", "remove_uwsgi_config") == []


def test_the_database_does_not_hang_on_the_api_alone(tmp_path: Path) -> None:
    node = make(tmp_path, "conductor alone")
    calls = node.stack()
    assert named(calls, "recreate_database") == [["cyborg"]]
    assert named(calls, "cyborg-dbsync") == [
        ["--config-file", str(node.conf_file), "upgrade"]
    ]


@pytest.mark.parametrize("missing", ["key", "placement"])
def test_an_api_without_its_surroundings_stops_devstack(
    missing: str, tmp_path: Path
) -> None:
    there = {"key": "key", "placement": "placement-api"}
    del there[missing]
    node = make(tmp_path, ENABLED_SERVICES=",".join(there.values()))
    with pytest.raises(sandbox.StackError):
        node.stack()
    assert missing in named(node.calls, "die")[0][0]


def test_an_api_that_does_not_start_stops_devstack(tmp_path: Path) -> None:
    node = make(tmp_path)
    with pytest.raises(sandbox.StackError):
        node.stack(before="function wait_for_service { return 1; }")
    assert named(node.calls, "die") == [["cyborg-api did not start"]]


def test_a_failed_migration_stops_devstack(tmp_path: Path) -> None:
    node = make(tmp_path)
    (node.folder / "cyborg-dbsync.exit").write_text("1")
    with pytest.raises(sandbox.StackError):
        node.stack()
    assert named(node.calls, "started") == []


def test_the_client(tmp_path: Path) -> None:
    """From git, from PyPI, or not at all."""
    node = make(tmp_path / "git", "client from git", CYBORG_CLIENT_BRANCH="x")
    calls = node.stack()
    assert named(calls, "git_clone") == [
        [
            "https://git.example.org/openstack/python-cyborgclient.git",
            f"{node.folder}/opt/stack/python-cyborgclient",
            "x",
        ]
    ]
    clone = sandbox.positions(calls, "git_clone")[0]
    assert clone < calls.index(["phase", "stack", "install"])
    assert named(calls, "setup_dev_lib") == [["python-cyborgclient"]]
    node = make(tmp_path / "pypi")
    calls = node.stack()
    assert named(calls, "pip_install_gr") == [["python-cyborgclient"]]
    node = make(tmp_path / "none", "no client")
    calls = node.stack()
    assert named(calls, "pip_install_gr", "git_clone", "setup_dev_lib") == []


def test_tempest_is_told_what_is_there(tmp_path: Path) -> None:
    node = make(tmp_path / "fake")
    node.stack()
    assert node.read(node.tempest_file) == {
        "accelerator": {
            "max_microversion": "latest",
            "min_microversion": "2.0",
        },
        "cyborg_policy": {"enforce_new_defaults": "True"},
        "service_available": {"cyborg": "True"},
    }
    node = make(tmp_path / "pci", "PCI")
    node.stack()
    assert node.read(node.tempest_file)["cyborg_pci"] == {
        "device_profile_name": "cyborg-pci",
        "product_id": "1eb8",
        "vendor_id": "10de",
    }
    assert node.read()["pci"] == {
        "passthrough_whitelist": '{"vendor_id":"10de","product_id":"1eb8"}'
    }
    node = make(tmp_path / "none", ENABLED_SERVICES="key,placement-api")
    node.stack()
    assert not node.tempest_file.exists()


def test_simulated_devices_are_spoken_of_once(tmp_path: Path) -> None:
    node = make(tmp_path, "simulated PCI")
    said = f"{node.folder}/said"
    node.bash(
        f"exec >{said}\n{sandbox.BEGIN}\nsource {sandbox.PLUGIN}/settings\n"
        + "\n".join(
            f"source {sandbox.PLUGIN}/plugin.sh {phase}"
            for phase in sandbox.STACK
        ),
        node.environment(),
    )
    assert Path(said).read_text().count("ENABLE_PCI_SIM") == 1


def test_nothing_is_redirected_to_a_file() -> None:
    """The one way to write that the node would not see."""
    for path in (sandbox.PLUGIN / "plugin.sh", sandbox.PLUGIN / "lib/cyborg"):
        code = "\n".join(
            line
            for line in path.read_text().splitlines()
            if not line.lstrip().startswith("#")
        )
        assert not re.search(r"[^-]>{1,2}\s*[\"$/a-z]", code), path


def test_the_node_would_see_a_mistake(tmp_path: Path) -> None:
    """Each mistake that the older plugin made is caught by the node."""
    node = make(tmp_path)
    for script, caught in (
        ("is_deployed_by_agent", "undefined"),
        (f"mkdir -p {tmp_path}/api", "outside"),
        ('inicomment "$SANDBOX/etc/cyborg/cyborg.conf" a b', "failed"),
        ("run_process cyborg-api cyborg-api", "die"),
        ('install -d "$SANDBOX/root"', "outside"),
    ):
        with pytest.raises(sandbox.StackError):
            node.run(before=f"enable_service cyborg-api\n{script}; false")
        assert named(node.calls, caught), script
    with pytest.raises(sandbox.StackError, match="unbound"):
        node.run(before='echo "$CYBORG_AUTH_CACHE_DIR"')

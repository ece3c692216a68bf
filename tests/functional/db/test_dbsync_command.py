# SPDX-License-Identifier: Apache-2.0
"""`cyborg-dbsync` and `cyborg-status` as operators run them, on SQLite."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from cyborg.db import arqs
from cyborg.db import engine
from cyborg.db import migration
from cyborg.db import models
from tests import databases
from tests import nova_stand_in
from tests import placement as placement_module
from tests import rows

HEAD = migration.head()

nova = nova_stand_in.nova_stand_in
placement = placement_module.placement


@dataclasses.dataclass
class Ended:
    """How a command ended."""

    code: int
    output: str
    errors: str


@dataclasses.dataclass
class Machine:
    """A directory with a configuration file and a database."""

    directory: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.directory}/cyborg.sqlite"

    @property
    def file(self) -> Path:
        return self.directory / "conf" / "cyborg.conf"

    def configure(self, text: str) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(text, encoding="utf-8")

    def run(self, program: str, *arguments: str) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", f"cyborg.cmd.{program}", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "HOME": str(self.directory)},
        )
        assert "Traceback" not in done.stdout + done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def dbsync(self, *arguments: str) -> Ended:
        return self.run("dbsync", "--config-file", str(self.file), *arguments)

    def status(self) -> tuple[int, dict[str, tuple[int, str]]]:
        ended = self.run(
            "status",
            "--config-file",
            str(self.file),
            "upgrade",
            "check",
            "--json",
        )
        checks = json.loads(ended.output.splitlines()[-1])["checks"]
        return ended.code, {
            check["check"]: (check["result"], str(check["details"]))
            for check in checks
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.configure(f"[database]\nconnection = {made.url}\n")
    return made


@pytest.fixture
def opened(machine: Machine) -> engine.Database:
    with databases.opened(machine.url) as database:
        yield database


def test_the_schema_is_upgraded_step_by_step(machine: Machine) -> None:
    assert machine.dbsync("version").output.strip() == "none"
    for revision in migration.ADOPTED:
        assert machine.dbsync("upgrade", "--revision", revision).code == 0
        assert machine.dbsync("version").output.strip() == revision
    for _ in range(2):
        ended = machine.dbsync("upgrade")
        assert ended.code == 0
        assert ended.output == f"The schema stands at {HEAD}.\n"
    assert machine.dbsync("version").output.strip() == HEAD


def test_no_library_frightens_the_operator(machine: Machine) -> None:
    assert "eventlet" not in machine.dbsync("upgrade").errors.lower()


def test_an_empty_database_is_said_to_be_empty(machine: Machine) -> None:
    code, checks = machine.status()
    assert code == 1
    assert checks["Database schema"] == (
        1,
        "The database has no schema yet: run cyborg-dbsync upgrade.",
    )


def test_a_directory_of_configuration_files_is_enough(
    machine: Machine,
) -> None:
    directory = str(machine.file.parent)
    ended = machine.run("dbsync", "--config-dir", directory, "create_schema")
    assert ended.code == 0
    ended = machine.run("dbsync", "--config-dir", directory, "version")
    assert ended.output.strip() == HEAD


def test_the_environment_can_name_the_database(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_DATABASE__CONNECTION", machine.url)
    assert machine.run("dbsync", "upgrade").code == 0
    assert machine.dbsync("version").output.strip() == HEAD


def test_a_stamp_moves_the_revision_alone(machine: Machine) -> None:
    machine.dbsync("upgrade", "--revision", migration.ADOPTED[0])
    assert machine.dbsync("stamp").code == 0
    assert machine.dbsync("version").output.strip() == HEAD


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        ("", "option connection in group [database]"),
        ("garbage:secret", "[database] connection"),
        ("oracle://x:secret@127.0.0.1/x", "[database] connection"),
        ("nothing+at+all://x:secret@h/x", "[database] connection"),
        ("sqlite://", "needs a file"),
        ("sqlite:////nowhere/at/all", "unable to open"),
        ("mysql+pymysql://root:secret@127.0.0.1:1/x", "127.0.0.1"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_clear_line(
    machine: Machine, connection: str, said: str
) -> None:
    machine.configure(f"[database]\nconnection = {connection}\n")
    ended = machine.dbsync("upgrade")
    assert ended.code == 1
    assert said in ended.errors.splitlines()[-1]
    assert "secret" not in ended.errors
    assert machine.dbsync("online_data_migrations").code == 2


def test_an_unknown_revision_is_named(
    machine: Machine, opened: engine.Database
) -> None:
    machine.dbsync("upgrade")
    with opened.connection() as connection:
        connection.execute(
            sa.text("UPDATE alembic_version SET version_num = 'f50980397351'")
        )
    ended = machine.dbsync("upgrade")
    assert ended.code == 1
    assert "f50980397351" in ended.errors
    code, checks = machine.status()
    assert code == 2
    assert "f50980397351" in checks["Database schema"][1]


@pytest.mark.parametrize("command", ["upgrade", "stamp"])
def test_a_revision_that_does_not_exist_is_refused(
    machine: Machine, command: str
) -> None:
    ended = machine.dbsync(command, "--revision", "nonsense")
    assert ended.code == 1
    assert "nonsense" in ended.errors


@pytest.mark.parametrize("count", ["0", "-1", "many", ""])
def test_a_count_that_is_none_is_refused(machine: Machine, count: str) -> None:
    ended = machine.dbsync("online_data_migrations", "--max-count", count)
    assert ended.code == 2


def test_data_migrations_need_no_nova_without_such_rows(
    machine: Machine, opened: engine.Database
) -> None:
    machine.dbsync("upgrade")
    plan = rows.profile()
    rows.add(opened, plan)
    rows.add(opened, rows.request(plan))
    assert machine.dbsync("online_data_migrations").code == 0


def test_data_migrations_fail_with_2_without_nova(
    machine: Machine, opened: engine.Database
) -> None:
    machine.dbsync("upgrade")
    plan = rows.profile()
    rows.add(opened, plan)
    rows.add(opened, rows.request(plan, instance_uuid=models.new_uuid()))
    ended = machine.dbsync("online_data_migrations", "--max-count", "5")
    assert ended.code == 2
    assert "nova" in ended.errors
    assert arqs.list_arqs(opened)[0].project_id is None


def test_data_migrations_ask_nova_and_say_when_there_is_more(
    machine: Machine,
    opened: engine.Database,
    nova: nova_stand_in.NovaStandIn,
) -> None:
    machine.configure(
        f"[database]\nconnection = {machine.url}\n"
        "[nova]\nauth_type = none\n"
        f"endpoint_override = {nova.url}\n"
    )
    machine.dbsync("upgrade")
    plan = rows.profile()
    rows.add(opened, plan)
    for _ in range(2):
        instance = models.new_uuid()
        nova.servers[instance] = "owner"
        rows.add(opened, rows.request(plan, instance_uuid=instance))
    command = ("online_data_migrations", "--max-count", "1")
    assert machine.dbsync(*command).code == 1
    assert machine.dbsync(*command).code == 0
    assert machine.dbsync(*command).code == 0
    projects = {one.project_id for one in arqs.list_arqs(opened)}
    assert projects == {"owner"}


def test_the_check_warns_before_the_upgrade_and_not_after(
    machine: Machine,
) -> None:
    code, checks = machine.status()
    assert (code, checks["Database schema"][0]) == (1, 1)
    machine.dbsync("upgrade", "--revision", migration.ADOPTED[0])
    code, checks = machine.status()
    assert code == 1
    assert HEAD in checks["Database schema"][1]
    machine.dbsync("upgrade")
    machine.configure(
        f"[database]\nconnection = {machine.url}\n"
        "[keystone_authtoken]\nauth_type = password\n"
    )
    code, checks = machine.status()
    assert (code, {result for result, _ in checks.values()}) == (0, {0})


def test_the_check_warns_of_what_stops_nothing(
    machine: Machine, opened: engine.Database
) -> None:
    migration.upgrade(opened, migration.ADOPTED[0])
    rows.fill(opened, rows.rows_of(rows.dump(migration.ADOPTED[0])))
    code, checks = machine.status()
    assert code == 1
    assert checks["Database schema"][0] == 1
    assert checks["Projects of accelerator requests"][0] == 1
    result, details = checks["Device profiles"]
    assert result == 1
    assert details.startswith("Placement was not asked ([placement] auth_type")
    assert details.endswith("satisfies the device profiles odd.")
    assert checks["Service token"][0] == 1


def test_the_check_works_without_any_configuration(tmp_path: Path) -> None:
    ended = Machine(tmp_path).run("status", "upgrade", "check")
    assert ended.code == 1
    assert "[database] connection" in " ".join(ended.output.split())


def test_an_unreachable_database_is_a_failure(machine: Machine) -> None:
    machine.configure(
        "[database]\nconnection = mysql+pymysql://root@127.0.0.1:1/x\n"
    )
    code, checks = machine.status()
    assert (code, checks["Database schema"][0]) == (2, 2)


def _with_placement(machine: Machine, lines: str) -> None:
    machine.configure(
        f"[database]\nconnection = {machine.url}\n[placement]\n{lines}\n"
    )


def test_a_profile_is_judged_by_the_devices_where_there_is_no_placement(
    machine: Machine, opened: engine.Database
) -> None:
    migration.upgrade(opened)
    rows.add(opened, rows.profile(), rows.profile(name="none", **NO_GROUPS))
    _with_placement(machine, "enabled = false")
    assert machine.status()[1]["Device profiles"] == (
        1,
        "No device known today satisfies the device profiles gpu, none.",
    )


NO_GROUPS = {"profile_json": '{"groups": []}'}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("auth_type = nonsense", "[placement] auth_type = nonsense is not"),
        (
            "auth_type = none\nendpoint_override = http://127.0.0.1:1\n"
            "connect_retries = 0",
            "Placement does not answer",
        ),
        (
            "auth_type = password\nauth_url = http://127.0.0.1:1\n"
            "username = u\npassword = secret\nconnect_retries = 0",
            "Placement does not answer",
        ),
    ],
)
def test_a_placement_that_cannot_be_asked_is_a_warning(
    machine: Machine, opened: engine.Database, lines: str, said: str
) -> None:
    migration.upgrade(opened)
    rows.add(opened, rows.profile())
    _with_placement(machine, lines)
    code, checks = machine.status()
    result, details = checks["Device profiles"]
    assert (code, result) == (1, 1)
    assert said in details
    assert details.endswith("satisfies the device profiles gpu.")
    assert "secret" not in details


def test_profiles_are_judged_by_what_placement_has(
    machine: Machine,
    opened: engine.Database,
    placement: placement_module.PlacementService,
) -> None:
    migration.upgrade(opened)
    root = placement.create_provider("compute-1")
    card = placement.create_provider("compute-1_card", root)
    foreign = placement.create_provider("compute-1_foreign", root)
    for provider, name in ((card, "PGPU"), (foreign, "FPGA")):
        placement.set_inventories(provider, {name: {"total": 2}})
    placement.set_traits(card, {"OWNER_CYBORG", "CUSTOM_A"})
    placement.set_traits(foreign, {"CUSTOM_A"})
    placement.allocate(card, {"PGPU": 2})
    wanted = {
        "used": {"resources:PGPU": "2", "trait:CUSTOM_A": "required"},
        "forbidden": {"resources:PGPU": "1", "trait:CUSTOM_A": "forbidden"},
        "foreign": {"resources:FPGA": "1"},
        "many": {"resources:PGPU": "3"},
        "unheard-class": {"resources:CUSTOM_NONE": "1"},
        "unheard-trait": {"resources:PGPU": "1", "trait:CUSTOM_Z": "required"},
        "zero": {"resources:PGPU": "0"},
    }
    rows.add(
        opened,
        *(
            rows.profile(
                name=name, profile_json=json.dumps({"groups": [group]})
            )
            for name, group in wanted.items()
        ),
    )
    _with_placement(
        machine,
        "auth_type = admin_token\ntoken = admin\n"
        f"endpoint = {placement.serve()}",
    )
    assert machine.status()[1]["Device profiles"] == (
        1,
        "No device known today satisfies the device profiles forbidden, "
        "foreign, many, unheard-class, unheard-trait, zero.",
    )


def test_the_usual_configuration_file_is_found(
    machine: Machine, opened: engine.Database
) -> None:
    """grenade names none."""
    migration.upgrade(opened)
    usual = machine.directory / ".cyborg" / "cyborg.conf"
    usual.parent.mkdir()
    usual.write_text(machine.file.read_text(), encoding="utf-8")
    machine.file.unlink()
    ended = machine.run("status", "upgrade", "check", "--json")
    first = json.loads(ended.output.splitlines()[-1])["checks"][0]
    assert (ended.code, first["result"]) == (1, 0)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "auth_type is not set"),
        ("auth_type = password\nservice_token_roles =", "no service may"),
        ("auth_section = nova", ""),
        ("auth_type = password", ""),
    ],
)
def test_the_set_up_of_service_tokens_is_judged(
    machine: Machine, lines: str, said: str
) -> None:
    machine.configure(f"[keystone_authtoken]\n{lines}\n")
    result, details = machine.status()[1]["Service token"]
    assert result == bool(said)
    assert said in details


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", 0),
        ("{}", 0),
        ("# nothing\n", 0),
        ('"cyborg:arq:create": "role:admin"\n', 0),
        ('{"cyborg:arq:create": "role:admin"}', 1),
        ("- a list\n", 2),
        ('"unfinished: [\n', 2),
        ('"cyborg:arq:create": 5\n', 2),
        ('"cyborg:fpga:get_all": "role:admin"\n', 1),
        ('"mine": "role:admin"\n"cyborg:arq:create": "rule:mine"\n', 0),
        ('"cyborg:arq:create": "role:admin or or"\n', 1),
        ('"cyborg:arq:create": "!"\n', 0),
    ],
)
def test_the_policy_files_format_is_judged(
    machine: Machine, text: str, result: int
) -> None:
    policy = machine.directory / "policy.yaml"
    policy.write_text(text, encoding="utf-8")
    machine.configure(
        f"[database]\nconnection = {machine.url}\n"
        f"[oslo_policy]\npolicy_file = {policy}\n"
    )
    assert machine.status()[1]["Policy file"][0] == result


def test_what_is_wrong_in_a_policy_directory_is_named(
    machine: Machine,
) -> None:
    policy = machine.directory / "policy.yaml"
    policy.write_text("{}", encoding="utf-8")
    further = machine.directory / "policy.d" / "further.yaml"
    further.parent.mkdir()
    further.write_text('"cyborg:gpu:create": "@"\n', encoding="utf-8")
    machine.configure(
        f"[oslo_policy]\npolicy_file = {policy}\n"
        f"policy_dirs = {further.parent}\n"
    )
    result, details = machine.status()[1]["Policy file"]
    assert result == 1
    assert f"{further} has rules that do not exist: cyborg:gpu:create" in (
        details
    )

# SPDX-License-Identifier: Apache-2.0
"""The words, exit codes and outputs of `cyborg-manage audit` and `heal`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyborg.db import engine
from cyborg.db import models
from tests import databases
from tests import rows

Done = subprocess.CompletedProcess[str]
Manage = Callable[..., Done]

COMMAND = [sys.executable, "-W", "ignore", "-m", "cyborg.cmd.manage"]
OPTIONS = """
[database]
connection = {url}
[placement]
enabled = {others}
[nova]
enabled = {others}
"""


@pytest.fixture(scope="module")
def spoiled(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[engine.Database]:
    """A database with one request that belongs to no project."""
    folder = tmp_path_factory.mktemp("database")
    with databases.migrated("sqlite", folder) as database:
        profile = rows.profile()
        rows.add(database, profile)
        rows.add(database, rows.request(profile, project_id=None))
        yield database


@pytest.fixture
def file(spoiled: engine.Database, tmp_path: Path) -> Path:
    made = tmp_path / "cyborg.conf"
    made.write_text(OPTIONS.format(url=spoiled.engine.url, others="false"))
    return made


@pytest.fixture
def manage(file: Path) -> Manage:
    def run(*words: str, **options: str) -> Done:
        return subprocess.run(
            [*COMMAND, "--config-file", str(file), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path.cwd()), **options},
        )

    return run


def test_a_finding_is_one_line_and_one_object(
    manage: Manage, spoiled: engine.Database
) -> None:
    table = manage("audit")
    assert table.returncode == 1, table.stderr
    heading, line = table.stdout.splitlines()
    assert heading.split() == [
        *("KIND", "UUID", "HOST", "WHAT", "IS", "WRONG", "HEAL")
    ]
    with spoiled.reader() as session:
        (request,) = session.query(models.AcceleratorRequest).all()
    assert line.startswith(f"projectless-arq  {request.uuid}  -  ")
    found = json.loads(manage("audit", "--format", "json").stdout)
    (finding,) = found["findings"]
    assert finding == {
        "kind": "projectless-arq",
        "uuid": request.uuid,
        "host": None,
        "explanation": "has no project, so that only an administrator sees it",
        "heal": None,
        "refusal": "it has no instance that tells whose it is: delete it if"
        " nobody uses it",
        "on_request": False,
    }
    assert found["unchecked"] == []


def test_what_is_not_healed_is_an_exit_code(manage: Manage) -> None:
    for words in (("heal",), ("heal", "--dry-run")):
        done = manage(*words, "--format", "json")
        assert done.returncode == 1, done.stderr
        (outcome,) = json.loads(done.stdout)["outcomes"]
        assert outcome["result"] == "refused"
    other = manage("heal", "--kind", "orphaned-arq", "--host", "h")
    assert (other.returncode, other.stdout) == (0, "Nothing is wrong.\n")


def test_services_that_cannot_be_asked_are_named(
    manage: Manage, file: Path, spoiled: engine.Database
) -> None:
    file.write_text(OPTIONS.format(url=spoiled.engine.url, others="true"))
    done = manage("audit")
    assert done.returncode == 3
    missed = [line for line in done.stdout.splitlines() if "NOT" in line]
    assert len(missed) == 2
    assert "[placement] auth_type is not set" in missed[0]
    assert "[nova] auth_type is not set" in missed[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("audit",), {"findings": []}),
        (("heal",), {"dry_run": False, "outcomes": []}),
        (("heal", "--dry-run"), {"dry_run": True, "outcomes": []}),
    ],
)
def test_programs_read_the_same_where_there_is_no_database(
    manage: Manage, words: tuple[str, ...], told: dict[str, object]
) -> None:
    nobody = "mysql+pymysql://nobody@127.0.0.1:1/cyborg"
    done = manage(*words, "--format", "json", OS_DATABASE__CONNECTION=nobody)
    assert done.returncode == 3, done.stderr
    why = "The database does not answer."
    assert json.loads(done.stdout) == {
        **told,
        "unchecked": [{"what": "everything", "why": why}],
    }


@pytest.mark.parametrize(
    "words",
    [
        ("audit", "--kind", "nonsense"),
        ("heal", "--concurrency", "0"),
        ("audit", "--nonsense"),
    ],
)
def test_a_mistake_on_the_command_line_is_code_2(
    manage: Manage, words: tuple[str, ...]
) -> None:
    done = manage(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_configuration_that_cannot_be_used_is_code_2(
    manage: Manage,
) -> None:
    done = manage("audit", OS_DATABASE__CONNECTION="nonsense")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "[database] connection" in done.stderr


def test_a_reader_that_goes_away_is_no_fault(file: Path) -> None:
    child = subprocess.Popen(
        [*COMMAND, "--config-file", str(file), "audit"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    said = child.stderr.read()
    child.stderr.close()
    assert (child.wait(60), said) == (1, "")

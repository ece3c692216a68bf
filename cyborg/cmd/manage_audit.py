# SPDX-License-Identifier: Apache-2.0
"""`cyborg-manage audit` and `heal`: what the records of a cloud say against
each other, shown and put right.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from oslo_config import cfg

from cyborg import exception
from cyborg.audit import gathering
from cyborg.audit import running
from cyborg.audit.findings import Finding
from cyborg.audit.findings import Kind
from cyborg.audit.gathering import Unchecked
from cyborg.audit.healing import Healer
from cyborg.audit.healing import Outcome
from cyborg.audit.healing import Result
from cyborg.audit.state import Patience
from cyborg.clients import session
from cyborg.clients.nova_servers import Servers
from cyborg.clients.placement import Placement
from cyborg.clients.placement_survey import Survey
from cyborg.cmd import printing
from cyborg.conductor import background
from cyborg.conductor import requests
from cyborg.conductor.sync import Synchronizer
from cyborg.db.engine import Database
from cyborg.rpc import notifications

NOTHING_WRONG = 0
FOUND = 1
"""`audit`: something is wrong.  `heal`: something is left so."""
MISTAKE = 2
"""The command line or the configuration cannot be used."""
UNCHECKED = 3
"""Something could not be looked at, or a remedy failed: run it again."""

DATABASE_SECONDS = 120
"""How long the database may say nothing."""

PUBLISHER = "cyborg-manage"

_DONE = frozenset({Result.HEALED, Result.CHANGED})
NOTHING = "-"


def add_commands(subparsers: Any) -> None:
    """The words of the command line."""
    audit_words = subparsers.add_parser(
        "audit",
        help="Show what database, Placement and Nova say against each other.",
    )
    heal_words = subparsers.add_parser(
        "heal", help="Put right what audit shows, where that is safe."
    )
    heal_words.add_argument(
        "--dry-run",
        action="store_true",
        help="Say what would be healed, and change nothing.",
    )
    for words in (audit_words, heal_words):
        _add_choice(words)


def _add_choice(words: argparse.ArgumentParser) -> None:
    words.add_argument("--format", choices=("table", "json"), default="table")
    words.add_argument(
        "--kind",
        dest="kinds",
        action="append",
        default=[],
        choices=[kind.value for kind in Kind],
        metavar="KIND",
        help="Only this kind; may be given several times. Kinds: "
        f"{', '.join(kind.value for kind in Kind)}.",
    )
    words.add_argument(
        "--host",
        dest="hosts",
        action="append",
        default=[],
        metavar="NAME",
        help="Only this host, by either of its names; may be given several "
        "times.",
    )
    words.add_argument(
        "--uuid",
        dest="uuids",
        action="append",
        default=[],
        metavar="UUID",
        help="Only what is wrong with this; may be given several times.",
    )
    words.add_argument(
        "--concurrency",
        type=_threads,
        default=8,
        metavar="N",
        help="How many requests Placement and Nova get at once, 1 to 64 (8).",
    )


def _threads(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 64):
        raise argparse.ArgumentTypeError("not a number from 1 to 64")
    return int(text)


def audit(conf: cfg.ConfigOpts) -> int:
    """Show what is wrong; see the exit codes above."""
    choice = _choice(conf)

    def look(sources: gathering.Sources) -> int:
        found = running.audit(gathering.Gatherer(sources), choice)
        if conf.command.format == "json":
            _show_json(
                {
                    "findings": [_as_json(one) for one in found.findings],
                    "unchecked": _unchecked_json(found.unchecked),
                }
            )
        else:
            _show_table(
                ("KIND", "UUID", "HOST", "WHAT IS WRONG", "HEAL"),
                [(*_cells(one), _remedy(one)) for one in found.findings],
                found.unchecked,
            )
        if found.unchecked:
            return UNCHECKED
        return FOUND if found.findings else NOTHING_WRONG

    return _with_sources(conf, look)


def heal(conf: cfg.ConfigOpts) -> int:
    """Put right what is wrong; see the exit codes above."""
    choice = _choice(conf)

    def put_right(sources: gathering.Sources) -> int:
        gatherer = gathering.Gatherer(sources)
        if conf.command.dry_run:
            done = running.planned(running.audit(gatherer, choice), choice)
        else:
            with (
                notifications.telling(conf, sources.database, PUBLISHER),
                _healer(conf, sources) as healer,
            ):
                done = running.heal(gatherer, healer, choice)
        if conf.command.format == "json":
            _show_json(
                {
                    "dry_run": bool(conf.command.dry_run),
                    "outcomes": [
                        _as_json(one.finding)
                        | {"result": one.result.value, "detail": one.detail}
                        for one in done.outcomes
                    ],
                    "unchecked": _unchecked_json(done.unchecked),
                }
            )
        else:
            _show_table(
                ("KIND", "UUID", "HOST", "WHAT IS WRONG", "RESULT"),
                [(*_cells(one.finding), _came(one)) for one in done.outcomes],
                done.unchecked,
            )
        return _heal_code(done)

    return _with_sources(conf, put_right)


def _heal_code(done: running.Heal) -> int:
    results = {one.result for one in done.outcomes}
    if done.unchecked or Result.FAILED in results:
        return UNCHECKED
    return NOTHING_WRONG if results <= _DONE else FOUND


def _choice(conf: cfg.ConfigOpts) -> running.Choice:
    words = conf.command
    return running.Choice(
        frozenset(Kind(name) for name in words.kinds),
        frozenset(words.hosts),
        frozenset(words.uuids),
    )


def _with_sources(
    conf: cfg.ConfigOpts, work: Callable[[gathering.Sources], int]
) -> int:
    """Do the work with what can be asked; UNCHECKED where there is no
    database to read."""
    database = Database(conf, DATABASE_SECONDS)
    try:
        return work(_sources(conf, database))
    except exception.Unavailable as error:
        why = str(error)
        if conf.command.format == "json":
            unchecked = [Unchecked("everything", why)]
            _show_json(
                _nothing(conf) | {"unchecked": _unchecked_json(unchecked)}
            )
        print(f"Nothing was looked at: {why}", file=sys.stderr)
        return UNCHECKED
    finally:
        database.dispose()


def _nothing(conf: cfg.ConfigOpts) -> dict[str, object]:
    """What programs read where nothing was found."""
    if conf.command.name == "audit":
        return {"findings": []}
    return {"dry_run": bool(conf.command.dry_run), "outcomes": []}


def _sources(conf: cfg.ConfigOpts, database: Database) -> gathering.Sources:
    silent: list[Unchecked] = []
    survey: Survey | None = None
    servers: Servers | None = None
    nova_silence = "[nova] enabled = false says that there is no Nova"
    if conf.placement.enabled:
        try:
            survey = Survey(session.adapter(conf, "placement"))
        except session.Unconfigured as error:
            silent.append(Unchecked("everything in Placement", str(error)))
    if conf.nova.enabled:
        try:
            servers = Servers(session.adapter(conf, "nova"))
        except session.Unconfigured as error:
            nova_silence = str(error)
            silent.append(
                Unchecked("which instances still exist", nova_silence)
            )
    down = conf.conductor.service_down_time
    return gathering.Sources(
        database,
        survey,
        servers,
        Patience(
            settle=conf.bind_timeout,
            down=down,
            vanish=max(requests.KEEP_LOST, 10 * down),
        ),
        conf.command.concurrency,
        tuple(silent),
        nova_silence,
        _progress(),
    )


@contextlib.contextmanager
def _healer(
    conf: cfg.ConfigOpts, sources: gathering.Sources
) -> Iterator[Healer]:
    """What heals, by the conductor's own ways."""
    database, survey = sources.database, sources.survey
    if survey is None:
        yield Healer(database, None, None, None)
        return
    placement = Placement(session.adapter(conf, "placement"))
    pool = background.Pool(1, "heal")
    try:
        yield Healer(
            database,
            survey,
            placement,
            Synchronizer(
                database,
                placement,
                conf.conductor.reconcile_interval,
                pool,
                lambda _seconds: None,
            ),
        )
    finally:
        pool.stop(0)


def _progress() -> gathering.Progress:
    """Tells on a terminal how far the look is."""
    if not sys.stderr.isatty():
        return gathering.untold

    def tell(what: str, done: int, count: int) -> None:
        of_all = f" of {count}" if count else ""
        end = "\n" if done >= count > 0 else ""
        print(f"\r{done}{of_all} {what}\x1b[K", file=sys.stderr, end=end)
        sys.stderr.flush()

    return tell


def _cells(finding: Finding) -> tuple[str, ...]:
    return (
        finding.kind.value,
        finding.uuid,
        finding.host or NOTHING,
        finding.explanation,
    )


def _remedy(finding: Finding) -> str:
    if finding.action is None:
        return f"no: {finding.refusal}"
    if finding.on_request:
        return f"only with --kind {finding.kind}: {finding.action.value}"
    return finding.action.value


def _came(outcome: Outcome) -> str:
    if not outcome.detail:
        return outcome.result.value
    return f"{outcome.result.value}: {outcome.detail}"


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "kind": finding.kind.value,
        "uuid": finding.uuid,
        "host": finding.host or None,
        "explanation": finding.explanation,
        "heal": None if finding.action is None else finding.action.value,
        "refusal": finding.refusal or None,
        "on_request": finding.on_request,
    }


def _unchecked_json(unchecked: Sequence[Unchecked]) -> list[dict[str, str]]:
    return [{"what": one.what, "why": one.why} for one in unchecked]


def _show_json(found: object) -> None:
    printing.show(json.dumps(found, indent=2))


def _show_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    unchecked: Sequence[Unchecked],
) -> None:
    lines = list(printing.columns([headings, *rows])) if rows else []
    lines += [f"NOT LOOKED AT: {one.what}: {one.why}" for one in unchecked]
    if not lines:
        lines = ["Nothing is wrong."]
    printing.show("\n".join(lines))

# SPDX-License-Identifier: Apache-2.0
"""`cyborg-status upgrade check`: may the services be started on this?

Run before and after `cyborg-dbsync upgrade`: what that command cures, and
what stops nothing, is a warning (1); only the rest is a failure (2).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence

import sqlalchemy as sa
from keystonemiddleware import opts as middleware_opts
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_upgradecheck import upgradecheck

from cyborg import exception
from cyborg import service
from cyborg.clients import placement_offers
from cyborg.clients import session
from cyborg.cmd import status_policy
from cyborg.db import engine
from cyborg.db import migration
from cyborg.db import offers
from cyborg.db import projects

PROGRAM = "cyborg-status"
MISTAKE = 255
"""As oslo.upgradecheck ends where it could not check at all."""

SHOWN = 20
"""Profiles that one line names."""

_UNREACHABLE = (
    cfg.Error,
    exception.CyborgError,
    db_exception.DBError,
    sa.exc.SQLAlchemyError,
)


def _fine(details: str | None = None) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.SUCCESS, details)


def _warning(details: str) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.WARNING, details)


def _failure(details: str) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.FAILURE, details)


class Checks(upgradecheck.UpgradeCommands):
    """What is looked at, in this order."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__()
        self._conf = conf
        self._database: engine.Database | None = None
        self._ready = False

    def check(self) -> upgradecheck.Code:
        """Look at everything; the worst code."""
        with service.exits_on_mistake(PROGRAM):
            service.set_up(self._conf, PROGRAM)
        try:
            return super().check()
        finally:
            if self._database is not None:
                self._database.dispose()

    def _schema(self) -> upgradecheck.Result:
        if not self._conf.database.connection:
            return _warning(
                "[database] connection is not set here; the database was "
                "not looked at."
            )
        try:
            self._database = engine.Database(self._conf)
            now = migration.standing(self._database)
        except _UNREACHABLE as error:
            return _failure(
                f"The database cannot be read: {type(error).__name__}."
            )
        if now.fault:
            return _failure(now.fault)
        self._ready = now.revision is not None
        if now.current:
            return _fine()
        if not self._ready:
            return _warning(
                "The database has no schema yet: run cyborg-dbsync upgrade."
            )
        return _warning(
            f"The schema stands at {now.revision}, this release needs "
            f"{now.head}: run cyborg-dbsync upgrade."
        )

    def _projects(self) -> upgradecheck.Result:
        if self._database is None or not self._ready:
            return _fine("Not looked at.")
        count = projects.projectless(self._database)
        if not count:
            return _fine()
        return _warning(
            f"{count} accelerator requests have no project, so that only an "
            "administrator sees them: cyborg-dbsync online_data_migrations "
            "fills in those that belong to an instance."
        )

    def _profiles(self) -> upgradecheck.Result:
        if self._database is None or not self._ready:
            return _fine("Not looked at.")
        profiles = offers.stored_profiles(self._database)
        if not profiles:
            return _fine()
        if not self._conf.placement.enabled:
            return _judge_offers(profiles, offers.offered(self._database))
        try:
            placement = session.adapter(self._conf, "placement")
            asked = placement_offers.Offers(placement)
            return _judge_offers(profiles, asked.satisfies)
        except (session.Unconfigured, exception.Unavailable) as error:
            known = _judge_offers(profiles, offers.offered(self._database))
            return _warning(
                f"Placement was not asked ({_line(error)}). "
                f"{known.details or 'Our devices satisfy every profile.'}"
            )

    def _policy_file(self) -> upgradecheck.Result:
        try:
            remarks = status_policy.remarks(self._conf)
        except status_policy.UnusableError as error:
            return _failure(f"[oslo_policy] policy_file: {error}")
        if not remarks:
            return _fine()
        return _warning(f"[oslo_policy] policy_file: {' '.join(remarks)}")

    def _service_token(self) -> upgradecheck.Result:
        if self._conf.auth_strategy == "noauth":
            return _fine("noauth: everybody is an administrator.")
        group = "keystone_authtoken"
        for name, options in middleware_opts.list_auth_token_opts():
            if name == group:
                self._conf.register_opts(options, group=group)
        section = self._conf[group]
        if not (section.auth_type or section.auth_section):
            return _warning(
                "[keystone_authtoken] auth_type is not set: neither tokens "
                "nor the service tokens of Nova can be checked."
            )
        if not section.service_token_roles:
            return _warning(
                "[keystone_authtoken] service_token_roles is empty: no "
                "service may bind or unbind accelerators."
            )
        return _fine()

    _upgrade_checks = (
        ("Database schema", _schema),
        ("Projects of accelerator requests", _projects),
        ("Device profiles", _profiles),
        ("Policy file", _policy_file),
        ("Service token", _service_token),
    )


def _judge_offers(
    profiles: Mapping[str, list[Mapping[str, str]]],
    satisfies: Callable[[Mapping[str, str]], bool],
) -> upgradecheck.Result:
    """A profile without a group can never be asked for either."""
    names = [
        name
        for name, groups in profiles.items()
        if not (groups and all(map(satisfies, groups)))
    ]
    if not names:
        return _fine()
    shown = ", ".join(names[:SHOWN]) + (", ..." if names[SHOWN:] else "")
    return _warning(
        f"No device known today satisfies the device profiles {shown}."
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def main(argv: Sequence[str] | None = None) -> int:
    """Check what the command line says; the exit code."""
    conf = cfg.ConfigOpts()
    service.prepare(conf)
    try:
        with service.exits_on_mistake(PROGRAM):
            return int(
                upgradecheck.main(
                    conf,
                    service.PROJECT,
                    Checks(conf),
                    list(sys.argv[1:] if argv is None else argv),
                )
            )
    except SystemExit as error:
        if not isinstance(error.code, str):
            raise
        print(error.code, file=sys.stderr)
        return MISTAKE


if __name__ == "__main__":
    sys.exit(main())

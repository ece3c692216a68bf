# SPDX-License-Identifier: Apache-2.0
"""A database server and a broker of a test's own, to be restarted.

Those of the machine are shared with others and are never stopped.  Ours
live below a folder of the test, on loopback ports that nobody else has, and
end with the test's process however that ends.
"""

from __future__ import annotations

import getpass
import os
import shutil
from pathlib import Path

import pymysql
import sqlalchemy as sa

from tests.integration import certificates
from tests.integration import children
from tests.integration import resources

START_SECONDS = 120
USER, PASSWORD = "cyborg", "not-a-secret"
RABBIT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not what is on the PATH, which changes to the user of the machine's own
broker."""


class MariaDB:
    """MariaDB with a database `cyborg` and a user who is no administrator,
    as a deployer's has none: one who is may write when nobody should.

    With a certificate, of the authority in the file `trusted`, it speaks
    TLS and nothing else.
    """

    def __init__(
        self,
        folder: Path,
        certificate: certificates.Pair | None = None,
        trusted: Path | None = None,
    ) -> None:
        server = shutil.which("mariadbd") or shutil.which("mysqld")
        install = shutil.which("mariadb-install-db")
        if server is None or install is None:
            resources.missing("MariaDB's server is not installed here")
        self._server = server
        self._folder = folder
        self._certificate = certificate
        self._tls = {} if trusted is None else {"ca": str(trusted)}
        self.port = resources.free_port()
        self.url = (
            f"mysql+pymysql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/cyborg"
        )
        if trusted is not None:
            self.url += f"?ssl_ca={trusted}"
        done = children.finish(
            [
                install,
                "--no-defaults",
                f"--datadir={folder / 'data'}",
                f"--user={getpass.getuser()}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self._child: children.Child | None = None
        self.start()
        for statement in (
            "CREATE DATABASE cyborg CHARACTER SET utf8mb4",
            f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"CREATE USER {USER}@localhost IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON cyborg.* TO {USER}@'%'",
            f"GRANT ALL ON cyborg.* TO {USER}@localhost",
        ):
            self.run(statement)

    def start(self) -> None:
        """Serve what the folder holds."""
        tls = self._certificate and (
            f"--ssl-cert={self._certificate.certificate}",
            f"--ssl-key={self._certificate.key}",
            "--require-secure-transport=ON",
        )
        self._child = children.Child(
            [
                self._server,
                "--no-defaults",
                f"--datadir={self._folder / 'data'}",
                f"--socket={self._folder / 'socket'}",
                f"--pid-file={self._folder / 'pid'}",
                f"--user={getpass.getuser()}",
                "--bind-address=127.0.0.1",
                f"--port={self.port}",
                "--innodb-buffer-pool-size=32M",
                "--innodb-log-file-size=8M",
                "--performance-schema=OFF",
                *(tls or ()),
            ],
            self._folder / "mariadb.out",
        )
        child = self._child
        resources.wait_until(
            lambda: not child.running or resources.answers(self.port),
            START_SECONDS,
            "MariaDB serves",
        )
        assert child.running, child.tail()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """End it in an orderly way."""
        if self._child is not None:
            self._child.stop(START_SECONDS)

    def run(self, statement: str) -> object:
        """Run a statement as the administrator; its first value."""
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=self.port,
                user="root",
                autocommit=True,
                ssl=self._tls or None,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            row = cursor.fetchone()
            return row[-1] if row else None

    @property
    def root_url(self) -> str:
        """The same database as the administrator sees it."""
        return (
            sa.make_url(self.url)
            .set(username="root", password="")
            .render_as_string(hide_password=False)
        )


class RabbitMQ(resources.Vhost):
    """A broker; it is its own only virtual host."""

    def __init__(self, folder: Path) -> None:
        if not RABBIT.exists():
            resources.missing(f"there is no {RABBIT}")
        self.port = resources.free_port()
        self._distribution = resources.free_port()
        super().__init__("%2F", f"guest:guest@127.0.0.1:{self.port}")
        self._folder = folder
        (folder / "home").mkdir()
        (folder / "rabbit.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\n"
            "log.console = false\n"
        )
        (folder / "plugins").write_text("[].\n")
        self._child: children.Child | None = None
        self.start()

    def start(self) -> None:
        """Serve what the folder holds."""
        folder = self._folder
        self._child = children.Child(
            [str(RABBIT)],
            folder / "rabbit.out",
            {
                # So that the script becomes the server, which then ends
                # with us, instead of watching over it.
                "RUNNING_UNDER_SYSTEMD": "true",
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "HOME": str(folder / "home"),
                "RABBITMQ_CONF_ENV_FILE": os.devnull,
                "RABBITMQ_CONFIG_FILE": str(folder / "rabbit"),
                "RABBITMQ_DIST_PORT": str(self._distribution),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
                "RABBITMQ_LOG_BASE": str(folder / "log"),
                "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
                "RABBITMQ_NODENAME": f"cyborg_test_{self.port}@localhost",
                "RABBITMQ_NODE_PORT": str(self.port),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                    "-kernel inet_dist_use_interface {127,0,0,1}"
                ),
            },
        )
        child = self._child
        resources.wait_until(
            lambda: not child.running or resources.answers(self.port),
            START_SECONDS,
            "RabbitMQ serves",
        )
        assert child.running, child.tail()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """End it in an orderly way."""
        if self._child is not None:
            self._child.stop(START_SECONDS)

"""A real MariaDB: external, in a container, or the `mariadbd` of this machine. Needs PyMySQL."""

import contextlib
import functools
import itertools
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from examples.servers import docker
from examples.servers.local import (
    ExternalHost,
    Host,
    LocalProcess,
    install,
    not_root,
    prepared_directory,
)
from examples.servers.server import Server, first_answer, version_of
from examples.servers.settings import named_by
from examples.servers.sources import start_first

if TYPE_CHECKING:
    import pymysql

URL_VARIABLE = "FENCING_TEST_MYSQL_URL"

# Throw-away data: what is not on the disk after a power cut does not matter.
_SETTINGS: Mapping[str, str] = {
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-flush-method": "nosync",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "32M",
    "max-connections": "200",
}


_PASSWORD = "fencing"
_VERSION = r"Ver (\d+)\.(\d+)\.(\d+)-MariaDB"


class MariaDBBinary(NamedTuple):
    version: tuple[int, ...]
    server: Path
    installer: Path
    """`mariadb-install-db`, which makes the system tables."""


class MariaDBServer(Server):
    """A running MariaDB, or the MySQL of the environment variable."""

    def __init__(self, url: str, host: Host, source: str) -> None:
        super().__init__(url, host, source, port=3306)
        self._numbers = itertools.count(1)
        self.url = url
        self.is_mariadb = True

    @contextlib.contextmanager
    def connect(self) -> "Iterator[pymysql.Connection[Any]]":
        """An administrator's connection, in autocommit mode."""
        import pymysql

        parts = urlsplit(self.url)
        connection: pymysql.Connection[Any] = pymysql.connect(
            host=self.host,
            port=self.port,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            autocommit=True,
            connect_timeout=60,
            read_timeout=120,
        )
        try:
            yield connection
        finally:
            connection.close()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement, on an administrator's connection."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def create_database(self) -> str:
        """Create an empty database, and an account that sees no other. Return its SQLAlchemy URL."""
        name = f"fencing_{os.getpid()}_{next(self._numbers)}"
        pattern = name.replace("_", r"\_")
        self.execute(f"CREATE DATABASE `{name}`")
        self.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{_PASSWORD}'")
        self.execute(f"GRANT ALL PRIVILEGES ON `{pattern}`.* TO '{name}'@'%'")
        self.execute(f"GRANT PROCESS ON *.* TO '{name}'@'%'")
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{name}:{_PASSWORD}@{host}", path=f"/{name}").geturl()

    def share_database(self, url: str, account_url: str) -> str:
        """Let the account of another database use this one too. Return the URL of this one with that account."""
        parts = urlsplit(account_url)
        pattern = urlsplit(url).path.removeprefix("/").replace("_", r"\_")
        self.execute(f"GRANT ALL PRIVILEGES ON `{pattern}`.* TO '{parts.username}'@'%'")
        return parts._replace(path=urlsplit(url).path).geturl()

    def end_sessions(self, name: str) -> None:
        """Send away whoever is connected to a database."""
        # Not information_schema.processlist: MySQL cannot convert a statement with an emoji for that table.
        for session, _, _, database, *_ in self.execute("SHOW PROCESSLIST"):
            if database == name:
                with contextlib.suppress(Exception):  # it may be gone by now
                    self.execute(f"KILL {session}")

    def drop_database(self, url: str) -> None:
        """Drop what `create_database` made; whoever is still connected to it is sent away first."""
        name = urlsplit(url).path.removeprefix("/")
        self.end_sessions(name)
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")
        self.execute(f"DROP USER IF EXISTS '{name}'@'%'")


@functools.cache
def find_mariadb_binary() -> MariaDBBinary | None:
    """The first MariaDB on PATH, or in /usr/sbin, where distributions put it."""
    for folder in [*os.get_exec_path(), "/usr/sbin"]:
        server = Path(folder) / "mariadbd"
        installer = shutil.which("mariadb-install-db")
        if installer and os.access(server, os.X_OK) and (version := version_of(server, _VERSION)) is not None:
            return MariaDBBinary(version, server, Path(installer))
    return None


def start_mariadb(
    *,
    settings: Mapping[str, str] | None = None,
    own: bool = False,
    local: bool = False,
    environment: Mapping[str, str] | None = None,
) -> MariaDBServer:
    """Start a MariaDB, or find the server FENCING_TEST_MYSQL_URL names; raises ServerError when there is none.

    `settings`: options of the server, over those of a throw-away one.
    `own`: never the external server. `local`: a process of this machine, never a container either.
    `environment`: more variables of a local process.
    """
    url = named_by(URL_VARIABLE)
    if url and not (own or local or settings):
        url = urlsplit(url)._replace(scheme="mysql+pymysql").geturl()
        return _ready(MariaDBServer(url, ExternalHost(URL_VARIABLE), URL_VARIABLE))
    options = {**_SETTINGS, **(settings or {})}
    binary = find_mariadb_binary()

    def start(source: str) -> MariaDBServer | None:
        return _start_binary(binary, options, environment or {}) if binary and source == "path" else None

    in_docker = not local and docker.may_serve(found_elsewhere=binary is not None)
    return start_first(
        start,
        (lambda: _start_container(options)) if in_docker else None,
        f"no MariaDB: put mariadbd on PATH (apt-get install mariadb-server), set {URL_VARIABLE}, or run Docker",
    )


def _start_binary(binary: MariaDBBinary, options: Mapping[str, str], more: Mapping[str, str]) -> MariaDBServer:
    user = not_root()
    clean = {"PATH": os.defpath + ":/usr/sbin", "LC_ALL": "C", "TZ": "UTC"}
    with prepared_directory(user) as directory:
        data = directory / "data"
        command_line = [
            *(str(binary.installer), "--no-defaults", f"--datadir={data}", "--skip-test-db", "--skip-name-resolve"),
            *("--auth-root-authentication-method=normal", f"--tmpdir={directory}"),
        ]
        install(command_line, directory=directory, user=user, environment=clean)

    def command(port: int) -> list[str]:
        own = {
            "datadir": str(data),
            "tmpdir": str(directory),  # a server that starts deletes the temporary tables of any other there
            "socket": str(directory / "socket"),
            "pid-file": str(directory / "pid"),
            "bind-address": "127.0.0.1",
            "port": str(port),
        }
        return [
            *(str(binary.server), "--no-defaults", "--skip-name-resolve"),
            *(f"--{name}={value}" for name, value in {**options, **own}.items()),
        ]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=data,
        ready=lambda process: "ready for connections" in process.log,
        clashed=lambda log: "Bind on TCP/IP port" in log,
        user=user,
        environment={**clean, **more},
    )
    server = MariaDBServer(f"mysql+pymysql://root@127.0.0.1:{process.port}", process, f"PATH: {binary.server}")
    server.version = binary.version
    return server


def _start_container(options: Mapping[str, str]) -> MariaDBServer:
    image = "mariadb:11.4"
    command = [f"--{name}={value}" for name, value in options.items()]
    environment = {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1", "MARIADB_ROOT_HOST": "%"}
    container = docker.Container(_mariadb_container, image, 3306, command, environment)
    server = MariaDBServer(f"mysql+pymysql://root@{container.host}:{container.port}", container, image)
    return _ready(server)


def _mariadb_container(image: str) -> Any:
    from testcontainers.core.container import DockerContainer

    return DockerContainer(image)  # testcontainers has none of MariaDB


def _ready(server: MariaDBServer) -> MariaDBServer:
    """Wait until it lets us in, and note its version."""
    import pymysql

    failures = (pymysql.err.OperationalError, OSError)
    [(said,)] = first_answer(server, lambda: server.execute("SELECT VERSION()"), failures)
    server.version = tuple(map(int, re.findall(r"\d+", str(said))[:3]))
    server.is_mariadb = "MariaDB" in str(said)
    return server

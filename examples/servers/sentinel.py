"""A primary, its replicas and the Sentinels that watch them: real failovers on one machine."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis.sentinel

from examples.servers.local import LocalProcess, ServerError, new_directory
from examples.servers.redis import RedisBinary, RedisServer, find_redis_binary, scheme_of, start_redis

SERVICE = "shop"

# A replica connects and copies at once, and is told of its primary's life each second.
_REPLICATION = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--repl-timeout", "5")

# Milliseconds. By default, Sentinels look for each other every two seconds and for replicas every ten, and a machine
# that stood still for two seconds makes them do nothing for thirty. Five PING-PERIODs must be longer than a second: a
# Sentinel promotes no replica whose INFO is older, and in a failover it asks for INFO once a second.
_QUICKER = {"INFO-PERIOD": 200, "PING-PERIOD": 300, "ASK-PERIOD": 100, "PUBLISH-PERIOD": 200, "TILT-PERIOD": 1000}

# A vote that no Sentinel wins is repeated after twice this time.
FAILOVER_SECONDS = 1.5

HEAD_START = 0.5

_AWAY = (redis.ConnectionError, redis.TimeoutError, redis.ResponseError)


class SentinelServers:
    """Running Redis servers and Sentinels. A context manager; `close` ends them all.

    Attributes:
        service: the name under which the Sentinels know the primary.
        servers: the Redis servers; the first one began as the primary.
        sentinels: the Sentinels; they can be frozen and killed, too.
    """

    def __init__(self, servers: Sequence[RedisServer], sentinels: Sequence[RedisServer], stack: ExitStack) -> None:
        self.service = SERVICE
        self.servers = tuple(servers)
        self.sentinels = tuple(sentinels)
        self._stack = stack

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the Sentinels, as `redis.sentinel.Sentinel` takes them."""
        return [(sentinel.host, sentinel.port) for sentinel in self.sentinels]

    def named(self) -> list[RedisServer | None]:
        """Return the server that each Sentinel takes for the primary; None: it does not answer, or knows none."""
        named: list[RedisServer | None] = []
        for sentinel in self.sentinels:
            try:
                with sentinel.client(socket_timeout=1, retry=None) as client:
                    _, port = client.sentinel_get_master_addr_by_name(self.service)
            except (*_AWAY, TypeError):
                named.append(None)
            else:
                named.append(next((server for server in self.servers if server.port == port), None))
        return named

    @property
    def primary(self) -> RedisServer:
        """The server that the most Sentinels take for the primary; raises ServerError when none answers."""
        named = [server for server in self.named() if server is not None]
        if not named:
            raise ServerError("no Sentinel names a primary")
        return max(named, key=named.count)

    @property
    def replicas(self) -> list[RedisServer]:
        """The other servers."""
        primary = self.primary
        return [server for server in self.servers if server is not primary]

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client of the primary that the Sentinels name; `options` as for `redis.sentinel.Sentinel`."""
        sentinel: Any = redis.sentinel.Sentinel
        client: redis.Redis = sentinel(self.addresses, **options).master_for(self.service)
        return client

    def cut_replication(self) -> None:
        """Let no replica copy from the primary any more, which continues. What it does from now on is on it alone."""
        with self.primary.client(socket_timeout=5) as client:
            admin: Any = client
            admin.execute_command("ACL SETUSER default -psync -sync")
            admin.execute_command("CLIENT KILL TYPE replica")
            deadline = time.monotonic() + 60
            while admin.info("replication")["connected_slaves"]:
                if time.monotonic() > deadline:
                    raise ServerError("the replicas still copy from the primary")
                time.sleep(0.01)

    def fail_over(self, timeout: float = 30.0) -> RedisServer:
        """Have a replica take over, at once and whatever the primary does; return it when all Sentinels name it."""
        before = self.primary
        deadline = time.monotonic() + timeout
        while True:
            refusal = None
            try:
                with self.sentinels[0].client(socket_timeout=2) as client:
                    client.execute_command("SENTINEL", "FAILOVER", self.service)
            except redis.ResponseError as error:  # one is under way, or no replica is known to be good yet
                refusal = error
            try:  # a Sentinel gives a replica up that does not confirm within FAILOVER_SECONDS
                return self.successor(before, 0.05 if refusal else 5 * FAILOVER_SECONDS)
            except ServerError:
                if time.monotonic() > deadline:
                    raise ServerError(f"the Sentinel does not fail over: {refusal}") from refusal

    def successor(self, before: RedisServer, timeout: float = 60.0) -> RedisServer:
        """Wait until all Sentinels that answer name another primary than `before`, and return it."""
        deadline = time.monotonic() + timeout
        while True:
            named = {server for server in self.named() if server is not None}
            if len(named) == 1 and before not in named:
                [server] = named
                if _role(server) == "master":
                    return server
            if time.monotonic() > deadline:
                raise ServerError(f"no failover within {timeout:.0f} s")
            time.sleep(0.02)

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until all know each other, and every replica has what the primary has."""
        deadline = time.monotonic() + timeout
        while not self._is_settled():
            if time.monotonic() > deadline:
                raise ServerError(f"the Sentinels and replicas were not ready within {timeout:.0f} s")
            time.sleep(0.02)

    def _is_settled(self) -> bool:
        others, replicas = len(self.sentinels) - 1, len(self.servers) - 1
        try:
            for sentinel in self.sentinels:
                with sentinel.client(socket_timeout=2) as client:
                    state: Any = client.sentinel_master(self.service)
                    known: Any = client.sentinel_slaves(self.service)
                links = [each["master-link-status"] for each in known]
                if state["num-other-sentinels"] != others or state["flags"] != "master" or links != ["ok"] * replicas:
                    return False
            with self.primary.client(socket_timeout=2) as client:
                info: Any = client.info("replication")
            copies = [info[f"slave{number}"] for number in range(info["connected_slaves"])]
            return [each["state"] for each in copies] == ["online"] * replicas
        except _AWAY:
            return False

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "SentinelServers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_sentinels(
    *,
    version: str | None = None,
    replicas: int = 2,
    sentinels: int = 3,
    down_after: float = 1.0,
    extra_args: Sequence[str] = (),
    sentinel_args: Sequence[str] = (),
    environments: Sequence[Mapping[str, str] | None] = (),
) -> SentinelServers:
    """Start a primary, replicas and Sentinels as processes of this machine; raises ServerError when there is no binary.

    `version`: as for `start_redis`.
    `down_after`: seconds of silence after which a Sentinel takes a server for dead. On a busy machine, less than a
    second causes failovers that nobody wants.
    `extra_args`: for the command line of each Redis server. `sentinel_args`: for that of each Sentinel. Both as for
    `start_redis`.
    `environments`: variables for each Redis server, the primary first.
    """
    binary = find_redis_binary(version)
    of_each = [*environments, *[None] * (1 + replicas)]
    with ExitStack() as stack:
        servers: list[RedisServer] = []
        for number in range(1 + replicas):
            arguments = [*_REPLICATION, *extra_args]
            if servers:
                arguments += ["--replicaof", servers[0].host, str(servers[0].port)]
            server = start_redis(version=binary.series, extra_args=arguments, local=True, environment=of_each[number])
            servers.append(stack.enter_context(server))
        watchers: list[RedisServer] = []
        for number in range(sentinels):
            # The first one notices a death before the others, and need not ask them whether it is one, only for their
            # votes. If all noticed it together, each would vote for itself, and again after some seconds.
            quorum, patience = (sentinels // 2 + 1, down_after + HEAD_START) if number else (1, down_after)
            watchers.append(stack.enter_context(_start(binary, servers[0], quorum, patience, sentinel_args)))
        made = SentinelServers(servers, watchers, stack.pop_all())
    try:
        made.settle()
    except BaseException:
        made.close()
        raise
    return made


def _start(
    binary: RedisBinary, primary: RedisServer, quorum: int, down_after: float, extra_args: Sequence[str]
) -> RedisServer:
    directory = new_directory()
    data = directory / "data"
    data.mkdir()
    configuration = data / "sentinel.conf"  # the Sentinel writes into it
    _write(configuration, data, primary, quorum, down_after)

    def command(port: int) -> list[str]:
        extra = [argument.replace("{port}", str(port)) for argument in extra_args]
        return [str(binary.path), str(configuration), "--sentinel", "--port", str(port), *extra]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=data,
        ready=lambda process: "+monitor master" in process.log,
        clashed=lambda log: "Address already in use" in log,
    )
    url = f"{scheme_of(extra_args)}://127.0.0.1:{process.port}/0"
    server = RedisServer(url, process, f"{binary.source}: {binary.path}")
    server.version, server.kind = binary.version, binary.kind
    if binary.version >= (7, 0):
        with server.client(socket_timeout=5) as client:
            client.execute_command("SENTINEL", "DEBUG", *(word for each in _QUICKER.items() for word in each))
    return server


def _write(configuration: Path, data: Path, primary: RedisServer, quorum: int, down_after: float) -> None:
    lines = [
        "bind 127.0.0.1",
        f"dir {data}",
        f"sentinel monitor {SERVICE} {primary.host} {primary.port} {quorum}",
        f"sentinel down-after-milliseconds {SERVICE} {down_after * 1000:.0f}",
        f"sentinel failover-timeout {SERVICE} {FAILOVER_SECONDS * 1000:.0f}",
        f"sentinel parallel-syncs {SERVICE} 5",
    ]
    configuration.write_text("\n".join(lines) + "\n")


def _role(server: RedisServer) -> str:
    try:
        with server.client(socket_timeout=1, retry=None) as client:
            return str(client.info("replication")["role"])
    except _AWAY:
        return ""

"""A real ZooKeeper: external, or Debian's jar with the Java on PATH; one, or an ensemble of three."""

import functools
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from examples.servers.local import (
    START_TIMEOUT,
    ExternalHost,
    Host,
    LocalProcess,
    ServerError,
    free_port,
    new_directory,
)
from examples.servers.proxy import Proxy
from examples.servers.server import Server, first_answer
from examples.servers.settings import named_by
from examples.servers.sources import start_first

HOSTS_VARIABLE = "FENCING_TEST_ZOOKEEPER_HOSTS"

_JARS = Path("/usr/share/java")
# Of Debian's, those that a server needs.
_NAMES = (
    *("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java"),
    *("netty-handler", "netty-common", "netty-buffer", "netty-transport", "netty-codec", "netty-resolver"),
    *("netty-transport-native-epoll", "netty-transport-native-unix-common", "netty-tcnative"),
)

_TICK_MS = 200

# A new leader opens its port a moment after it was elected. Who is refused there tries again, but who is accepted and
# then broken off, as by a proxy without patience, has the others wait for `initLimit`, and elects anew.
_LISTENS_WITHIN = 2.0

# Up in a second: little memory, one thread for its garbage, no compiler that optimises.
_JAVA = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")

# Who looks for a leader in vain asks less and less often, by default once a minute in the end.
_ELECTION = ("-Dzookeeper.cnxTimeout=500", "-Dzookeeper.fastleader.maxNotificationInterval=1000")

_SETTINGS = {
    "tickTime": _TICK_MS,
    "initLimit": 25,
    "syncLimit": 10,
    "maxClientCnxns": 0,
    "maxSessionTimeout": 60_000,
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "*",
    "forceSync": "no",
    "preAllocSize": 64,
    "standaloneEnabled": "true",
}

_REFUSAL = (
    "no ZooKeeper: install Debian's jar and a Java (apt-get install libzookeeper-java openjdk-17-jre-headless), or "
    f"set {HOSTS_VARIABLE}"
)


class ZooKeeperBinary(NamedTuple):
    java: str
    classpath: str


class ZooKeeperServer(Server):
    """A running ZooKeeper."""

    def __init__(self, hosts: str, host: Host, source: str) -> None:
        super().__init__(f"zookeeper://{hosts}", host, source, port=2181)
        self.hosts = hosts
        self.data: Path | None = None
        """Where it keeps its data; None: it is not ours."""

    def ask(self, word: str, timeout: float = 5) -> str:
        """Return what it says to a command of four letters."""
        return _ask(self.host, self.port, word, timeout)

    @property
    def mode(self) -> str:
        """`standalone`, `leader`, `follower` or `read-only`; empty: it serves nobody."""
        return _mode_in(self.ask("srvr"))


@functools.cache
def find_zookeeper() -> ZooKeeperBinary | None:
    """Debian's jar, and the Java on PATH."""
    java = shutil.which("java")
    jars = [path for name in _NAMES if (path := _JARS / f"{name}.jar").exists()]
    if java is None or not (_JARS / "zookeeper.jar").exists():
        return None
    return ZooKeeperBinary(java, ":".join(map(str, jars)))


def start_zookeeper(
    *, settings: dict[str, Any] | None = None, own: bool = False, java: Sequence[str] = ()
) -> ZooKeeperServer:
    """Start a ZooKeeper, or find the one that FENCING_TEST_ZOOKEEPER_HOSTS names; raises ServerError without any.

    `settings`: of its configuration file. `own`: never the external server. `java`: more arguments for Java.
    """
    hosts = named_by(HOSTS_VARIABLE)
    if hosts and not (own or settings or java):
        return _ready(ZooKeeperServer(hosts, ExternalHost(HOSTS_VARIABLE), HOSTS_VARIABLE))

    def start(source: str) -> ZooKeeperServer | None:
        binary = find_zookeeper()
        return _ready(_start(binary, settings or {}, java=java)) if binary and source == "path" else None

    return start_first(start, None, _REFUSAL)


def _start(
    binary: ZooKeeperBinary, settings: dict[str, Any], own: int = 0, number: int = 0, java: Sequence[str] = ()
) -> ZooKeeperServer:
    """Start one; or the member with this number, at the port `own`."""
    directory = new_directory()
    data = directory / "data"

    def command(port: int) -> list[str]:
        port = own or port
        lines = {**_SETTINGS, "dataDir": data, "clientPort": port, "clientPortAddress": "127.0.0.1", **settings}
        configuration = directory / "zoo.cfg"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        if own:
            (data / "myid").write_text(str(number))
        properties = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *_ELECTION)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [binary.java, *_JAVA, *properties, *java, "-cp", binary.classpath, main, str(configuration)]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=data,
        ready=lambda process: bool(own) or _serves(process.port),  # a member waits for the others
        clashed=lambda log: "Address already in use" in log,
    )
    port = own or process.port
    server = ZooKeeperServer(f"127.0.0.1:{port}", process, f"{binary.java} with {_JARS}/zookeeper.jar")
    server.data = data
    return server


def _serves(port: int) -> bool:
    with suppress(OSError):
        return bool(_mode_in(_ask("127.0.0.1", port, "srvr", 1)))
    return False


def _ask(host: str, port: int, word: str, timeout: float) -> str:
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(word.encode())
        said = b""
        while part := connection.recv(65_536):
            said += part
    return said.decode()


def _mode_in(said: str) -> str:
    return next((line.partition(": ")[2].strip() for line in said.splitlines() if line.startswith("Mode: ")), "")


def _ready(server: ZooKeeperServer) -> ZooKeeperServer:
    """Wait until it serves, and note its version."""

    def ask() -> str:
        if server.has_ended:
            raise ServerError("the server exited", server.log)
        said = server.ask("srvr")
        if not _mode_in(said):
            raise OSError(said)
        return said

    said = first_answer(server, ask, (OSError,))
    server.version = tuple(map(int, said.partition("Zookeeper version: ")[2].partition("-")[0].split(".")))
    return server


class ZooKeeperEnsemble:
    """Three members, each of which reaches each other one through proxies. `started`: how many of them run."""

    def __init__(
        self, stack: ExitStack, settings: dict[str, Any] | None = None, java: Sequence[str] = (), started: int = 3
    ) -> None:
        binary = find_zookeeper()
        if binary is None:
            raise ServerError(_REFUSAL)
        free: list[int] = []
        while len(free) < 9:
            port = free_port()
            free += [port] * (port not in free)
        ports = free[:3]
        others = {port: (free[3 + each], free[6 + each]) for each, port in enumerate(ports)}
        """For the other members: one for those that follow, and one for elections."""
        self._proxies: dict[tuple[int, int], list[Proxy]] = {}
        for one in ports:
            for other in ports:
                if one != other:
                    self._proxies[one, other] = [
                        stack.enter_context(Proxy("127.0.0.1", port, patience=_LISTENS_WITHIN))
                        for port in others[other]
                    ]
        self.members: list[ZooKeeperServer] = []
        for number, own in enumerate(ports[:started], 1):
            peers = {
                f"server.{each}": f"127.0.0.1:{others[port][0]}:{others[port][1]}"
                if port == own
                else "127.0.0.1:" + ":".join(str(proxy.port) for proxy in self._proxies[own, port])
                for each, port in enumerate(ports, 1)
            }
            member = _start(binary, {**(settings or {}), **peers}, own, number, java)
            self.members.append(stack.enter_context(member))
        for each in self.members:
            _ready(each)

    @property
    def hosts(self) -> str:
        return ",".join(each.hosts for each in self.members)

    def leader(self) -> ZooKeeperServer:
        """The member that leads, as soon as one does."""
        return self._in_mode("leader")

    def follower(self) -> ZooKeeperServer:
        """A member that follows, as soon as one does."""
        return self._in_mode("follower")

    def _in_mode(self, mode: str) -> ZooKeeperServer:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            for each in self.members:
                with suppress(OSError):
                    if _mode_in(each.ask("srvr", 1)) == mode:
                        return each
            time.sleep(0.05)
        raise ServerError(f"no member became {mode}")

    def isolate(self, member: ZooKeeperServer) -> None:
        """Let nothing pass between a member and the others, until `heal`. Clients still reach it."""
        self._at(member, lambda proxy: proxy.refuse())

    def heal(self) -> None:
        for pair in self._proxies.values():
            for proxy in pair:
                proxy.restore()

    def _at(self, member: ZooKeeperServer, act: Callable[[Proxy], None]) -> None:
        for ends, pair in self._proxies.items():
            if member.port in ends:
                for proxy in pair:
                    act(proxy)

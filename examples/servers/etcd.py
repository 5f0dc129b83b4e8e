"""A real etcd: external, or the `etcd` on PATH; one, or a cluster of three."""

import functools
import json
import os
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
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
from examples.servers.server import Server, first_answer, version_of
from examples.servers.settings import named_by
from examples.servers.sources import start_first

URL_VARIABLE = "FENCING_TEST_ETCD_URL"

_PEER = 10_000
"""How far above a server's port the one for the other members is."""

# A dead holder's lease then ends after 1 second, and not after 2 at the earliest.
_SETTINGS = ("--heartbeat-interval", "50", "--election-timeout", "500")

_REFUSAL = f"no etcd: put etcd on PATH (apt-get install etcd-server etcd-client), or set {URL_VARIABLE}"


class EtcdBinary(NamedTuple):
    version: tuple[int, ...]
    path: Path


class EtcdServer(Server):
    """A running etcd."""

    def __init__(self, url: str, host: Host, source: str) -> None:
        super().__init__(url, host, source, port=2379)
        self.url = url
        self.data: Path | None = None
        """Where it keeps its data; None: it is not ours."""

    def call(self, path: str, body: dict[str, Any], timeout: float = 10, *, credentials: str = "") -> Any:
        """Make a request of the JSON gateway, and return its reply."""
        headers = {"Authorization": credentials} if credentials else {}
        request = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.loads(reply.read())


@functools.cache
def find_etcd_binary() -> EtcdBinary | None:
    """The first etcd on PATH."""
    for folder in [*os.get_exec_path(), "/usr/sbin"]:
        path = Path(folder) / "etcd"
        if os.access(path, os.X_OK) and (version := version_of(path, r"etcd Version: (\d+)\.(\d+)\.(\d+)")) is not None:
            return EtcdBinary(version, path)
    return None


def start_etcd(*, extra_args: Sequence[str] = (), own: bool = False, data: Path | None = None) -> EtcdServer:
    """Start an etcd, or find the one that FENCING_TEST_ETCD_URL names; raises ServerError when there is none.

    `extra_args`: for the server's command line. `own`: never the external server. `data`: the folder of its data.
    """
    url = named_by(URL_VARIABLE)
    if url and not (own or extra_args):
        return _ready(EtcdServer(url.rstrip("/"), ExternalHost(URL_VARIABLE), URL_VARIABLE))

    def start(source: str) -> EtcdServer | None:
        binary = find_etcd_binary()
        return _start_binary(binary, extra_args, data=data) if binary and source == "path" else None

    return start_first(start, None, _REFUSAL)


def _start_binary(
    binary: EtcdBinary,
    extra_args: Sequence[str],
    peers: Mapping[int, str] | None = None,
    own: int = 0,
    data: Path | None = None,
) -> EtcdServer:
    """Start one; or the member at the port `own`, where the others reach each at its URL of `peers`."""
    directory = new_directory()
    data = data or directory / "data"
    scheme = "https" if "--cert-file" in extra_args else "http"

    def command(port: int) -> list[str]:
        port = own or port
        url, listen = f"{scheme}://127.0.0.1:{port}", _peer(port)
        members = peers or {port: listen}
        return [
            *(str(binary.path), "--name", f"m{port}", "--data-dir", str(data), *_SETTINGS),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", listen, "--initial-advertise-peer-urls", members[port]),
            *("--initial-cluster", ",".join(f"m{each}={peer}" for each, peer in members.items())),
            *extra_args,
        ]

    process = LocalProcess(
        command=command,
        directory=directory,
        data=data,
        ready=lambda process: bool(own) or _listens(process),  # a member waits for the others
        clashed=lambda log: "address already in use" in log,
        second_port=_PEER,
    )
    port = own or process.port
    server = EtcdServer(f"{scheme}://127.0.0.1:{port}", process, f"PATH: {binary.path}")
    server.version, server.data = binary.version, data
    return server


def _peer(port: int) -> str:
    return f"http://127.0.0.1:{port + _PEER}"


def _listens(process: LocalProcess) -> bool:
    log = process.log
    return any(part in log for part in ("serving insecure client", "serving client", "serving secure client"))


def _ready(server: EtcdServer) -> EtcdServer:
    """Wait until it serves, and note its version."""

    def ask() -> Any:
        if server.has_ended:
            raise ServerError("the server exited", server.log)
        return server.call("maintenance/status", {})

    said = first_answer(server, ask, (OSError,))
    server.version = tuple(map(int, said["version"].split(".")))
    return server


class EtcdCluster:
    """Three members, which reach one another through proxies. Others can take their places."""

    def __init__(self, stack: ExitStack, extra_args: Sequence[str] = ()) -> None:
        binary = find_etcd_binary()
        if binary is None:
            raise ServerError(_REFUSAL)
        self._stack, self._binary = stack, binary
        # Otherwise members can be changed only where all have been connected for five seconds.
        self._extra_args = ("--strict-reconfig-check=false", *extra_args)
        self._proxies: dict[int, Proxy] = {}
        self.peers: dict[int, str] = {}
        """Where the others reach each member, by its port."""
        for _ in range(3):
            self._new_peer(free_port(_PEER))
        self.servers = [self._start(each, ()) for each in list(self.peers)]
        for each in self.servers:
            _ready(each)

    def _new_peer(self, port: int) -> str:
        if port not in self._proxies:
            self._proxies[port] = self._stack.enter_context(Proxy("127.0.0.1", port + _PEER))
        self.peers[port] = self._proxies[port].url(_peer(port))
        return self.peers[port]

    def _start(self, port: int, extra_args: Sequence[str]) -> EtcdServer:
        arguments = (*self._extra_args, *extra_args)
        return self._stack.enter_context(_start_binary(self._binary, arguments, dict(self.peers), port))

    def isolate(self, member: EtcdServer) -> None:
        """Let nothing pass between a member and the others, until `heal`."""
        sender = f"X-Server-From: {_id_of(member):x}".encode()
        for port, proxy in self._proxies.items():
            if port == member.port:
                proxy.refuse()
            else:
                proxy.drop_request_when(lambda request: sender in request, times=10**9)
                proxy.cut()

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.restore()

    def remove(self, member: EtcdServer) -> None:
        """Remove a member (`etcdctl member remove`). Its process ends when it learns of it."""
        self.servers.remove(member)
        del self.peers[member.port]
        gone = str(_id_of(member))

        def remove() -> bool:
            if all(each["ID"] != gone for each in self._members()):
                return True
            self._ask("member/remove", {"ID": gone})
            return False

        _until(remove)

    def add(self, *, learner: bool = False, port: int = 0) -> EtcdServer:
        """Add a member, and start it: one without a vote, or one at the port of a member that was removed."""
        port = port or free_port(_PEER)
        url = self._new_peer(port)

        def add() -> bool:
            if any(url in each["peerURLs"] for each in self._members()):
                return True
            self._ask("member/add", {"peerURLs": [url], "isLearner": learner})
            return False

        _until(add)
        member = _ready(self._start(port, ("--initial-cluster-state", "existing")))
        self.servers.append(member)
        return member

    def promote(self, learner: EtcdServer) -> None:
        """Give a member a vote (`etcdctl member promote`), as soon as it has what the leader has."""
        own = str(_id_of(learner))

        def promote() -> bool:
            if all(each["ID"] != own or not each.get("isLearner") for each in self._members()):
                return True
            self._ask("member/promote", {"ID": own})
            return False

        _until(promote)

    def _members(self) -> list[Any]:
        return list(self._ask("member/list", {})["members"])

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """Ask a member. What comes during an election gets no answer, and is asked again."""
        return self.servers[0].call(f"cluster/{path}", body, timeout=2)

    @property
    def urls(self) -> list[str]:
        return [each.url for each in self.servers]

    def leader(self) -> EtcdServer:
        """The member that leads, as soon as one does."""
        found: list[EtcdServer] = []

        def find() -> bool:
            for each in self.servers:
                with suppress(OSError):
                    said = each.call("maintenance/status", {})
                    if said.get("leader") == said["header"]["member_id"]:
                        found.append(each)
                        return True
            return False

        _until(find)
        return found[0]


def _id_of(member: EtcdServer) -> int:
    return int(member.call("maintenance/status", {})["header"]["member_id"])


def _until(done: Callable[[], bool]) -> None:
    """Wait until it is done. Members may elect a leader meanwhile, and answer with an error."""
    deadline = time.monotonic() + START_TIMEOUT
    failed: OSError | None = None
    while True:
        try:
            if done():
                return
        except OSError as error:
            failed = error
        if time.monotonic() > deadline:
            raise ServerError(f"the cluster did not do what was asked of it: {failed}")
        time.sleep(0.05)

"""What servers have in common wherever they run: an address, a beginning and an end, a version."""

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from examples.servers.local import START_TIMEOUT, ExternalHost, Host, LocalProcess, ServerError
from fencing.locks.urls import parse

S = TypeVar("S", bound="Server")
T = TypeVar("T")


class Server:
    """A running server. A context manager; `close` ends it and removes its data."""

    def __init__(self, url: str, host: Host, source: str, *, port: int) -> None:
        self._host = host
        self.source = source
        self.host, self.port = parse(url, port, such_as="redis://localhost:6379", default_host="127.0.0.1").hosts[0]
        self.version: tuple[int, ...] = ()

    @property
    def pid(self) -> int | None:
        """The process, or None for a container, an external server, a stopped one."""
        return self._host.pid

    @property
    def external(self) -> bool:
        return isinstance(self._host, ExternalHost)

    def stop(self) -> None:
        """End it in order: sessions are broken off, everything acknowledged is kept for `restart`."""
        self._host.stop()

    def kill(self) -> None:
        """End it at once: a crash, from which `restart` recovers everything acknowledged."""
        self._host.kill()

    def restart(self, *, keep_data: bool = True) -> None:
        """Stop it if it still runs, and start it again on the same port."""
        self._host.restart(keep_data=keep_data)

    def freeze(self) -> None:
        """Stop the process where it is (SIGSTOP): connections stay up, nothing answers."""
        self._host.freeze()

    def thaw(self) -> None:
        self._host.thaw()

    @property
    def has_ended(self) -> bool:
        """Whether its process runs no more, if it is ours."""
        return isinstance(self._host, LocalProcess) and self._host.has_ended

    @property
    def log(self) -> str:
        """What it has said, if it is ours."""
        return self._host.log if isinstance(self._host, LocalProcess) else ""

    def close(self) -> None:
        self._host.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def version_of(binary: Path, pattern: str) -> tuple[int, ...] | None:
    """The version of a server's binary; None where what it says does not match, or it does not run here."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, said.stdout)
    return tuple(int(part) for part in match.groups() if part) if match else None


def first_answer(server: Server, ask: Callable[[], T], failures: tuple[type[Exception], ...]) -> T:
    """What a server says as soon as it lets us in: one of our own gets time to start. It is closed if it does not."""
    deadline = time.monotonic() + START_TIMEOUT
    try:
        while True:
            try:
                return ask()
            except failures as error:
                if server.external or time.monotonic() > deadline:
                    raise ServerError(f"{server.source} does not answer: {error}") from error
            time.sleep(0.05)
    except BaseException:
        server.close()
        raise

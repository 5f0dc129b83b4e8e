"""A lower limit: sockets that send recorded bytes, read the replies, and do nothing else.

The bytes of this library are recorded on their way to the server, so they are always those of today. The same token is
granted again, so they can be sent any number of times.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import redis

from fencing import RedisCoordinator

RAW = "raw commands"
PINGS = "raw PING pair"

CHUNK = 65_536


class Recorder:
    """Passes one connection after another on to a server, and records the requests of clients."""

    def __init__(self, host: str, port: int) -> None:
        self.said = bytearray()
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:  # closed
                return
            far = connect(*self._target)
            threading.Thread(target=self._pass_on, args=(near, far, self.said), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(far, near, None), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
        try:
            while data := source.recv(CHUNK):
                if record is not None:
                    record += data  # before it is answered
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other end is gone

    def close(self) -> None:
        self._listening.close()


def recorded_pairs(host: str, port: int, resources: Sequence[str], ttl: float) -> list[list[bytes]]:
    """Return the commands of one acquire and release for each resource, as they are when all connections are up."""
    recorder = Recorder(host, port)
    pairs = []
    with redis.Redis("127.0.0.1", recorder.port) as client, RedisCoordinator(client, ttl=ttl) as coordinator:
        for resource in (resources[0], *resources):  # the first one twice: connecting, and the scripts' first use
            recorder.said.clear()
            coordinator.lock(resource).acquire(timeout=5).release()
            pairs.append(commands_of(bytes(recorder.said)))
    recorder.close()
    return pairs[1:]


def commands_of(said: bytes) -> list[bytes]:
    """Split requests into single RESP commands, which are arrays of bulk strings."""
    commands = []
    at = 0
    while at < len(said):
        start = at
        end = said.index(b"\r\n", at)
        count = int(said[at + 1 : end])
        at = end + 2
        for _ in range(count):
            end = said.index(b"\r\n", at)
            at = end + 2 + int(said[at + 1 : end]) + 2
        commands.append(said[start:at])
    return commands


def connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Raw:
    """A blocking socket. A reply is small and comes as one segment, so one ``recv`` reads it all."""

    def __init__(self, host: str, port: int, commands: Sequence[bytes] = (b"PING\r\n", b"PING\r\n")) -> None:
        self._socket = connect(host, port)
        self._commands = commands

    def pair(self) -> None:
        for command in self._commands:
            self._socket.sendall(command)
            self._socket.recv(CHUNK)

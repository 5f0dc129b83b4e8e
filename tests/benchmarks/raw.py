"""The limit: a socket that sends the very bytes this library sends, and reads the replies, and nothing else.

The bytes are recorded on their way from the library to the server, so that they are always those of today. The same
token again is granted again, so they can be sent any number of times.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import redis

from fencing import RedisCoordinator

__all__ = ["AsyncRaw", "Raw", "connect", "idle_round_trip", "recorded_pairs"]

CHUNK = 65_536
IDLE_SECONDS = 0.001


class Recorder:
    """Passes one connection after another on to a server, and keeps what clients say."""

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
            far = socket.create_connection(self._target)
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
    """For each resource the commands of one acquire and release, as they are when all connections are up."""
    recorder = Recorder(host, port)
    pairs = []
    with redis.Redis("127.0.0.1", recorder.port) as client, RedisCoordinator(client, ttl=ttl) as coordinator:
        for resource in (resources[0], *resources):  # the first one twice: connecting, and the scripts' first use
            recorder.said.clear()
            with coordinator.hold(resource, timeout=5):
                pass
            pairs.append(_commands(bytes(recorder.said)))
    recorder.close()
    return pairs[1:]


def _commands(said: bytes) -> list[bytes]:
    """Bytes as single RESP commands, which are arrays of bulk strings."""
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
    """Blocking. A reply is small and comes as one segment, so one ``recv`` has it all."""

    def __init__(self, host: str, port: int, commands: Sequence[bytes]) -> None:
        self._socket = connect(host, port)
        self._commands = commands

    def pair(self) -> None:
        for command in self._commands:
            self._socket.sendall(command)
            self._socket.recv(CHUNK)


class AsyncRaw(asyncio.Protocol):
    """asyncio: one connection for all tasks. Each chunk that arrives is taken for as many replies as have their
    end in it: our replies are arrays whose only line that starts with ``*`` is the first."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, host: str, port: int) -> AsyncRaw:
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, port)
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"*")):
            self._waiting.popleft().set_result(None)

    def pairs_of(self, commands: Sequence[bytes]) -> Callable[[], Awaitable[None]]:
        assert self._transport is not None
        write, waiting, make = self._transport.write, self._waiting, self._loop.create_future

        async def pair() -> None:
            for command in commands:
                reply = make()
                waiting.append(reply)
                write(command)
                await reply

        return pair


def idle_round_trip(host: str, port: int, samples: int = 100) -> float:
    """Seconds of one round trip over a raw connection on which nothing has happened for a millisecond."""
    commands = recorded_pairs(host, port, ["idle"], 10)[0]
    connection = connect(host, port)
    times = []
    for _ in range(samples):
        for command in commands:
            time.sleep(IDLE_SECONDS)
            started = time.perf_counter()
            connection.sendall(command)
            connection.recv(CHUNK)
            times.append(time.perf_counter() - started)
    connection.close()
    return statistics.median(times)

"""Servers whose answers come in drops, never end, or are not of our scripts: every call ends by its deadline."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from fencing import CoordinatorUnavailable
from tests.support.sides import Side

Answer = Callable[[socket.socket], None]


def in_drops(client: socket.socket) -> None:
    for _ in range(400):
        client.sendall(b"*1000\r\n$1\r\nx\r\n")
        time.sleep(0.05)


def endless(client: socket.socket) -> None:
    client.sendall(b"$500000000\r\n")
    for _ in range(400):
        client.sendall(b"x" * 1000)
        time.sleep(0.05)


ANSWERS: dict[str, Answer] = {
    "in drops": in_drops,
    "endless": endless,
    "a number": lambda client: client.sendall(b":1\r\n"),
    "a status": lambda client: client.sendall(b"+OK\r\n"),
    "nothing": lambda client: client.sendall(b"$-1\r\n"),
    "HTTP": lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "closed": lambda client: client.close(),
}


@pytest.fixture(params=list(ANSWERS))
def odd_server(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server that greets as Redis does, and answers each script oddly. The value is its port."""
    clients: list[socket.socket] = []

    def serve(client: socket.socket) -> None:
        try:
            while data := client.recv(65536):
                if b"EVAL" in data:
                    ANSWERS[request.param](client)
                else:
                    client.sendall(b"+OK\r\n" * max(1, data.count(b"CLIENT")))
        except OSError:
            pass  # the test is over

    def accept() -> None:
        while True:
            try:
                clients.append(server.accept()[0])
            except OSError:
                return
            threading.Thread(target=serve, args=(clients[-1],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    for client in clients:
        client.close()


@pytest.mark.thorough
def test_every_call_ends_by_its_deadline(side: Side, odd_server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencing.locks.settings.TRY_SECONDS", 0.1)
    coordinator = side.coordinator(f"redis://127.0.0.1:{odd_server}", ttl=0.9)
    began = time.monotonic()
    for call in (coordinator.try_acquire, coordinator.holder):
        with pytest.raises(CoordinatorUnavailable):
            side.call(call, "r")
    with pytest.raises(CoordinatorUnavailable):
        side.call(coordinator.acquire, "r", timeout=0.2)
    assert time.monotonic() - began < 30

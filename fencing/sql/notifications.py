"""PostgreSQL's notifications, as its drivers receive them: what must be asked of psycopg and of asyncpg."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

CHANNEL = "fencing_wake"

# A silent network is noticed after about this long: the first two in seconds.
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))


class Undelivered(Exception):
    """The notification that the listener sent to itself did not arrive: another client's session got it."""


def new_probe() -> str:
    """Return the text of a notification to oneself. No resource has such a name."""
    return f"fencing: {secrets.token_hex(8)}"


def received(driver_connection: Any) -> list[str]:
    """Return the notifications that psycopg's connection has received, without waiting. Raise if it broke."""
    pgconn = driver_connection.pgconn
    pgconn.consume_input()
    texts = []
    while (notification := pgconn.notifies()) is not None:
        texts.append(notification.extra.decode())
    return texts


def wait_received(driver_connection: Any, seconds: float) -> list[str]:
    """Return the notifications of psycopg's sync connection, as soon as there is one, or after ``seconds``."""
    poll = select.poll() if hasattr(select, "poll") else None
    fileno = driver_connection.pgconn.socket
    if poll is None:
        select.select([fileno], [], [], seconds)
    else:
        poll.register(fileno, select.POLLIN)
        poll.poll(seconds * 1000)
    return received(driver_connection)


def keep_alive(driver_connection: Any) -> None:
    """Let the kernel notice a network that has fallen silent."""
    with suppress(OSError):  # a socket of the machine has no such options
        if hasattr(driver_connection, "pgconn"):
            with socket.socket(fileno=os.dup(driver_connection.pgconn.socket)) as copy:
                _keep_alive(copy)
        else:
            _keep_alive(driver_connection._transport.get_extra_info("socket"))


def _keep_alive(connection: Any) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Subscription:
    """The notifications of an async connection that listens already. The connection sends nothing after it.

    Args:
        driver_connection: psycopg's or asyncpg's.
        on_text: is called with each notification's text, in the event loop.
    """

    def __init__(self, driver_connection: Any, on_text: Callable[[str], object]) -> None:
        self._driver_connection, self._on_text = driver_connection, on_text
        self.ended = asyncio.Event()
        """Set when the connection has broken."""

    async def begin(self) -> None:
        """Begin to receive."""
        driver = self._driver_connection
        if hasattr(driver, "pgconn"):
            asyncio.get_running_loop().add_reader(driver.pgconn.socket, self._on_readable)
        else:
            driver.add_termination_listener(lambda _: self.ended.set())
            await driver.add_listener(CHANNEL, lambda _, __, ___, text: self._on_text(text))

    def end(self) -> None:
        """Receive nothing more. asyncpg ends it with the connection."""
        pgconn = getattr(self._driver_connection, "pgconn", None)
        if pgconn is not None:
            with suppress(Exception):  # the socket is closed already
                asyncio.get_running_loop().remove_reader(pgconn.socket)

    def _on_readable(self) -> None:
        try:
            texts = received(self._driver_connection)
        except Exception:  # noqa: BLE001 - psycopg's, which is not imported here
            self.end()
            self.ended.set()
            return
        for text in texts:
            self._on_text(text)

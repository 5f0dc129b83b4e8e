"""Sources of a psycopg guard's connections: a pool, one connection, or a function or string that makes them."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict

from fencing.kernel.errors import GuardUnavailable

Borrow = Callable[[float], AbstractContextManager[Connection[Any]]]
AsyncBorrow = Callable[[float], AbstractAsyncContextManager[AsyncConnection[Any]]]

_EXPECTED = "a psycopg_pool pool, a psycopg connection, a connection string, or a function that connects is needed"


class Pool(Protocol):
    """The part of a psycopg_pool pool that is used. That package need not be installed."""

    def getconn(self, timeout: float | None = None) -> Connection[Any]: ...

    def putconn(self, conn: Any) -> None: ...


class AsyncPool(Protocol):
    """The part of an async psycopg_pool pool that is used."""

    async def getconn(self, timeout: float | None = None) -> AsyncConnection[Any]:
        """Lend a connection, within ``timeout`` seconds."""
        ...

    async def putconn(self, conn: Any) -> None:
        """Take a connection back."""
        ...


Source = Pool | Connection[Any] | str | Callable[[], Connection[Any]]
AsyncSource = AsyncPool | AsyncConnection[Any] | str | Callable[[], Awaitable[AsyncConnection[Any]]]


def connection_source(source: Source) -> Borrow:
    """Return a function that borrows a connection of ``source``, and waits for it at most so many seconds.

    Raises:
        TypeError: ``source`` is no source of connections, or is for asyncio.
        ValueError: it is a str, but no connection string.
    """
    checked = _check_source(source, asynchronous=False)
    if isinstance(checked, Connection):
        return partial(_SingleConnection, checked, threading.Lock())
    if isinstance(checked, str):
        return _new_connection(lambda seconds: Connection.connect(checked, **_connect_timeout(checked, seconds)))
    if hasattr(checked, "getconn"):
        return partial(_PooledConnection, checked)
    return _new_connection(lambda _: checked())


def async_connection_source(source: AsyncSource) -> AsyncBorrow:
    """Return a function that borrows a connection of ``source``, as :func:`connection_source` does."""
    checked = _check_source(source, asynchronous=True)
    if isinstance(checked, AsyncConnection):
        return _async_single(checked)
    if isinstance(checked, str):
        return _async_new_connection(
            lambda seconds: AsyncConnection.connect(checked, **_connect_timeout(checked, seconds))
        )
    if hasattr(checked, "getconn"):
        return _async_pooled(checked)
    return _async_new_connection(lambda _: checked())


class _PooledConnection:
    """One connection of a pool, for one operation. (A class, because a generator costs more.)"""

    def __init__(self, pool: Any, seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds

    def __enter__(self) -> Connection[Any]:
        connection: Connection[Any] = self._pool.getconn(timeout=self._seconds)
        self._connection = connection
        return connection

    def __exit__(self, *_: object) -> None:
        self._pool.putconn(self._connection)


def _async_pooled(pool: Any) -> AsyncBorrow:
    @asynccontextmanager
    async def borrow(seconds: float) -> AsyncIterator[AsyncConnection[Any]]:
        connection = await pool.getconn(timeout=seconds)
        try:
            yield connection
        finally:
            await _finish_despite_cancellation(pool.putconn(connection))

    return borrow


def _new_connection(connect: Callable[[float], Any]) -> Borrow:
    @contextmanager
    def borrow(seconds: float) -> Iterator[Connection[Any]]:
        connection = connect(seconds)
        if not isinstance(connection, Connection):
            if inspect.iscoroutine(connection):
                connection.close()
            raise TypeError(
                f"the function that connects returned a {type(connection).__name__}; let it return a psycopg Connection"
            )
        try:
            yield connection
        finally:
            connection.close()

    return borrow


def _async_new_connection(connect: Callable[[float], Any]) -> AsyncBorrow:
    @asynccontextmanager
    async def borrow(seconds: float) -> AsyncIterator[AsyncConnection[Any]]:
        made = connect(seconds)
        connection = await made if inspect.isawaitable(made) else made
        if not isinstance(connection, AsyncConnection):
            raise TypeError(
                f"the function that connects returned a {type(connection).__name__}; let it return an AsyncConnection"
            )
        try:
            yield connection
        finally:
            await _finish_despite_cancellation(connection.close())

    return borrow


class _SingleConnection:
    """The guard's only connection, for one operation after the other."""

    def __init__(self, connection: Connection[Any], free: threading.Lock, seconds: float) -> None:
        self._connection = connection
        self._free = free
        self._seconds = seconds

    def __enter__(self) -> Connection[Any]:
        if not self._free.acquire(timeout=self._seconds):
            raise _busy(self._seconds)
        try:
            _require_alive(self._connection)
        except BaseException:
            self._free.release()
            raise
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._free.release()


def _async_single(connection: AsyncConnection[Any]) -> AsyncBorrow:
    turn = asyncio.Lock()

    @asynccontextmanager
    async def borrow(seconds: float) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            await asyncio.wait_for(turn.acquire(), seconds)
        except TimeoutError:
            raise _busy(seconds) from None
        try:
            _require_alive(connection)
            yield connection
        finally:
            turn.release()

    return borrow


def _require_alive(connection: Any) -> None:
    if connection.closed:
        raise GuardUnavailable(
            "the guard's only connection is closed; nothing was written. Make a new guard, or give it a pool, which "
            "replaces closed connections"
        )


def _busy(seconds: float) -> GuardUnavailable:
    return GuardUnavailable(
        f"the guard's only connection was in use for {seconds:.3g} s; nothing was written, retry, or give it a pool"
    )


def _check_source(source: Any, *, asynchronous: bool) -> Any:
    kind = type(source).__name__
    ours, theirs = ("AsyncPsycopgGuard", "PsycopgGuard") if asynchronous else ("PsycopgGuard", "AsyncPsycopgGuard")
    other_kind = TypeError(f"{ours} cannot use this {kind}; use {theirs}")
    if isinstance(source, str):
        try:
            conninfo_to_dict(source)
        except psycopg.ProgrammingError:  # its text quotes the string, and with it a password
            hint = "; psycopg takes postgresql://…, without +psycopg" if source.startswith("postgresql+") else ""
            raise ValueError(
                f"not a connection string of PostgreSQL: {len(source)} characters that libpq cannot read{hint}"
            ) from None
        return source
    if isinstance(source, (Connection, AsyncConnection)):
        if isinstance(source, AsyncConnection) is not asynchronous:
            raise other_kind
        return source
    connect = getattr(source, "getconn", source)
    if isinstance(source, type) or not callable(connect):
        raise TypeError(
            f"{_EXPECTED}, not {kind}{' (SQLAlchemyGuard takes engines)' if kind.endswith('Engine') else ''}"
        )
    is_coroutine = inspect.iscoroutinefunction(connect)
    if is_coroutine and not asynchronous:
        raise other_kind
    if asynchronous and not is_coroutine and connect is not source:
        raise other_kind
    return source


def _connect_timeout(conninfo: str, seconds: float) -> dict[str, Any]:
    """Return libpq's time-out for connecting, unless the user has set one. It counts whole seconds, 2 at least."""
    if "connect_timeout" in conninfo_to_dict(conninfo):
        return {}
    return {"connect_timeout": max(2, math.ceil(seconds))}


async def _finish_despite_cancellation(giving_back: Awaitable[None]) -> None:
    """Give a connection back even on a cancellation; otherwise its pool would lose it. It waits for no server."""
    task = asyncio.ensure_future(giving_back)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=1.0)
        raise

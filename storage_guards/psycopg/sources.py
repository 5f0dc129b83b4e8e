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

Lend = Callable[[float], AbstractContextManager[Connection[Any]]]
AsyncLend = Callable[[float], AbstractAsyncContextManager[AsyncConnection[Any]]]

_WANTED = "a psycopg_pool pool, a psycopg connection, a connection string, or a function that connects is needed"


class Pool(Protocol):
    """As much of a psycopg_pool pool as is used. That package need not be installed."""

    def getconn(self, timeout: float | None = None) -> Connection[Any]: ...

    def putconn(self, conn: Any) -> None: ...


class AsyncPool(Protocol):
    """:class:`Pool` for asyncio."""

    async def getconn(self, timeout: float | None = None) -> AsyncConnection[Any]: ...

    async def putconn(self, conn: Any) -> None: ...


Source = Pool | Connection[Any] | str | Callable[[], Connection[Any]]
AsyncSource = AsyncPool | AsyncConnection[Any] | str | Callable[[], Awaitable[AsyncConnection[Any]]]


def connection_source(source: Source) -> Lend:
    """What lends a connection of ``source``, for which it waits so many seconds at most.

    Raises:
        TypeError: ``source`` is none, or for asyncio.
        ValueError: it is a str, but no connection string.
    """
    thing = _checked(source, asynchronous=False)
    if isinstance(thing, Connection):
        return partial(_Turn, thing, threading.Lock())
    if isinstance(thing, str):
        return _made(lambda seconds: Connection.connect(thing, **_patience(thing, seconds)))
    if hasattr(thing, "getconn"):
        return partial(_Pooled, thing)
    return _made(lambda _: thing())


def async_connection_source(source: AsyncSource) -> AsyncLend:
    """:func:`connection_source` for asyncio."""
    thing = _checked(source, asynchronous=True)
    if isinstance(thing, AsyncConnection):
        return _async_one(thing)
    if isinstance(thing, str):
        return _async_made(lambda seconds: AsyncConnection.connect(thing, **_patience(thing, seconds)))
    if hasattr(thing, "getconn"):
        return _async_pooled(thing)
    return _async_made(lambda _: thing())


class _Pooled:
    """One connection of a pool, for one operation. (These are classes, not generators, as they cost less.)"""

    def __init__(self, pool: Any, seconds: float) -> None:
        self._pool = pool
        self._seconds = seconds

    def __enter__(self) -> Connection[Any]:
        connection: Connection[Any] = self._pool.getconn(timeout=self._seconds)
        self._connection = connection
        return connection

    def __exit__(self, *_: object) -> None:
        self._pool.putconn(self._connection)


def _async_pooled(pool: Any) -> AsyncLend:
    @asynccontextmanager
    async def lend(seconds: float) -> AsyncIterator[AsyncConnection[Any]]:
        connection = await pool.getconn(timeout=seconds)
        try:
            yield connection
        finally:
            await _whatever_is_cancelled(pool.putconn(connection))

    return lend


def _made(connect: Callable[[float], Any]) -> Lend:
    @contextmanager
    def lend(seconds: float) -> Iterator[Connection[Any]]:
        connection = connect(seconds)
        if not isinstance(connection, Connection):
            if inspect.iscoroutine(connection):
                connection.close()
            raise TypeError(f"the function that connects returned a {type(connection).__name__}, no Connection")
        try:
            yield connection
        finally:
            connection.close()

    return lend


def _async_made(connect: Callable[[float], Any]) -> AsyncLend:
    @asynccontextmanager
    async def lend(seconds: float) -> AsyncIterator[AsyncConnection[Any]]:
        made = connect(seconds)
        connection = await made if inspect.isawaitable(made) else made
        if not isinstance(connection, AsyncConnection):
            raise TypeError(f"the function that connects returned a {type(connection).__name__}, no AsyncConnection")
        try:
            yield connection
        finally:
            await _whatever_is_cancelled(connection.close())

    return lend


class _Turn:
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


def _async_one(connection: AsyncConnection[Any]) -> AsyncLend:
    turn = asyncio.Lock()

    @asynccontextmanager
    async def lend(seconds: float) -> AsyncIterator[AsyncConnection[Any]]:
        try:
            await asyncio.wait_for(turn.acquire(), seconds)
        except TimeoutError:
            raise _busy(seconds) from None
        try:
            _require_alive(connection)
            yield connection
        finally:
            turn.release()

    return lend


def _require_alive(connection: Any) -> None:
    if connection.closed:
        raise GuardUnavailable(
            "the guard's only connection is closed; nothing was written. A pool in its place would replace it"
        )


def _busy(seconds: float) -> GuardUnavailable:
    return GuardUnavailable(
        f"the guard's only connection was in use for {seconds:.3g} s; nothing was written, retry, or give it a pool"
    )


def _checked(source: Any, *, asynchronous: bool) -> Any:
    kind = type(source).__name__
    ours, theirs = ("AsyncPsycopgGuard", "PsycopgGuard") if asynchronous else ("PsycopgGuard", "AsyncPsycopgGuard")
    other_kind = TypeError(f"{ours} cannot work with this {kind}; use {theirs}")
    if isinstance(source, str):
        try:
            conninfo_to_dict(source)
        except psycopg.ProgrammingError as error:
            hint = "; psycopg takes postgresql://…, without +psycopg" if source.startswith("postgresql+") else ""
            raise ValueError(f"not a connection string of PostgreSQL: {error}{hint}") from error
        return source
    if isinstance(source, (Connection, AsyncConnection)):
        if isinstance(source, AsyncConnection) is not asynchronous:
            raise other_kind
        return source
    connect = getattr(source, "getconn", source)
    if isinstance(source, type) or not callable(connect):
        raise TypeError(f"{_WANTED}, not {kind}{' (SQLAlchemyGuard takes engines)' if kind.endswith('Engine') else ''}")
    is_coroutine = inspect.iscoroutinefunction(connect)
    if is_coroutine and not asynchronous:
        raise other_kind
    if asynchronous and not is_coroutine and connect is not source:
        raise other_kind
    return source


def _patience(conninfo: str, seconds: float) -> dict[str, Any]:
    """libpq's time to connect, unless the user has set one; it counts whole seconds, 2 at least."""
    if "connect_timeout" in conninfo_to_dict(conninfo):
        return {}
    return {"connect_timeout": max(2, math.ceil(seconds))}


async def _whatever_is_cancelled(giving_back: Awaitable[None]) -> None:
    """Or the connection would be lost to its pool. It waits for no server."""
    task = asyncio.ensure_future(giving_back)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=1.0)
        raise

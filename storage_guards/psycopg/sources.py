"""Sources of a psycopg guard's connections: a pool, one connection, or a function or string that makes them."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict

from fencing.kernel.errors import GuardUnavailable
from storage_guards.psycopg.wire import hang_up, is_idle

ENDS_THE_BLOCK = ("commit", "rollback", "close")
"""The methods that a guarded block refuses, by attributes of the connection."""

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


class Lent(ABC):
    """One connection of a source, for one operation. It is idle when it is given back, or closed.

    An interruption can hit ``__exit__`` itself. So the guard's methods have an ``except`` around it, which calls
    :meth:`recover`.
    """

    _connection: Connection[Any] | None = None
    _state: _State | None = None

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> Connection[Any]:
        try:
            self._connection = connection = self._take()
            self._state = _State(connection)
        except BaseException:
            self.give_back()
            raise
        return connection

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give the connection back, unless that has happened already."""
        connection = self._connection
        if connection is None:
            self._give_up()
            return
        if self._state is not None and self._state.has_changed(connection):
            self._state.restore(connection)
        self._return(connection)
        self._connection = None

    def recover(self) -> None:
        """Give the connection back if an interruption has prevented that."""
        with suppress(ValueError, psycopg.Error):  # a pool has it already
            self.give_back()

    @abstractmethod
    def _take(self) -> Connection[Any]: ...

    @abstractmethod
    def _return(self, connection: Connection[Any]) -> None: ...

    def _give_up(self) -> None:  # noqa: B027 - most need nothing
        """End what an interrupted ``_take`` has left."""


class AsyncLent(ABC):
    """An async :class:`Lent`."""

    _connection: AsyncConnection[Any] | None = None
    _state: _State | None = None

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> AsyncConnection[Any]:
        try:
            self._connection = connection = await self._take()
            self._state = _State(connection)
        except BaseException:
            await self.give_back()
            raise
        return connection

    async def __aexit__(self, *_: object) -> None:
        await self.give_back()

    async def give_back(self) -> None:
        """Give the connection back, unless that has happened already, and even on a cancellation: otherwise its pool
        would lose it. It waits for no server."""
        connection = self._connection
        if connection is None:
            self._give_up()
            return
        if self._state is not None and self._state.has_changed(connection):
            self._state.restore(connection)
        giving_back = self._return(connection)
        self._connection = None
        if giving_back is not None:
            await _finish_despite_cancellation(giving_back)

    async def recover(self) -> None:
        """Give the connection back if an interruption has prevented that."""
        with suppress(ValueError, psycopg.Error):  # a pool has it already
            await self.give_back()

    @abstractmethod
    async def _take(self) -> AsyncConnection[Any]:
        """Return a connection, within the bound."""

    @abstractmethod
    def _return(self, connection: AsyncConnection[Any]) -> Awaitable[None] | None: ...

    def _give_up(self) -> None:  # noqa: B027 - most need nothing
        """End what an interrupted ``_take`` has left."""


Borrow = Callable[[float], Lent]
AsyncBorrow = Callable[[float], AsyncLent]


class _State:
    """The state in which a connection was borrowed, and must be given back."""

    __slots__ = ("_autocommit", "_was_idle")

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        self._was_idle = is_idle(connection)
        self._autocommit = connection.autocommit

    def has_changed(self, connection: Connection[Any] | AsyncConnection[Any]) -> bool:
        """Return whether an interruption has kept a guarded block from ending its transaction."""
        return self._was_idle and (
            connection.autocommit is not self._autocommit
            or ENDS_THE_BLOCK[-1] in vars(connection)
            or not is_idle(connection)
        )

    def restore(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        """Close the connection if anything but its methods has changed: what it has sent is not known."""
        allow(connection)
        if connection.autocommit is not self._autocommit or not is_idle(connection):
            hang_up(connection)


def allow(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Allow the methods again that a guarded block refuses."""
    for name in ENDS_THE_BLOCK:
        vars(connection).pop(name, None)


def connection_source(source: Source) -> Borrow:
    """Return a function that borrows a connection of ``source``, and waits for it at most so many seconds.

    Raises:
        TypeError: ``source`` is no source of connections, or is for asyncio.
        ValueError: it is a str, but no connection string.
    """
    checked = _check_source(source, asynchronous=False)
    if isinstance(checked, Connection):
        return partial(_SingleConnection, checked, Turn())
    if isinstance(checked, str):
        return partial(
            _NewConnection, lambda seconds: Connection.connect(checked, **_connect_timeout(checked, seconds))
        )
    if hasattr(checked, "getconn"):
        return partial(_PooledConnection, checked)
    return partial(_NewConnection, lambda _: checked())


def async_connection_source(source: AsyncSource) -> AsyncBorrow:
    """Return a function that borrows a connection of ``source``, as :func:`connection_source` does."""
    checked = _check_source(source, asynchronous=True)
    if isinstance(checked, AsyncConnection):
        return partial(_AsyncSingleConnection, checked, asyncio.Lock())
    if isinstance(checked, str):
        return partial(
            _AsyncNewConnection,
            lambda seconds: AsyncConnection.connect(checked, **_connect_timeout(checked, seconds)),
        )
    if hasattr(checked, "getconn"):
        return partial(_AsyncPooledConnection, checked)
    return partial(_AsyncNewConnection, lambda _: checked())


class _PooledConnection(Lent):
    def __init__(self, pool: Any, seconds: float) -> None:
        super().__init__(seconds)
        self._pool = pool

    def _take(self) -> Connection[Any]:
        connection: Connection[Any] = self._pool.getconn(timeout=self._seconds)
        return connection

    def _return(self, connection: Connection[Any]) -> None:
        self._pool.putconn(connection)


class _AsyncPooledConnection(AsyncLent):
    def __init__(self, pool: Any, seconds: float) -> None:
        super().__init__(seconds)
        self._pool = pool

    async def _take(self) -> AsyncConnection[Any]:
        connection: AsyncConnection[Any] = await self._pool.getconn(timeout=self._seconds)
        return connection

    def _return(self, connection: AsyncConnection[Any]) -> Awaitable[None]:
        giving_back: Awaitable[None] = self._pool.putconn(connection)
        return giving_back


class _NewConnection(Lent):
    def __init__(self, connect: Callable[[float], Any], seconds: float) -> None:
        super().__init__(seconds)
        self._connect = connect

    def _take(self) -> Connection[Any]:
        connection = self._connect(self._seconds)
        if not isinstance(connection, Connection):
            if inspect.iscoroutine(connection):
                connection.close()
            raise TypeError(
                f"the function that connects returned a {type(connection).__name__}; let it return a psycopg Connection"
            )
        return connection

    def _return(self, connection: Connection[Any]) -> None:
        connection.close()


class _AsyncNewConnection(AsyncLent):
    def __init__(self, connect: Callable[[float], Any], seconds: float) -> None:
        super().__init__(seconds)
        self._connect = connect

    async def _take(self) -> AsyncConnection[Any]:
        made = self._connect(self._seconds)
        connection = await made if inspect.isawaitable(made) else made
        if not isinstance(connection, AsyncConnection):
            raise TypeError(
                f"the function that connects returned a {type(connection).__name__}; let it return an AsyncConnection"
            )
        return connection

    def _return(self, connection: AsyncConnection[Any]) -> Awaitable[None]:
        return connection.close()


class _SingleConnection(Lent):
    """The guard's only connection, for one operation after the other."""

    def __init__(self, connection: Connection[Any], turn: Turn, seconds: float) -> None:
        super().__init__(seconds)
        self._only = connection
        self._turn = turn

    def _take(self) -> Connection[Any]:
        if not self._turn.take(self, self._seconds):
            raise _busy(self._seconds)
        _require_alive(self._only)
        return self._only

    def _return(self, connection: Connection[Any]) -> None:
        self._turn.pass_on(self)

    def _give_up(self) -> None:
        self._turn.pass_on(self)


class _AsyncSingleConnection(AsyncLent):
    """The guard's only connection, for one operation after the other."""

    _has_turn = False

    def __init__(self, connection: AsyncConnection[Any], turn: asyncio.Lock, seconds: float) -> None:
        super().__init__(seconds)
        self._only = connection
        self._turn = turn

    async def _take(self) -> AsyncConnection[Any]:
        if self._turn.locked():
            try:
                async with asyncio.timeout(self._seconds):  # wait_for could swallow a cancellation as it returns
                    await self._turn.acquire()
                    self._has_turn = True
            except TimeoutError:
                raise _busy(self._seconds) from None
        else:
            await self._turn.acquire()
            self._has_turn = True
        _require_alive(self._only)
        return self._only

    def _return(self, connection: AsyncConnection[Any]) -> None:
        self._give_up()

    def _give_up(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._turn.release()


class Turn:
    """The right to use the guard's only connection. One operation has it at a time.

    It is not a lock that an interruption could leave taken. It notes which operation has it, so it is free again when
    that operation passes it on, and also when nothing refers to that operation any more.
    """

    _CHECK_SECONDS = 0.05
    """Seconds after which a waiter checks whether the operation that has the turn is gone."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._owner: weakref.ref[object] | None = None
        self._waiting: deque[threading.Lock] = deque()

    def take(self, operation: object, seconds: float) -> bool:
        """Wait for the turn at most so many seconds, and return whether ``operation`` has it."""
        if self._taken(operation, None):
            return True
        deadline = time.monotonic() + seconds
        called = threading.Lock()
        called.acquire()
        while (left := deadline - time.monotonic()) > 0:
            if self._taken(operation, called):
                return True
            called.acquire(timeout=min(left, self._CHECK_SECONDS))
        return self._taken(operation, None)

    def pass_on(self, operation: object) -> None:
        """Pass the turn on, if ``operation`` has it."""
        with self._mutex:
            if self._owner is None or self._owner() is not operation:
                return
            self._owner = None
            called, self._waiting = self._waiting, deque()
        for each in called:
            each.release()

    def _taken(self, operation: object, called: threading.Lock | None) -> bool:
        with self._mutex:
            if self._owner is None or self._owner() is None:
                self._owner = weakref.ref(operation)
                return True
            if called is not None and called not in self._waiting:
                self._waiting.append(called)
            return False


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

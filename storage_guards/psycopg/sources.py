"""Sources of a psycopg guard's connections: a pool, one connection, or a function or string that makes them."""

from __future__ import annotations

import asyncio
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fencing.kernel import process
from fencing.kernel.effects import background, require_asyncio
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.opening import NotOpenYet, Opener, Opening
from fencing.kernel.waking import AsyncTurns, Turns, Wake
from storage_guards.bounds import LEAST_CONNECT_SECONDS
from storage_guards.psycopg.wire import hang_up, is_idle

ENDS_THE_BLOCK = ("commit", "rollback", "close")
"""The methods that a guarded block refuses, by attributes of the connection."""

_ADDRESS = ("host", "hostaddr", "port", "dbname", "user")
"""The parts of a connection string that say where it leads."""

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

    def putconn(self, conn: Any) -> Coroutine[Any, Any, None]:
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
    _is_returning = False
    """The connection may be another operation's by now."""

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
        if not self._is_returning and self._state is not None and self._state.has_changed(connection):
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
    _is_returning = False
    _giving_back: asyncio.Future[None] | None = None

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aenter__(self) -> AsyncConnection[Any]:
        require_asyncio()
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
        if self._giving_back is None or _has_failed(self._giving_back):
            if not self._is_returning and self._state is not None and self._state.has_changed(connection):
                self._state.restore(connection)
            self._giving_back = self._return(connection)
        if self._giving_back is not None:
            await _finish_despite_cancellation(self._giving_back)
        self._connection = None

    async def recover(self) -> None:
        """Give the connection back if an interruption has prevented that."""
        with suppress(ValueError, psycopg.Error):  # a pool has it already
            await self.give_back()

    @abstractmethod
    async def _take(self) -> AsyncConnection[Any]:
        """Return a connection, within the bound."""

    @abstractmethod
    def _return(self, connection: AsyncConnection[Any]) -> asyncio.Future[None] | None:
        """Begin to give the connection back. It goes on by itself."""

    def _give_up(self) -> None:  # noqa: B027 - most need nothing
        """End what an interrupted ``_take`` has left."""


B = TypeVar("B")

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
        return _OfThisProcess(checked, partial(_SingleConnection, checked, Turns()))
    if hasattr(checked, "getconn"):
        if not _has_check(checked):
            return _OfThisProcess(checked, partial(_PooledConnection, checked))
        opener: Opener[Any] = Opener(
            "the pool's server",
            lambda opening: checked.getconn(timeout=opening.left),
            checked.putconn,
            shares=False,
            hangs="in the check of the pool, ",
        )
        return _OfThisProcess(checked, partial(_CheckedConnection, checked, opener))

    def connect(opening: Opening[Connection[Any]]) -> Connection[Any]:
        if isinstance(checked, str):
            return Connection.connect(checked, **_connect_timeout(checked, opening.left))
        made: Connection[Any] = checked()
        return made

    return partial(_NewConnection, Opener(address_of(checked), connect, _close, shares=False))


def async_connection_source(source: AsyncSource) -> AsyncBorrow:
    """Return a function that borrows a connection of ``source``, as :func:`connection_source` does."""
    checked = _check_source(source, asynchronous=True)
    if isinstance(checked, AsyncConnection):
        return _OfThisProcess(checked, partial(_AsyncSingleConnection, checked, AsyncTurns()))
    if isinstance(checked, str):
        return partial(
            _AsyncNewConnection,
            lambda seconds: AsyncConnection.connect(checked, **_connect_timeout(checked, seconds)),
        )
    if hasattr(checked, "getconn"):
        kind = _AsyncCheckedConnection if _has_check(checked) else _AsyncPooledConnection
        return _OfThisProcess(checked, partial(kind, checked))
    return partial(_AsyncNewConnection, lambda _: checked())


class _OfThisProcess(Generic[B]):
    """What borrows connections of a user's pool, or the user's connection, and refuses those of the parent process.

    psycopg's pools do not survive a fork: https://www.psycopg.org/psycopg3/docs/advanced/pool.html
    """

    def __init__(self, source: Any, borrow: Callable[[float], B]) -> None:
        self._source, self._borrow = source, borrow
        self._is_inherited = False
        process.after_fork(self._in_child)

    def _in_child(self) -> None:
        self._is_inherited = getattr(self._source, "closed", True) is False  # a pool of another class may know forks

    def __call__(self, seconds: float) -> B:
        process.pid()  # it notices a fork
        if self._is_inherited:
            raise GuardNotEnforceable(
                f"the {type(self._source).__name__} was opened before this process was forked, and the parent uses its "
                "connections; nothing was written. Give the guard a connection string, or a pool that is made with "
                "open=False and first opened in each process"
            )
        return self._borrow(seconds)


class _PooledConnection(Lent):
    def __init__(self, pool: Any, seconds: float) -> None:
        super().__init__(seconds)
        self._pool = pool

    def _take(self) -> Connection[Any]:
        connection: Connection[Any] = self._pool.getconn(timeout=self._seconds)
        return connection

    def _return(self, connection: Connection[Any]) -> None:
        if self._is_returning and _must_not_return(connection):
            return
        self._is_returning = True
        self._pool.putconn(connection)


class _CheckedConnection(_PooledConnection):
    """A connection of a pool that first tries each out. A helper thread waits: the pool's time-out does not count
    there."""

    def __init__(self, pool: Any, opener: Opener[Any], seconds: float) -> None:
        super().__init__(pool, max(seconds, LEAST_CONNECT_SECONDS))
        self._opener = opener

    def _take(self) -> Connection[Any]:
        try:
            connection: Connection[Any] = self._opener.open(self._seconds, self._seconds)
        except NotOpenYet as error:
            raise _no_connection(self._seconds, f"the pool or its check gave none; {error}") from error
        return connection


def _has_check(pool: Any) -> bool:
    """Return whether a pool tries its connections out before it lends them."""
    return getattr(pool, "_check", None) is not None


class _AsyncPooledConnection(AsyncLent):
    def __init__(self, pool: Any, seconds: float) -> None:
        super().__init__(seconds)
        self._pool: AsyncPool = pool

    async def _take(self) -> AsyncConnection[Any]:
        connection: AsyncConnection[Any] = await self._pool.getconn(timeout=self._seconds)
        return connection

    def _return(self, connection: AsyncConnection[Any]) -> asyncio.Future[None] | None:
        if self._is_returning and _must_not_return(connection):
            return None
        self._is_returning = True
        return asyncio.ensure_future(self._pool.putconn(connection))


class _AsyncCheckedConnection(_AsyncPooledConnection):
    """An async :class:`_CheckedConnection`. A task waits: psycopg first asks the server when one is cancelled."""

    def __init__(self, pool: Any, seconds: float) -> None:
        super().__init__(pool, max(seconds, LEAST_CONNECT_SECONDS))

    async def _take(self) -> AsyncConnection[Any]:
        taking = asyncio.ensure_future(self._pool.getconn(timeout=self._seconds))
        try:
            await asyncio.wait([taking], timeout=self._seconds)
            if not taking.done():
                raise _no_connection(self._seconds, "the pool or its check gave none")
            return taking.result()
        except BaseException:
            taking.add_done_callback(self._give_late)
            taking.cancel()
            raise

    def _give_late(self, taking: asyncio.Future[AsyncConnection[Any]]) -> None:
        if not taking.cancelled() and taking.exception() is None:
            background(asyncio.get_running_loop(), self._pool.putconn(taking.result()), "fencing-late-connection")


def _must_not_return(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Return whether a pool has got the connection back, although an interruption has ended ``putconn``.

    Otherwise close it. If the pool has it all the same, perhaps in a queue, it must not be lent to two operations.
    """
    if getattr(connection, "_pool", connection) is None:
        return True
    hang_up(connection)
    return False


class _NewConnection(Lent):
    """A connection for one operation. A helper thread opens it: libpq has no bound for resolving a name, a function of
    the user's has none at all."""

    def __init__(self, opener: Opener[Connection[Any]], seconds: float) -> None:
        super().__init__(max(seconds, LEAST_CONNECT_SECONDS))
        self._opener = opener

    def _take(self) -> Connection[Any]:
        try:
            connection = self._opener.open(self._seconds, self._seconds)
        except NotOpenYet as error:
            raise _no_connection(self._seconds, str(error)) from error
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
        super().__init__(max(seconds, LEAST_CONNECT_SECONDS))
        self._connect = connect

    async def _take(self) -> AsyncConnection[Any]:
        bound = asyncio.timeout(self._seconds)
        try:
            async with bound:
                made = self._connect(self._seconds)
                connection = await made if inspect.isawaitable(made) else made
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise _no_connection(self._seconds) from error
        if not isinstance(connection, AsyncConnection):
            raise TypeError(
                f"the function that connects returned a {type(connection).__name__}; let it return an AsyncConnection"
            )
        return connection

    def _return(self, connection: AsyncConnection[Any]) -> asyncio.Future[None]:
        return asyncio.ensure_future(connection.close())


def _close(connection: Connection[Any]) -> None:
    """Close a connection that came too late. It may be anything that the user's function has returned."""
    with suppress(Exception):
        connection.close()


def _no_connection(seconds: float, reason: str = "") -> psycopg.OperationalError:
    return psycopg.errors.ConnectionTimeout(f"no connection within {seconds:.3g} s{reason and f': {reason}'}")


class _InTurn:
    """The guard's only connection, for one operation after the other.

    A pool of one would not do. What it lends may be in the frames of an interruption's traceback. Where one connection
    is all there is, a retry would wait for it as long as that exception lives.
    """

    _turn: Any

    def __init__(self, connection: Any, turns: Any, seconds: float) -> None:
        self._only, self._turns, self._seconds = connection, turns, seconds

    def _return(self, connection: Any) -> None:
        self._give_up()

    def _give_up(self) -> None:
        self._turns.queue.pop(self._turn, None)
        self._turns.wake_first()

    def _checked(self, is_mine: bool) -> Any:
        if not is_mine:
            raise GuardUnavailable(
                f"the guard's only connection was in use for {self._seconds:.3g} s; nothing was written, retry, or "
                "give it a pool"
            )
        if self._only.closed:
            raise GuardUnavailable(
                "the guard's only connection is closed; nothing was written. Make a new guard, or give it a pool, "
                "which replaces closed connections"
            )
        return self._only

    def __del__(self) -> None:
        try:
            self._turns.queue.pop(self._turn, None)  # every method was interrupted, too
        except AttributeError:  # __init__ was interrupted
            pass


class _SingleConnection(_InTurn, Lent):
    def __init__(self, connection: Connection[Any], turns: Turns, seconds: float) -> None:
        super().__init__(connection, turns, seconds)
        self._turn = Wake()

    def _take(self) -> Connection[Any]:
        connection: Connection[Any] = self._checked(self._turns.take(self._turn, self._seconds))
        return connection


class _AsyncSingleConnection(_InTurn, AsyncLent):
    def __init__(self, connection: AsyncConnection[Any], turns: AsyncTurns, seconds: float) -> None:
        super().__init__(connection, turns, seconds)
        self._turn = asyncio.Event()

    async def _take(self) -> AsyncConnection[Any]:
        connection: AsyncConnection[Any] = self._checked(await self._turns.take(self._turn, self._seconds))
        return connection


def address_of(source: object) -> str:
    """Return the address that a source connects to, without secrets; or what the source is."""
    conninfo = source if isinstance(source, str) else getattr(source, "conninfo", None)
    if isinstance(source, (Connection, AsyncConnection)):
        conninfo = source.info.dsn  # without the password
    if not isinstance(conninfo, str):
        return getattr(source, "__qualname__", type(source).__name__)
    parts = conninfo_to_dict(conninfo)
    return make_conninfo("", **{name: parts[name] for name in _ADDRESS if parts.get(name) is not None})


def django_hint(connection: object) -> str:
    """Return what to do with Django's connection; empty: it is none."""
    if type(connection).__module__.partition(".")[0] != "django":
        return ""
    return (
        "; with Django, use fencing.contrib.django.DjangoGuard. Or give the guard a connection string, and call "
        "guard.advance(connection.connection, lease) first in transaction.atomic()"
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
            f"{django_hint(source)}"
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


def _has_failed(task: asyncio.Future[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _finish_despite_cancellation(task: asyncio.Future[None]) -> None:
    """Give a connection back even on a cancellation; otherwise its pool would lose it. It waits for no server."""
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=1.0)
        raise

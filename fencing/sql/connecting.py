"""How an engine's driver connects for this thread: within bounds, so that it can be broken off, or not at all.

It is a hook of SQLAlchemy's. It does nothing where the engine's owner connects, and the owner's own hooks come first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import Engine, event

from fencing.kernel import process
from fencing.sql.dialects import connect_watched

Watched = Callable[[Any], object]
"""Is told the driver's connection, perhaps before it is open."""
Tries = Callable[[Any, Callable[[], bool]], bool]
"""Tries out a connection of the driver's, by the function, and returns whether it is alive."""

_hooked: weakref.WeakSet[Any] = weakref.WeakSet()

_CREATOR = "sqlalchemy.engine.create"
"""Where an engine gets its function that connects, unless the user gave one."""


class MustConnect(BaseException):
    """A thread that must not connect would have to. Hooks of the user's, which may ask the engine, do not catch it."""


class _Here:
    """What this thread may do.

    Attributes:
        forbidden: the dialect whose engine must not connect.
        tries: tries out what lies idle in the pool of that engine, within a bound; None: without one.
        dialect: whose engine connects within bounds. Hooks of the user's may ask another.
        bounds: of connecting, as arguments of the driver's, in seconds; None: the engine's own.
        watched: for what it tries out, and opens, until it has a connection. A hook may ask the same engine then.
    """

    forbidden: Any = None
    tries: Tries | None = None
    dialect: Any = None
    bounds: Mapping[str, float] | None = None
    watched: Watched | None = None


here = process.OfThisThread(_Here)


def hook(engine: Engine) -> None:
    """Have the engine ask here before it connects."""
    dialect: Any = engine.dialect  # which engines with other options, and copies, have in common
    listen_once(dialect, "do_connect", _connect)
    # No event comes before a pool tries a connection out.
    if getattr(dialect.do_ping, "func", None) is not _ping:
        dialect.do_ping = partial(_ping, dialect, dialect.do_ping)


def listen_once(target: Any, name: str, function: Callable[..., object]) -> None:
    """Have a function called at an event, unless it is called there already.

    ``event.contains`` knows a target by its address. An engine that is disposed of gets a new pool with the same
    hooks. Another pool, at the address of the old one, would seem to have them (seen in SQLAlchemy 2.1).
    """
    if function not in list(getattr(target.dispatch, name)):
        event.listen(target, name, function)


def is_hooked(engine: Engine) -> bool:
    """Return whether the engine asks here before it connects.

    It does not where it has a function that connects (``creator``, or an earlier hook), or a pool of the user's.
    SQLAlchemy's own function is known by an attribute of the pool (seen in 2.0 and 2.1). Without that, an engine is
    known once it has asked.
    """
    own = getattr(engine.pool, "_creator", None)
    asked_first = next(iter(engine.dialect.dispatch.do_connect), None) is _connect
    return (asked_first and getattr(own, "__module__", "") == _CREATOR) or engine.dialect in _hooked


@contextmanager
def connecting(engine: Engine, bounds: Mapping[str, float] | None, watched: Watched | None) -> Iterator[None]:
    """Let this thread connect within bounds during the block."""
    mine = here()
    before = mine.dialect, mine.bounds, mine.watched
    mine.dialect, mine.bounds, mine.watched = engine.dialect, bounds, watched
    try:
        yield
    finally:
        mine.dialect, mine.bounds, mine.watched = before


def _ping(dialect: Any, ping: Callable[[Any], bool], dbapi_connection: Any) -> bool:
    """Try a connection of the pool out. Another thread can break it off meanwhile."""
    mine = here()
    if mine.forbidden is dialect and mine.tries is not None:
        return mine.tries(dialect.get_driver_connection(dbapi_connection), partial(ping, dbapi_connection))
    if mine.dialect is not dialect or mine.watched is None:
        return ping(dbapi_connection)
    mine.watched(dialect.get_driver_connection(dbapi_connection))
    is_alive = ping(dbapi_connection)
    if is_alive:
        mine.watched = None  # it is the one, and what a hook may try out is not
    return is_alive


def _connect(dialect: Any, record: Any, args: Any, options: dict[str, Any]) -> Any:
    """Connect within the bounds of this thread. None: connect as usual."""
    mine = here()
    if mine.forbidden is dialect:
        raise MustConnect
    _hooked.add(dialect)
    bounds = mine.bounds
    if not bounds or mine.dialect is not dialect:
        return None
    watched, mine.watched = mine.watched, None
    functions = list(dialect.dispatch.do_connect)
    later = functions[functions.index(_connect) + 1 :] if _connect in functions else []
    for function in later:  # the caller of this asks no other hook once it has a connection
        made = function(dialect, record, args, options)
        if made is not None:
            return made
    shorter = {name: min(float(options.get(name) or seconds), seconds) for name, seconds in bounds.items()}
    return connect_watched(dialect, args, {**options, **shorter}, watched)

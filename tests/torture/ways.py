"""The ways to read, change and write a counter through a guard: each has a context, or none, and a body in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Text, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from storage_guards import fenced
from tests.torture.steps import Steps
from tests.torture.turn import Turn

__all__ = ["FILES", "HTTP", "IN_PLACE", "OBJECTS", "PSYCOPG", "READ", "REDIS", "SQLALCHEMY", "WRITE", "Way", "parsed"]

READ = "SELECT value, last FROM counters WHERE name = :name"
WRITE = "UPDATE counters SET value = :value, last = :last WHERE name = :name"


class Base(DeclarativeBase):
    pass


class Counter(Base):
    __tablename__ = "counters"
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)
    last: Mapped[str] = mapped_column(Text)


class Way(NamedTuple):
    """One way.

    Args:
        name: for the history.
        body: what is done in the context, with what that gives; without a context, with None.
        context: opens it.
        runs: whether the body is a function that ``guard.run`` is given.
        own_commit: whether it is not the guard that commits, so that ``landed`` cannot be asked.
    """

    name: str
    body: Callable[[Turn, Any], Steps[None]]
    context: Callable[[Turn], Any] | None = None
    runs: bool = False
    own_commit: bool = False


# SQLAlchemy


def _change(turn: Turn, connection: Any) -> Steps[None]:
    reading = turn.begin_read()
    row = (yield connection.execute(text(READ), {"name": turn.counter})).one()
    values = turn.seen(reading, row.value, row.last)
    yield turn.think()
    yield connection.execute(text(WRITE), turn.begin_write(values))


def _change_object(turn: Turn, session: Any) -> Steps[None]:
    reading = turn.begin_read()
    counter = yield session.get(Counter, turn.counter)
    seen = turn.seen(reading, counter.value, counter.last)
    yield turn.think()
    values = turn.begin_write(seen)
    counter.value, counter.last = values["value"], values["last"]


def _advance(turn: Turn, connection: Any) -> Steps[None]:
    yield turn.guard.advance(connection, turn.lease, once=turn.once)
    yield from _change(turn, connection)


def _advance_session(turn: Turn, session: Any) -> Steps[None]:
    yield turn.guard.advance(session, turn.lease, once=turn.once)
    yield from _change_object(turn, session)
    session.info[turn.counter] = yield session.get(Counter, turn.counter)  # or it would be collected, and read again


def _write(turn: Turn, _: None) -> Steps[None]:
    reading = turn.begin_read()
    connection = yield turn.kit.source.connect()
    try:
        row = (yield connection.execute(text(READ), {"name": turn.counter})).one()
    finally:
        yield connection.close()
    values = turn.seen(reading, row.value, row.last)
    yield turn.think()
    yield turn.guard.write(turn.lease, text(WRITE), turn.begin_write(values), once=turn.once)


SQLALCHEMY = (
    Way("begin", _change, lambda turn: turn.guard.begin(turn.lease, once=turn.once)),
    Way("begin with a claim", _change, lambda turn: turn.guard.begin(turn.lease, claim=True, once=turn.once)),
    Way("session", _change_object, lambda turn: turn.guard.session(turn.lease, once=turn.once)),
    Way("run", _change, runs=True),
    Way("write", _write),
    Way("advance", _advance, lambda turn: turn.kit.source.begin(), own_commit=True),
    Way("advance a session", _advance_session, lambda turn: turn.begin_session(), own_commit=True),
)


# psycopg

PSYCOPG_READ = READ.replace(":name", "%(name)s")
PSYCOPG_WRITE = "UPDATE counters SET value = %(value)s, last = %(last)s WHERE name = %(name)s"


def _psycopg_read(turn: Turn, connection: Any) -> Steps[dict[str, Any]]:
    reading = turn.begin_read()
    cursor = yield connection.execute(PSYCOPG_READ, {"name": turn.counter})
    value, last = yield cursor.fetchone()
    return turn.seen(reading, value, last)


def _psycopg_change(turn: Turn, connection: Any) -> Steps[None]:
    values = yield from _psycopg_read(turn, connection)
    yield turn.think()
    yield connection.execute(PSYCOPG_WRITE, turn.begin_write(values))


def _psycopg_advance(turn: Turn, connection: Any) -> Steps[None]:
    yield turn.guard.advance(connection, turn.lease, once=turn.once)
    yield from _psycopg_change(turn, connection)


def _psycopg_write(turn: Turn, _: None) -> Steps[None]:
    connection = yield turn.kit.source.getconn()
    try:
        values = yield from _psycopg_read(turn, connection)
        yield connection.rollback()
    finally:
        yield turn.kit.source.putconn(connection)
    yield turn.think()
    yield turn.guard.write(turn.lease, PSYCOPG_WRITE, turn.begin_write(values), once=turn.once)


PSYCOPG = (
    Way("psycopg begin", _psycopg_change, lambda turn: turn.guard.begin(turn.lease, once=turn.once)),
    Way(
        "psycopg begin with a claim",
        _psycopg_change,
        lambda turn: turn.guard.begin(turn.lease, claim=True, once=turn.once),
    ),
    Way("psycopg write", _psycopg_write),
    Way("psycopg advance", _psycopg_advance, lambda turn: turn.kit.source.connection(), own_commit=True),
)


# Objects and files: their bytes are the value, a blank and the id of the write


def parsed(body: bytes | None) -> tuple[int, str]:
    """Return the value and the last write's id; None is a counter that was never written."""
    value, _, last = (b"0 " if body is None else body).decode().partition(" ")
    return int(value), last


def _bytes_of(values: dict[str, Any]) -> bytes:
    return f"{values['value']} {values['last']}".encode()


def _publish(turn: Turn, _: None) -> Steps[None]:
    reading = turn.begin_read()
    current = yield turn.guard.read(turn.counter)
    body = None if current is None else (yield current.read("total"))
    seen = turn.seen(reading, *parsed(body))
    yield turn.think()
    values = turn.begin_write(seen)
    replacing = {"replacing": current} if turn.chance.random() < 0.5 else {}
    yield turn.guard.publish(turn.lease, {"total": _bytes_of(values)}, once=turn.once, **replacing)


def _write_in_place(turn: Turn, _: None) -> Steps[None]:
    reading = turn.begin_read()
    stored = yield turn.guard.get(turn.counter)
    seen = turn.seen(reading, *parsed(None if stored is None else bytes(stored.data)))
    yield turn.think()
    values = turn.begin_write(seen)
    yield turn.guard.write(turn.lease, turn.counter, _bytes_of(values), replacing=stored)


def _write_file(turn: Turn, _: None) -> Steps[None]:
    reading = turn.begin_read()
    seen = turn.seen(reading, *parsed((yield turn.guard.read(turn.counter))))
    yield turn.think()
    values = turn.begin_write(seen)
    yield turn.guard.write(turn.lease, _bytes_of(values))


def _change_file(turn: Turn, transaction: Any) -> Steps[None]:
    seen = turn.seen(turn.begin_read(), *parsed(transaction.data))
    yield turn.think()
    values = turn.begin_write(seen)
    transaction.data = _bytes_of(values)


OBJECTS = (Way("publish", _publish),)
IN_PLACE = (Way("write in place", _write_in_place),)
FILES = (
    Way("write a file", _write_file),
    Way("begin on a file", _change_file, lambda turn: turn.guard.begin(turn.lease)),
)


# Redis: a hash, and a list of all writes


def _commands(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    name = values["name"]
    change = ("HSET", f"{name}:counter", "value", values["value"], "last", values["last"])
    return [change, ("RPUSH", f"{name}:effects", values["last"])]


def _seen_in_redis(turn: Turn, reading: int, fields: list[Any]) -> dict[str, Any]:
    value, last = (None if each is None else each.decode() for each in fields)
    return turn.seen(reading, int(value or 0), last or "")


def _write_redis(turn: Turn, _: None) -> Steps[None]:
    reading = turn.begin_read()
    fields = yield turn.kit.source.hmget(f"{turn.counter}:counter", "value", "last")
    seen = _seen_in_redis(turn, reading, fields)
    yield turn.think()
    yield turn.guard.write(turn.lease, *_commands(turn.begin_write(seen)), once=turn.once)


def _change_redis(turn: Turn, transaction: Any) -> Steps[None]:
    reading = turn.begin_read()
    fields = yield transaction.read("HMGET", f"{turn.counter}:counter", "value", "last")
    seen = _seen_in_redis(turn, reading, fields)
    yield turn.think()
    for command in _commands(turn.begin_write(seen)):
        transaction.write(*command)


REDIS = (
    Way("write to Redis", _write_redis),
    Way("begin on Redis", _change_redis, lambda turn: turn.guard.begin(turn.lease, once=turn.once)),
    Way(
        "begin on Redis with a claim",
        _change_redis,
        lambda turn: turn.guard.begin(turn.lease, claim=True, once=turn.once),
    ),
)


# A service over HTTP

UNAVAILABLE = 503
"""The service says that nothing was written."""


def _put(turn: Turn, _: None) -> Steps[None]:
    client, where = turn.kit.source, {"url": "/counter", "params": {"name": turn.counter}}
    reading = turn.begin_read()
    answer = (yield client.get(**where)).raise_for_status()
    seen = turn.seen(reading, *parsed(answer.content))
    yield turn.think()
    body = _bytes_of(turn.begin_write(seen))
    turn.is_sent = True  # from here on, whatever is no answer of the service leaves the outcome unknown
    with fenced(client, turn.lease):
        answer = yield client.put(content=body, **where)
    if answer.status_code == UNAVAILABLE:
        turn.is_sent = False
    answer.raise_for_status()


HTTP = (Way("put over HTTP", _put, own_commit=True),)

"""A SQL database: of locks, of guards, or of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from sqlalchemy import URL, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fencing.cli.doctor import mysql, postgresql, sqlite
from fencing.cli.doctor.findings import SECONDS, Finding, NotExamined
from fencing.cli.doctor.sql import MARKS, is_usable, tables, verified
from fencing.locks.urls import redacted, scheme_of
from fencing.sql.dialects import dialect_of
from fencing.sql.sessions import SESSIONS
from fencing.sql.urls import engine_of
from storage_guards.sqlalchemy.waits import waits

CONNECTION_SECONDS = 10.0
"""How long all questions of one connection may take."""


def examine(url: str) -> Iterator[Finding]:
    """Yield the findings about the database of a URL.

    Raises:
        NotExamined: it does not answer, or refuses us.
        ValueError: the URL is wrong.
    """
    scheme = scheme_of(url)
    kind = scheme.partition("+")[0]
    plain = kind + url[len(scheme) :]  # an asyncio driver is of no use here
    if kind == "sqlite":
        yield from sqlite.examine(plain)
        return
    checked = engine_of(plain, asynchronous=False).url
    engine = engine_of(_bounded(checked, kind), asynchronous=False)
    try:
        with bounded_waits(engine), engine.connect() as connection:
            server = postgresql if kind in ("postgresql", "postgres") else mysql
            facts = yield from server.examine(connection)
    except SQLAlchemyError as error:
        reason = error.orig if isinstance(error, DBAPIError) else error
        raise NotExamined(f"does not answer, or refuses us: {redacted(str(reason))}") from error
    finally:
        engine.dispose()
    yield from tables(facts)
    if is_usable(facts[MARKS]):
        yield from verified(plain)


@contextmanager
def bounded_waits(engine: Engine) -> Iterator[None]:
    """Shut each connection that the block opens when it takes too long: a server that stands still ends no request."""
    opened: list[object] = []

    @event.listens_for(engine, "do_connect")  # SQLAlchemy itself asks something before its event "connect"
    def bound(dialect: Any, _: Any, args: Any, options: Any) -> Any:
        connection = dialect.connect(*args, **options)
        opened.append(connection)
        waits.begin(connection, CONNECTION_SECONDS, partial(SESSIONS[type(dialect_of(engine))].break_off, connection))
        return connection

    try:
        yield
    finally:
        for each in opened:
            waits.pop(each, None)
        waits.wait_until_shut()


def _bounded(url: URL, kind: str) -> str:
    """Return the URL with limits of our own. ``verify`` gets it without them, and says what is missing."""
    limits = ("connect_timeout",) if kind in ("postgresql", "postgres") else ("connect_timeout", "read_timeout")
    missing = {name: str(SECONDS) for name in limits if name not in url.query}
    return url.update_query_dict(missing).render_as_string(hide_password=False)

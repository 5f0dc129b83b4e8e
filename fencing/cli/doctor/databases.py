"""A SQL database: of locks, of guards, or of both."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fencing.cli.doctor import mysql, postgresql, sqlite
from fencing.cli.doctor.findings import SECONDS, Finding, NotExamined
from fencing.cli.doctor.sql import MARKS, is_usable, tables, verified
from fencing.locks.urls import redacted, scheme_of
from fencing.sql.urls import engine_of


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
    engine = engine_of(_bounded(plain, kind), asynchronous=False)
    try:
        with engine.connect() as connection:
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


def _bounded(url: str, kind: str) -> str:
    """Return the URL with limits of our own. ``verify`` gets it without them, and says what is missing."""
    limits = ("connect_timeout",) if kind in ("postgresql", "postgres") else ("connect_timeout", "read_timeout")
    parsed = make_url(url)
    missing = {name: str(SECONDS) for name in limits if name not in parsed.query}
    return parsed.update_query_dict(missing).render_as_string(hide_password=False)

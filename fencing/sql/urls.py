"""The URLs of SQL databases, and the engines that they name: those of SQLAlchemy, with a driver by default."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing.locks.urls import redacted, scheme_of

_DRIVERS = {
    "postgresql": ("postgresql+psycopg", "postgresql+psycopg"),
    "postgres": ("postgresql+psycopg", "postgresql+psycopg"),
    "mysql": ("mysql+pymysql", "mysql+aiomysql"),
    "mariadb": ("mariadb+pymysql", "mariadb+aiomysql"),
    "sqlite": ("sqlite+pysqlite", "sqlite+aiosqlite"),
}


def connect(url: str, coordinator: Any, options: dict[str, Any], *, asynchronous: bool) -> Any:
    """Return a coordinator of this class for a URL: see :func:`engine_of`."""
    return coordinator(engine_of(url, asynchronous=asynchronous), **options)


def engine_of(url: str, *, asynchronous: bool, **options: Any) -> Any:
    """Return the engine of a URL.

    Args:
        url: as SQLAlchemy has it. A scheme without a driver gets psycopg, PyMySQL or aiomysql, sqlite3 or aiosqlite.
        asynchronous: whether it is an AsyncEngine.
        options: of the engine.

    Raises:
        TypeError, ValueError: the URL is wrong.
        ModuleNotFoundError: the driver is not installed.
    """
    scheme = scheme_of(url)
    try:
        parsed = _parsed(url)
        named = parsed.set(drivername=_DRIVERS[scheme][asynchronous] if scheme in _DRIVERS else scheme)
        if named.get_backend_name() != "sqlite" and not named.database:
            raise ValueError(f"{redacted(url)!r} names no database: {scheme}://user@host/database")
        return create_async_engine(named, **options) if asynchronous else create_engine(named, **options)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ValueError(_no_url(url)) from error


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the second may have a part of the password
        raise ValueError(_no_url(url)) from None
    if "@" in (parsed.host or ""):  # one of the password
        raise ValueError(f"{_no_url(url)}; percent-encode what is special in its parts")
    return parsed


def _no_url(url: str) -> str:
    return f"{redacted(url)!r} is no URL of SQLAlchemy such as 'postgresql://user@host/database'"

"""The URLs of SQL databases, and the engines that they name: those of SQLAlchemy, with a driver by default."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Collection
from typing import Any

from sqlalchemy import URL, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing.kernel.extras import raise_missing
from fencing.locks.urls import ENCODE, check_seconds, redacted, refuse_option, scheme_of

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
        _check_side(scheme, named, asynchronous)
        _check_options(scheme, named)
        return create_async_engine(named, **options) if asynchronous else create_engine(named, **options)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ValueError(_no_url(url)) from error
    except ModuleNotFoundError as error:
        raise_missing(f"{scheme}://", error)


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # the second may have a part of the password
        raise ValueError(_no_url(url)) from None
    place = re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]
    if "@" in (parsed.host or "") or (parsed.password and "@" not in place):  # psql would read another host
        raise ValueError(f"{_no_url(url)}; {ENCODE}")
    return parsed


def _no_url(url: str) -> str:
    return f"{redacted(url)!r} is no URL of SQLAlchemy such as 'postgresql://user@host/database'"


def _check_side(scheme: str, url: URL, asynchronous: bool) -> None:
    """Raise ValueError if the driver is of the other side."""
    dialect = url.get_dialect()
    if asynchronous:
        dialect = dialect.get_async_dialect_cls(url)
    if dialect.is_async is not asynchronous:
        name, side = scheme.partition("+")[2], "threads" if asynchronous else "asyncio"
        other = "connect" if asynchronous else "connect_async"
        raise ValueError(
            f"{scheme}:// is a driver for {side}: leave '+{name}' out, or use fencing.{other} in a program"
        )


_TIMES = ("connect_timeout", "read_timeout", "write_timeout", "timeout")
_OBJECTS = ("self", "autocommit", "auth_plugin_map", "conv", "cursorclass", "defer_connect", "loop", "ssl")
_OF_SQLALCHEMY = ("ssl_capath", "ssl_cipher", "ssl_check_hostname")
_OF_SQLITE = ("uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements")


def _check_options(scheme: str, url: URL) -> None:
    """Raise ValueError for an option that the driver does not have, if we know the driver; or for a wrong time."""
    known = _known(url)
    for name, value in url.query.items():
        if known is not None and name not in known:
            refuse_option(scheme, name, known)
        if name in _TIMES and isinstance(value, str):
            check_seconds(scheme, name, value, whole=name != "timeout")


def _known(url: URL) -> Collection[str] | None:
    """Return the options that a URL of this driver may have. None: that is not known."""
    driver = url.get_driver_name()
    if not url.query:
        return None
    if driver == "psycopg":
        from psycopg import pq

        return [each.keyword.decode() for each in pq.Conninfo.get_defaults()]
    if driver in ("pymysql", "aiomysql"):
        parameters = inspect.signature(importlib.import_module(driver).Connection).parameters
        return [*(name for name in parameters if name not in _OBJECTS), *_OF_SQLALCHEMY]
    if url.get_backend_name() == "sqlite" and "uri" not in url.query:  # or else they are SQLite's own
        return _OF_SQLITE
    return None

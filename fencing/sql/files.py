"""The files of SQLite: whether those that a connection has open are still the ones at their paths.

After a restore by a rename, or a deletion, an open connection goes on in a file that nobody else finds. In WAL mode
SQLite does not notice that. An open file keeps its device and inode, so no other file gets them. They are read before
the connection is opened and kept with it. If the path has them later, the connection has that very file.
"""

from __future__ import annotations

import errno
import os
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DisconnectionError

from fencing.sql.connecting import listen_once
from fencing.sql.dialects import SQLite, dialect_of

Identity = tuple[int, int]

_OPENING, _OPENED = "fencing_opening", "fencing_opened"
"""What is kept with a connection: the path of its main file, as it was named, with the file's identity; and the paths
and identities of all its files."""


def follow(engine: Engine) -> None:
    """Note the files of the engine's connections. From then on the pool hands out no connection to a replaced file."""
    if isinstance(dialect_of(engine), SQLite):
        for target, name, hook in (  # an engine with other options has the same ones
            (engine.dialect, "do_connect", _before_opening),
            (engine.pool, "connect", _after_opening),
            (engine.pool, "checkout", _at_checkout),
        ):
            listen_once(target, name, hook)


def require_current(connection: Connection) -> None:
    """Raise OSError where a file of the connection is not the one at its path any more.

    A connection of an engine that is not followed is noted at its first call.
    """
    opened = connection.info.get(_OPENED)
    if opened is None:
        opened = connection.info[_OPENED] = _files_of(connection.connection.dbapi_connection, None)
    require_same(opened)


def require_same(opened: dict[str, Identity | None]) -> None:
    """Raise OSError where one of these paths has another file now, or none."""
    for path, identity in opened.items():
        if _identity(path) != identity:
            raise OSError(errno.ESTALE, "the file was replaced or deleted under an open connection", path)


def opened_by(connection: Connection) -> dict[str, Identity | None]:
    """Return the paths and files of a connection of an engine that is followed. It is empty for other databases."""
    opened: dict[str, Identity | None] = connection.info.get(_OPENED, {})
    return opened


def _before_opening(_: object, record: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    path = _named(args[0] if args else options.get("database"), options)
    record.info[_OPENING] = path, None if path is None else _identity(path)


def _after_opening(_: object, record: Any) -> None:
    record.info.setdefault(_OPENING, (None, None))  # an engine with creator= opens its connections itself


def _at_checkout(dbapi_connection: Any, record: Any, _: object) -> None:
    """Note the files of a new connection. Where a file of an old one was replaced, let the pool open another."""
    opened = record.info.get(_OPENED)
    if opened is not None:
        try:
            return require_same(opened)
        except OSError as error:
            raise DisconnectionError(str(error)) from error
    opened = _files_of(dbapi_connection, record.info.get(_OPENING))
    if opened and _OPENING not in record.info:
        raise DisconnectionError("it was opened before its file was followed")
    record.info[_OPENED] = opened
    return None


def _files_of(dbapi_connection: Any, opening: tuple[str | None, Identity | None] | None) -> dict[str, Identity | None]:
    """Return the connection's files with their paths: those that are attached, too. One in memory has no path."""
    cursor = dbapi_connection.cursor()
    cursor.execute("PRAGMA database_list")
    paths = {place: path for place, _, path in cursor.fetchall() if path}
    cursor.close()
    opened = {path: _identity(path) for path in paths.values()}
    if opening is not None and 0 in paths:
        path, identity = opening
        if path is not None and identity is not None:  # otherwise the file was made by this opening
            if os.path.realpath(path) == os.path.realpath(paths[0]):
                del opened[paths[0]]  # it has the same file, through a link perhaps
            opened[path] = identity
    return opened


def _named(name: Any, options: dict[str, Any]) -> str | None:
    """Return the path that the arguments of ``connect`` name; None: they name a database in memory."""
    path = os.fsdecode(name) if isinstance(name, (str, bytes, os.PathLike)) else ""
    if options.get("uri") and path.startswith("file:"):
        try:
            path = unquote(urlsplit(path).path)
        except ValueError:  # SQLite says what is wrong with it
            return None
    return None if path in ("", ":memory:") else os.path.abspath(path)


def _identity(path: str) -> Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino

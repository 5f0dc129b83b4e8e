"""SQLite, as the doctor sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

from sqlalchemy import make_url

from fencing.cli.doctor.findings import SECONDS, Finding, NotExamined
from fencing.cli.doctor.sql import MARKS, NEEDED, VERIFICATION, Tables, is_usable, tables, verified
from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.files.systems import check_file_system

SQLITE = "docs/guards/databases.md#sqlite"
ONE_MACHINE = "docs/coordinators/sql.md#sqlite-locks-for-the-processes-of-one-machine"


def examine(url: str) -> Iterator[Finding]:
    """Yield the findings about a file."""
    import sqlite3

    path = make_url(url).database or ":memory:"
    if path == ":memory:" or path.startswith("file:"):
        change = "name the file: sqlite:////var/lib/app/locks.db"
        yield Finding("unknown", "only a database in a file can be looked at", change=change, page=SQLITE)
        return
    if not os.path.exists(path):
        yield Finding(
            "wrong",
            f"there is no file {path}",
            "Locks make it at their first use; guards do not.",
            "correct the path: four slashes begin an absolute one; or make it:\nfencing create-tables URL",
            ONE_MACHINE,
        )
        return
    yield from file_system(path)
    with closing(sqlite3.connect(path, timeout=SECONDS)) as connection:
        try:
            connection.execute("PRAGMA query_only = ON")
            yield from journal(connection.execute("PRAGMA journal_mode").fetchone()[0])
            found: Tables = {name: {} for name in NEEDED}
            for name in NEEDED:
                columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
                if columns:
                    version = next((column[4] for column in columns if column[1] == "version"), None)
                    found[name] = {"schema": "main", "version": version, "lacks": []}
        except sqlite3.Error as error:
            raise NotExamined(f"cannot be read: {error}") from error
    if not os.access(path, os.W_OK) or not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK):
        yield Finding(
            "wrong",
            "this user may not write the file, or its folder",
            "SQLite writes a journal beside the file.",
            "run as the owner, or change the rights of both",
            SQLITE,
        )
    else:
        yield from tables(found)
        if is_usable(found[MARKS]):
            yield from verified(url)


def file_system(path: str) -> Iterator[Finding]:
    """Yield whether locks of a file can be relied on where it is."""
    try:
        check_file_system(path)
    except GuardNotEnforceable as error:
        yield Finding(
            "warning",
            str(error),
            "SQLite's locks are not reliable on a network's file systems.",
            "move the file to a local disk",
            ONE_MACHINE,
        )
    else:
        yield Finding("ok", "the file is on a local file system", page=ONE_MACHINE)


def journal(mode: str) -> Iterator[Finding]:
    """Yield the finding about the mode of the journal."""
    if mode == "wal":
        yield Finding("ok", "journal_mode is wal", page=SQLITE)
    elif mode in ("off", "memory"):
        yield Finding(
            "wrong",
            f"journal_mode is {mode}",
            "A crash may destroy the file.",
            "set it, in sqlite3:\nPRAGMA journal_mode = WAL",
            VERIFICATION,
        )
    else:
        yield Finding("ok", f"journal_mode is {mode}: readers wait for writers; wal lets them go on", page=SQLITE)

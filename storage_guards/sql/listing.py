"""The marks of a table, page by page, in the order of their names. No I/O; no driver is known here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from fencing.kernel.fence import Mark
from storage_guards.sql.plans import Ask, Plan
from storage_guards.sql.table import DatabaseName

PAGE = 1000
"""How many marks one request reads. It bounds the time of the request."""


@dataclass(frozen=True, slots=True)
class ListedMark:
    """One of the marks that a guard lists.

    Attributes:
        resource: the name of the lock.
        mark: the newest fence that was claimed for it.
        claimed_at: when that was, in whole seconds by the clock of the database, in UTC.
    """

    __module__ = "storage_guards"

    resource: str
    mark: Mark
    claimed_at: datetime


class Page(NamedTuple):
    """Some marks, and what to pass for the next page; None: this was the last one."""

    marks: list[ListedMark]
    after: str | None


class _Forms(NamedTuple):
    """How a database writes a name as hexadecimal digits, reads it, and writes a token, and a moment in seconds.

    The digits are the same in every character set of a connection, and no name is lost that is none of ours.
    """

    digits: str
    name: str
    token: str
    second: str


_FORMS: dict[DatabaseName, _Forms] = {
    "postgresql": _Forms(
        "encode(convert_to(resource, 'UTF8'), 'hex')",
        "convert_from(decode('{}', 'hex'), 'UTF8')",
        "token",
        "CAST(floor(extract(epoch FROM claimed_at)) AS bigint)",
    ),
    "sqlite": _Forms("hex(resource)", "CAST(x'{}' AS TEXT)", "token", "CAST(strftime('%s', claimed_at) AS INTEGER)"),
    "mysql": _Forms(
        "HEX(resource)",
        "UNHEX('{}')",
        "CONVERT(token USING utf8mb4)",
        "TIMESTAMPDIFF(SECOND, '1970-01-01 00:00:00', claimed_at)",
    ),
}


def page_on(database: DatabaseName, table: str, after: str) -> str:
    """Return the query for the marks behind a name, PAGE at most. It locks nothing.

    What has no token is no mark: the floor, or what a later version keeps of readers.

    Args:
        database: its kind.
        table: the full name of the mark table, as SQL.
        after: the name, as hexadecimal digits of its UTF-8. "": the first page.
    """
    forms = _FORMS[database]
    return (
        f"SELECT {forms.digits}, number, {forms.token}, seq, readers, {forms.second} FROM {table} "
        f"WHERE resource > {forms.name.format(after)} AND token <> '' ORDER BY resource LIMIT {PAGE}"
    )


def plan_page(query: str) -> Plan[Page]:
    """Read one page, in a transaction of its own."""
    [rows] = yield Ask([query], begins=True, ends="COMMIT")
    marks = [
        ListedMark(
            bytes.fromhex(digits).decode(errors="replace"),
            Mark(int(number), token, int(seq), int(readers)),
            datetime.fromtimestamp(int(second), UTC),
        )
        for digits, number, token, seq, readers, second in rows
    ]
    return Page(marks, rows[-1][0] if len(rows) == PAGE else None)

"""The admission rule and the mark table in PostgreSQL's SQL, and how values get into it. No I/O.

Several statements go to the server together, as one simple query, so values are literals. The two that run all the
time are prepared on each connection and executed by name: to parse and plan them takes longer than to run them.

Each verdict is one ``UPDATE … RETURNING`` (or the claim's upsert): it takes the mark's row lock, compares, and answers
in one step, and the lock is kept until the transaction ends. Only a refusal reads the mark again, to say why.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from psycopg import AsyncConnection, Connection
from psycopg.pq import Escaping

from fencing.errors import GuardNotEnforceable
from fencing.fence import MAX_NUMBER, Fence
from storage_guards.recent_writes import FLOOR, REMEMBERED_CHARACTERS, TABLE, new_id

__all__ = [
    "COMMIT",
    "LOCK_FLOOR",
    "PREPARE",
    "READ_FLOOR",
    "ROLLBACK",
    "AnyConnection",
    "begin",
    "check",
    "check_nested",
    "claim",
    "create",
    "first_claim",
    "limits",
    "literal",
    "lock_absence",
    "lock_mark",
    "make_floor",
    "read_mark",
    "values_of",
]

AnyConnection = Connection[Any] | AsyncConnection[Any]
Values = dict[str, str]

_CREATE_LOCK = 7_236_273_601
"""Arbitrary: the advisory lock under which the table is created, as IF NOT EXISTS fails where two race. The same for
every guard on PostgreSQL."""

_REMEMBER = f"substr({{write}}::text || ' ' || {TABLE}.recent_writes, 1, {REMEMBERED_CHARACTERS})"

# Qualified by the table's name, which the upsert needs; the UPDATE does not mind.
_RAISE = (
    "number = {number}, token = {token}, "
    f"seq = CASE WHEN {TABLE}.number = {{number}} THEN {TABLE}.seq ELSE 0 END + {{writes}}, "
    "xact = pg_current_xact_id(), "
    f"recent_writes = CASE WHEN {{writes}} = 0 THEN {TABLE}.recent_writes ELSE {_REMEMBER} END, "
    "claimed_at = CURRENT_TIMESTAMP"
)
_ADMITS = f"({TABLE}.number < {{number}} OR ({TABLE}.number = {{number}} AND {TABLE}.token = {{token}}))"
_REPLY = "RETURNING seq, recent_writes, xact::text"

_CLAIM = f"UPDATE {TABLE} SET {_RAISE} WHERE resource = {{resource}} AND {_ADMITS} {_REPLY}"
_FIRST_CLAIM = (
    f"INSERT INTO {TABLE} (resource, number, token, seq, recent_writes, xact) "
    "SELECT {resource}, {number}, {token}, {writes}, {write}::text || ' ' || floor.recent_writes, pg_current_xact_id() "
    f"FROM {TABLE} AS floor WHERE floor.resource = '{FLOOR}' AND floor.number < {{number}} "
    f"ON CONFLICT (resource) DO UPDATE SET {_RAISE} WHERE {_ADMITS} {_REPLY}"
)
_CHECK = (
    f"UPDATE {TABLE} SET xact = pg_current_xact_id(), seq = seq + 1, recent_writes = {_REMEMBER} "
    f"WHERE resource = {{resource}} AND number = {{number}} AND token = {{token}} {_REPLY}"
)
# In a savepoint, a row's xmin is the savepoint's own transaction id and not that of the whole transaction.
_IS_OUTERMOST = "xmin = pg_current_xact_id()::xid"
_READ_MARK = f"SELECT number, token, seq FROM {TABLE} WHERE resource = {{resource}}"
_LOCK_MARK = f"UPDATE {TABLE} SET seq = seq WHERE resource = {{resource}} RETURNING recent_writes"
_LOCK_ABSENCE = (
    f"INSERT INTO {TABLE} (resource, number, token, seq) VALUES ({{resource}}, {{number}}, {{token}}, 0) "
    "ON CONFLICT (resource) DO NOTHING RETURNING resource"
)

READ_FLOOR = f"SELECT number, recent_writes FROM {TABLE} WHERE resource = '{FLOOR}'"
LOCK_FLOOR = f"{READ_FLOOR} FOR SHARE"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"

_TABLE = f"""
    CREATE TABLE IF NOT EXISTS {TABLE} (
        resource TEXT COLLATE "C" NOT NULL,
        number BIGINT NOT NULL,
        token TEXT COLLATE "C" NOT NULL,
        seq BIGINT NOT NULL,
        recent_writes TEXT COLLATE "C" DEFAULT '' NOT NULL,
        claimed_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
        xact xid8,
        PRIMARY KEY (resource),
        CONSTRAINT fencing_marks_number CHECK (
            number BETWEEN 1 AND {MAX_NUMBER} OR (resource = '{FLOOR}' AND number BETWEEN 0 AND {MAX_NUMBER})
        ),
        CONSTRAINT fencing_marks_seq CHECK (seq >= 0)
    )
"""

_PLACES = {"resource": "$1", "number": "$2", "token": "$3", "write": "$4", "writes": "$5"}


def _named(kind: str, text: str, types: str) -> tuple[str, str]:
    """A name that no other text can have, and the PREPARE."""
    name = f"fencing_{kind}_{crc32(text.encode()):08x}"
    return name, f"PREPARE {name} ({types}) AS {text.format(**_PLACES)}"


_CHECK_NAME, _PREPARE_CHECK = _named("check", _CHECK, "text, bigint, text, text")
_CLAIM_NAME, _PREPARE_CLAIM = _named("claim", _CLAIM, "text, bigint, text, text, bigint")

PREPARE = (_PREPARE_CHECK, _PREPARE_CLAIM)
"""What a connection needs before ``check`` and ``claim`` with ``prepared=True``."""


def begin(connection: AnyConnection, *, read_committed: bool = False) -> str:
    """BEGIN as this connection is set. With ``read_committed`` a statement that has waited sees what it waited for."""
    level = connection.isolation_level
    parts = ["BEGIN"]
    if read_committed:
        parts.append("ISOLATION LEVEL READ COMMITTED")
    elif level is not None:
        parts.append(f"ISOLATION LEVEL {level.name.replace('_', ' ')}")
    if connection.read_only is not None:
        parts.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        parts.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(parts)


def limits(seconds: float, *, idle: bool = True) -> list[str]:
    """Bound what this transaction can wait for, and be waited for.

    Each statement, and so each wait for a lock; then a client that stands still between two statements, unless there
    is none of that (``idle``), and one that stands still while it is being sent rows, which the second does not notice.
    """
    limit = max(1, round(seconds * 1000))
    names = ("statement_timeout", "idle_in_transaction_session_timeout", "tcp_user_timeout")
    return [f"SET LOCAL {name} = {limit}" for name in (names if idle else names[:1])]


def values_of(connection: AnyConnection, fence: Fence, writes: int = 1) -> Values:
    """The literals of one claim or check, with a new random id for the write.

    Raises:
        GuardNotEnforceable: the connection's client encoding cannot say the resource's name.
    """
    return {
        "resource": literal(connection, fence.resource),
        "number": str(fence.number),
        "token": f"'{fence.token}'",
        "write": f"'{new_id()}'",
        "writes": str(writes),
    }


def check(values: Values, *, prepared: bool = False) -> str:
    """Admit a write: a row (seq, recent_writes, xact) if the fence is the mark's own."""
    if prepared:
        resource, number, token, write, _ = values.values()
        return f"EXECUTE {_CHECK_NAME} ({resource}, {number}, {token}, {write})"
    return _CHECK.format(**values)


def check_nested(values: Values) -> str:
    """As :func:`check`, with one more column: whether it was outside any savepoint."""
    return f"{_CHECK.format(**values)}, {_IS_OUTERMOST}"


def claim(values: Values, *, prepared: bool = False) -> str:
    """Raise a mark that exists: a row (seq, recent_writes, xact) if the rule admits the fence."""
    if prepared:
        return f"EXECUTE {_CLAIM_NAME} ({', '.join(values.values())})"
    return _CLAIM.format(**values)


def first_claim(values: Values) -> str:
    """As :func:`claim`, for a mark that may be absent. The floor was locked by the statement before."""
    return _FIRST_CLAIM.format(**values)


def read_mark(resource: str) -> str:
    """The mark of a resource (a literal) as it is; locks nothing, so nothing follows from it."""
    return _READ_MARK.format(resource=resource)


def lock_mark(values: Values) -> str:
    """Changes nothing, and waits for whoever has written the mark."""
    return _LOCK_MARK.format(**values)


def lock_absence(values: Values) -> str:
    """A mark that an open transaction is about to insert is not there yet: inserting it, too, waits for that. A row
    if there was no mark; to be rolled back."""
    return _LOCK_ABSENCE.format(**values)


def make_floor() -> str:
    """Makes the floor row where there is none, and with it the table's id."""
    return (
        f"INSERT INTO {TABLE} (resource, number, token, seq, recent_writes) VALUES ('{FLOOR}', 0, '', 0, '{new_id()}') "
        "ON CONFLICT (resource) DO NOTHING"
    )


def create() -> list[str]:
    """Create the table and its floor row where they are missing; two processes may do it at once."""
    return [f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})", _TABLE, make_floor()]


def literal(connection: AnyConnection, text: str) -> str:
    """The text as a literal of SQL, whatever is in it."""
    encoding = "ascii" if text.isascii() else connection.info.encoding
    try:
        return Escaping(connection.pgconn).escape_literal(text.encode(encoding)).decode(encoding)
    except UnicodeEncodeError as error:
        raise GuardNotEnforceable(
            f"the connection's client_encoding ({encoding}) cannot say the resource name {text!r}; set it to UTF8"
        ) from error

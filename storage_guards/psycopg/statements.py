"""The statements of ``sql/statements.py`` with their values, and the statements around them. No I/O.

Several statements go to the server together, as one simple query, so values are literals. The two frequent ones are
prepared on each connection and executed by name, because parsing and planning take longer than running. (Not on a
database that enforces: there they are calls of functions, whose plans the server keeps itself.)
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from psycopg import AsyncConnection, Connection
from psycopg.pq import Escaping

from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import MAX_NUMBER, Fence
from storage_guards.sql.outcome import FLOOR, TABLE, new_id
from storage_guards.sql.statements import CALLS, CREATE_LOCK, ENFORCED, JOINING, POSTGRESQL, Statements

AnyConnection = Connection[Any] | AsyncConnection[Any]
Values = dict[str, str]

COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
IS_ENFORCED = f"SELECT {ENFORCED}"

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
    """Return a name that no other text can have, and the PREPARE."""
    name = f"fencing_{kind}_{crc32(text.encode()):08x}"
    return name, f"PREPARE {name} ({types}) AS {text.format(**_PLACES)}"


_CHECK_NAME, _PREPARE_CHECK = _named("check", POSTGRESQL.check, "text, bigint, text, text")
_CLAIM_NAME, _PREPARE_CLAIM = _named("claim", POSTGRESQL.claim, "text, bigint, text, text, bigint")

PREPARE = (_PREPARE_CHECK, _PREPARE_CLAIM)
"""The statements that a connection needs before ``check`` and ``claim`` with ``prepared=True``."""


class MarkAccess:
    """The access of a guard's role to the marks.

    It is by statements on the table, or by calls of functions, on a database that enforces. The guard finds out by the
    refusal of the one, and remembers it.
    """

    def __init__(self) -> None:
        self.enforced: bool | None = None

    @property
    def sql(self) -> Statements:
        """The statements for this access."""
        return CALLS if self.enforced else POSTGRESQL


def begin(connection: AnyConnection, *, read_committed: bool = False) -> str:
    """Return the BEGIN for this connection's settings.

    With ``read_committed`` a statement that has waited sees what it waited for.
    """
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
    """Return the statements that bound what this transaction can wait for, and how long others can wait for it.

    The first bounds each statement, and so each wait for a lock. The others are for blocks with statements of a caller
    (``idle``). They bound each wait for a lock, also where a block removes the first bound for a slow statement. They
    end the session of a client that stands still between two statements, or while it is being sent rows.
    """
    limit = f" = {max(1, round(seconds * 1000))}"
    of_each_statement = "SET LOCAL statement_timeout" + limit
    if not idle:
        return [of_each_statement]
    return [
        of_each_statement,
        "SET LOCAL lock_timeout" + limit,
        "SET LOCAL idle_in_transaction_session_timeout" + limit,
        "SET LOCAL tcp_user_timeout" + limit,
    ]


def values_of(connection: AnyConnection, fence: Fence, writes: int = 1) -> Values:
    """Return the literals of one claim or check, with a new random id for the write.

    Raises:
        GuardNotEnforceable: the connection's client encoding cannot express the resource's name.
    """
    return {
        "resource": literal(connection, fence.resource),
        "number": str(fence.number),
        "token": f"'{fence.token}'",
        "write": f"'{new_id()}'",
        "writes": str(writes),
    }


def check(
    access: MarkAccess, connection: AnyConnection, fence: Fence, *, prepared: bool = False, joins: bool = False
) -> str:
    """Return the statement that admits a write: a row (seq, recent_writes, xact) if the fence is the mark's own.

    If it ``joins`` a transaction, the last column says whether it was outside any savepoint.
    """
    if prepared and not access.enforced:
        resource = literal(connection, fence.resource)
        return f"EXECUTE {_CHECK_NAME} ({resource}, {fence.number}, '{fence.token}', '{new_id()}')"
    statements = JOINING if joins and not access.enforced else access.sql
    return statements.check.format(**values_of(connection, fence))


def claim(access: MarkAccess, values: Values, *, prepared: bool = False) -> str:
    """Return the statement that raises a mark that exists: a row (seq, recent_writes, xact) if the rule admits the
    fence."""
    if prepared and not access.enforced:
        return f"EXECUTE {_CLAIM_NAME} ({', '.join(values.values())})"
    return access.sql.claim.format(**values)


def make_floor() -> str:
    """Return the statement that makes the floor row where there is none, and with it the table's id."""
    return POSTGRESQL.make_floor.format(write=f"'{new_id()}'")


def create() -> list[str]:
    """Return the statements that create the table and its floor row where they are missing. Two processes may do it at
    once."""
    return [f"SELECT pg_advisory_xact_lock({CREATE_LOCK})", _TABLE, make_floor()]


def literal(connection: AnyConnection, text: str) -> str:
    """Return the text as an SQL literal."""
    if text.isascii() and "'" not in text and "\\" not in text:
        return f"'{text}'"
    encoding = "ascii" if text.isascii() else connection.info.encoding
    try:
        return Escaping(connection.pgconn).escape_literal(text.encode(encoding)).decode(encoding)
    except UnicodeEncodeError as error:
        raise GuardNotEnforceable(
            f"the connection's client_encoding ({encoding}) cannot express the resource name {text!r}; set it to UTF8"
        ) from error

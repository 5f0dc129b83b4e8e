"""The statements of ``sql/statements.py`` with their values, and the statements around them. No I/O.

Several statements go to the server together, as one simple query, so values are literals. The two frequent ones are
prepared on each connection and executed by name, because parsing and planning take longer than running. (Not on a
database that enforces: there they are calls of functions, whose plans the server keeps itself.)
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

from psycopg import AsyncConnection, Connection
from psycopg.pq import Escaping

from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import MAX_NUMBER, Fence
from storage_guards.continuity import new_id
from storage_guards.sql.outcome import FLOOR, TABLE
from storage_guards.sql.pruning import now_as_number
from storage_guards.sql.schema import POSTGRESQL_VISIBLE_TABLES, Choice, quoted
from storage_guards.sql.statements import CREATE_LOCK, Statements, calls_in, enforced_in, statements_on

AnyConnection = Connection[Any] | AsyncConnection[Any]
Values = dict[str, str]

COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
VISIBLE_TABLES = POSTGRESQL_VISIBLE_TABLES

_TABLE = f"""
    CREATE TABLE IF NOT EXISTS {{table}} (
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


class Texts(NamedTuple):
    """The statements on one mark table.

    Args:
        schema: of the table.
        table: its full name, as SQL.
        direct: the statements on it.
        joining: the same, with one more column.
        calls: the statements where the database enforces.
        check_name: the name of the prepared check.
        claim_name: the name of the prepared claim.
        prepare: what a connection needs before ``check`` and ``claim`` with ``prepared=True``.
        is_enforced: the query whether the database enforces.
    """

    schema: str
    table: str
    direct: Statements
    joining: Statements
    calls: Statements
    check_name: str
    claim_name: str
    prepare: tuple[str, str]
    is_enforced: str


@cache
def texts_in(schema: str) -> Texts:
    """Return the statements on the mark table of this schema."""
    table = f"{quoted(schema)}.{TABLE}"
    direct = statements_on(table)
    check_name, prepare_check = _named("check", direct.check, "text, bigint, text, text")
    claim_name, prepare_claim = _named("claim", direct.claim, "text, bigint, text, text, bigint")
    return Texts(
        schema,
        table,
        direct,
        statements_on(table, outermost=True),
        calls_in(schema),
        check_name,
        claim_name,
        (prepare_check, prepare_claim),
        f"SELECT {enforced_in(schema)}",
    )


class MarkAccess:
    """The access of a guard's role to the marks.

    It is by statements on the table, or by calls of functions, on a database that enforces. The guard finds out by the
    refusal of the one, and remembers it. It also remembers the schema of the table, which it looks up once.

    Args:
        choice: of the table.
    """

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.enforced: bool | None = None
        self.located: Texts | None = None
        """The statements, where the table's schema is known, and no other mark table was in sight."""

    def locate(self, schema: str) -> None:
        """Remember the schema of the table."""
        self.located = texts_in(schema)

    @property
    def texts(self) -> Texts:
        assert self.located is not None, "the mark table was not looked up"
        return self.located

    @property
    def sql(self) -> Statements:
        """The statements for this access."""
        return self.texts.calls if self.enforced else self.texts.direct


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
        return f"EXECUTE {access.texts.check_name} ({resource}, {fence.number}, '{fence.token}', '{new_id()}')"
    statements = access.texts.joining if joins and not access.enforced else access.sql
    return statements.check.format(**values_of(connection, fence))


def claim(access: MarkAccess, values: Values, *, prepared: bool = False) -> str:
    """Return the statement that raises a mark that exists: a row (seq, recent_writes, xact) if the rule admits the
    fence."""
    if prepared and not access.enforced:
        return f"EXECUTE {access.texts.claim_name} ({', '.join(values.values())})"
    return access.sql.claim.format(**values)


def make_floor(texts: Texts, *, new: bool) -> str:
    """Return the statement that makes the floor row where there is none, and with it the table's id.

    Args:
        texts: of the table.
        new: the table was just created, so there never was a mark. Otherwise marks may be lost: the floor shuts out all
            fences that are older than now.
    """
    return texts.direct.make_floor.format(number=0 if new else now_as_number(), write=f"'{new_id()}'")


LOCK_CREATION = f"SELECT pg_advisory_xact_lock({CREATE_LOCK})"


def create(texts: Texts) -> list[str]:
    """Return the statements that create the table and its floor row."""
    return [_TABLE.format(table=texts.table), make_floor(texts, new=True)]


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

"""The statements of ``sql/statements.py`` with their values, and the statements around them. No I/O.

Several statements go to the server together, as one simple query, so values are literals. The two frequent ones are
prepared on each connection and executed by name, because parsing and planning take longer than running. (Not on a
database that enforces: there they are calls of functions, whose plans the server keeps itself.)
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.pq import Escaping

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql.outcome import TABLE
from storage_guards.sql.plans import Statement
from storage_guards.sql.schema import POSTGRESQL_VISIBLE_TABLES, Choice, quoted
from storage_guards.sql.statements import Statements, calls_in, digest_of, enforced_in, statements_on
from storage_guards.sql.table import DONE

AnyConnection = Connection[Any] | AsyncConnection[Any]

COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"

_PLACES = {"resource": "$1", "number": "$2", "token": "$3", "write": "$4", "writes": "$5"}


def _named(kind: str, text: str, types: str) -> tuple[str, str]:
    """Return a name that no other text has, and the PREPARE."""
    name = f"fencing_{kind}_{digest_of(text)}"
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
    table, done = f"{quoted(schema)}.{TABLE}", f"{quoted(schema)}.{DONE}"
    direct = statements_on(table, done)
    check_name, prepare_check = _named("check", direct.check, "text, bigint, text, text")
    claim_name, prepare_claim = _named("claim", direct.claim, "text, bigint, text, text, bigint")
    return Texts(
        schema,
        table,
        direct,
        statements_on(table, done, outermost=True),
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


def opening_of(
    connection: AnyConnection, seconds: float, *, read_committed: bool = False, idle: bool = True
) -> tuple[str, int]:
    """Return what begins a transaction with this connection's settings and bounds it, and how many statements that is.

    With ``read_committed`` a statement that has waited sees what it waited for.
    """
    level = ReadCommitted if read_committed else connection.isolation_level
    return _opening(level, connection.read_only, connection.deferrable, seconds, idle)


ReadCommitted = IsolationLevel.READ_COMMITTED


@lru_cache(64)
def _opening(
    level: IsolationLevel | None, read_only: bool | None, deferrable: bool | None, seconds: float, idle: bool
) -> tuple[str, int]:
    parts = ["BEGIN"]
    if level is not None:
        parts.append(f"ISOLATION LEVEL {level.name.replace('_', ' ')}")
    if read_only is not None:
        parts.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        parts.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    statements = [" ".join(parts), *limits(seconds, idle=idle)]
    return "; ".join(statements), len(statements)


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


PREPARED = ("check", "claim")
"""The statements that each connection prepares."""


def text_of(
    connection: AnyConnection,
    access: MarkAccess,
    statement: Statement | str,
    *,
    prepared: bool = False,
    joins: bool = False,
) -> str:
    """Return a statement with its values.

    Args:
        connection: for which the values are literals.
        access: to the marks.
        statement: of a plan.
        prepared: the connection has the prepared statements.
        joins: the check joins a transaction. The last column of its answer says whether it was outside any savepoint.

    Raises:
        GuardNotEnforceable: the connection's client encoding cannot express the resource's name, or the key.
    """
    if isinstance(statement, str):
        return statement
    name, resource, number, token, write, writes, _, key = statement
    quoted_name = literal(connection, resource)
    texts = access.located
    if prepared and name in PREPARED and not access.enforced and texts is not None:
        if name == "check":
            return f"EXECUTE {texts.check_name} ({quoted_name}, {number}, '{token}', '{write}')"
        return f"EXECUTE {texts.claim_name} ({quoted_name}, {number}, '{token}', '{write}', {writes})"
    if name == "visible_tables":
        return POSTGRESQL_VISIBLE_TABLES
    statements = access.texts.joining if joins and not access.enforced else access.sql
    template: str = getattr(statements, name)
    return template.format(
        resource=quoted_name,
        number=number,
        token=f"'{token}'",
        write=f"'{write}'",
        writes=writes,
        key=literal(connection, key) if key else "",
    )


def literal(connection: AnyConnection, text: str) -> str:
    """Return the text as an SQL literal."""
    if text.isascii() and "'" not in text and "\\" not in text:
        return f"'{text}'"
    encoding = "ascii" if text.isascii() else connection.info.encoding
    try:
        return Escaping(connection.pgconn).escape_literal(text.encode(encoding)).decode(encoding)
    except UnicodeEncodeError as error:
        raise GuardNotEnforceable(
            f"the connection's client_encoding ({encoding}) cannot express the name or key {text!r}; set it to UTF8"
        ) from error

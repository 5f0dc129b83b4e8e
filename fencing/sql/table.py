"""The table of locks: its columns, the requests to it, and their statements on each database.

The row of a resource stays when its lock is free, because it has the last number. Times are microseconds since 1970 in
UTC, and come from the database's clock alone. No statement needs a transaction with another one: each can be
committed by itself, so no client ever holds a row while it computes, or while it is stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from sqlalchemy import (
    VARBINARY,
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Dialect,
    MetaData,
    Row,
    Table,
    Text,
    TextClause,
    text,
)
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from fencing.kernel.fence import MAX_NUMBER, MAX_RESOURCE_BYTES

TABLE = "fencing_locks"

PAGE_ROWS = 1000
"""How many rows a listing reads in one request, held or free. It bounds the time of the request."""

ROUNDS = 3
"""How often a lock is taken by force in one request, if it changes hands meanwhile."""

_TOKEN_BYTES = 128
_OWNER_BYTES = 800  # 200 characters

# Assignments of MariaDB and MySQL run from left to right, so the token comes last. The same token is the same request.
_SET = """
    number = CASE WHEN l.token = :token THEN l.number ELSE {greatest}(l.number, :floor, {clock}) + 1 END,
    granted_at = CASE WHEN l.token = :token THEN l.granted_at ELSE {clock} END,
    expires_at = CASE WHEN l.token = :token THEN {greatest}(l.expires_at, {clock} + :ttl) ELSE {clock} + :ttl END,
    owner = {owner}, token = :token
"""
_INSERT = """
    INSERT INTO {table} {as_l} (resource, number, token, owner, granted_at, expires_at)
    VALUES ({resource}, {greatest}(:floor, {clock}) + 1, :token, {owner}, {clock}, {clock} + :ttl)
"""
_IS_FREE = f"(l.token IN ('', :token) OR l.expires_at <= {{clock}}) AND l.number < {MAX_NUMBER}"
_IS_OLD = f"l.token IN (:old, :token) AND l.expires_at > {{clock}} AND l.number < {MAX_NUMBER}"
_IS_ANY = f"l.number < {MAX_NUMBER}"
_READ = """
    SELECT {state} FROM (SELECT 1 AS one) AS always LEFT JOIN {table} AS l ON l.resource = {resource}
"""
_LIST = f"""
    SELECT {{name}} AS resource, {{state}} FROM {{table}} AS l WHERE l.resource > {{resource}}
    ORDER BY l.resource LIMIT {PAGE_ROWS}
"""
_RELEASE = """
    UPDATE {table} AS l SET token = '', expires_at = 0
    WHERE l.resource = {resource} AND l.token = :token AND l.expires_at > {clock}
"""

Operation = Literal["acquire", "remint", "force", "renew", "release", "read", "list", "create"]


class Request(NamedTuple):
    """The effect: perform one request at the table. Each may be repeated with the same token."""

    operation: Operation
    values: Mapping[str, Any]
    timeout: float


class LockRow(NamedTuple):
    """The row of a resource, and the moment at which the database read it.

    Args:
        now: the database's clock, in microseconds.
        number: of the last grant; None: there is no row.
        token: empty: the lock is free.
    """

    now: int
    number: int | None
    token: str
    owner: str
    granted_at: int
    expires_at: int

    @property
    def is_held(self) -> bool:
        """Whether the lock is held."""
        return bool(self.token) and self.expires_at > self.now


class SQLLocks(ABC):
    """The table of locks of one kind of database, and the requests to it.

    Args:
        schema: the schema of the table; None: the connection's own.
        dialect: SQLAlchemy's, which quotes the schema.
    """

    clock: ClassVar[str]
    greatest: ClassVar[str] = "greatest"
    is_embedded: ClassVar[bool] = False
    """Whether the database is a file of this machine. Then the table is created at its first use."""

    def __init__(self, schema: str | None, dialect: Dialect) -> None:
        self._definition = self._define(schema)
        self.metadata = self._definition.metadata
        self._name = dialect.identifier_preparer.format_table(self._definition).replace(":", "\\:")
        self._read = self._text(_READ)
        self._list = self._text(_LIST)
        self._release = self._text(_RELEASE)

    def perform(self, connection: Connection, request: Request) -> Any:
        """Perform a request on a connection in autocommit, or in a transaction of the request."""
        answer: Any = getattr(self, f"_{request.operation}_lock")(connection, request.values)
        return answer

    @abstractmethod
    def _define(self, schema: str | None) -> Table: ...

    @abstractmethod
    def _acquire_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow: ...

    @abstractmethod
    def _remint_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow: ...

    @abstractmethod
    def _force_free(self, connection: Connection, values: Mapping[str, Any]) -> LockRow: ...

    @abstractmethod
    def _renew_lock(self, connection: Connection, values: Mapping[str, Any]) -> set[tuple[str, str]]:
        """Extend the locks of the tokens, and return the pairs of resource and token that were extended."""

    def _force_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        for _ in range(ROUNDS):
            row = self._force_free(connection, values)
            if row.token == values["token"] or row.number is not None:
                break
            row = self._acquire_lock(connection, values)  # there was no row
            if row.token == values["token"]:
                break
        return row

    def _release_lock(self, connection: Connection, values: Mapping[str, Any]) -> bool:
        return connection.execute(self._release, self._sent(values)).rowcount > 0

    def _read_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        return self._row(connection.execute(self._read, self._sent(values)).one())

    def _list_lock(self, connection: Connection, values: Mapping[str, Any]) -> list[tuple[str, LockRow]]:
        rows = connection.execute(self._list, self._sent(values)).all()
        return [(self._received(row.resource), self._row(row)) for row in rows]

    def _create_lock(self, connection: Connection, values: Mapping[str, Any]) -> None:
        connection.execute(CreateTable(self._definition, if_not_exists=True))

    # What differs

    state: ClassVar[str] = "{clock} AS now, l.number, l.token, l.owner, l.granted_at, l.expires_at"
    name: ClassVar[str] = "l.resource"
    sent: ClassVar[str] = ":{}"
    """How the parameter of a name is written."""

    def _sent(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters as the database is sent them."""
        return values

    def _received(self, name: str) -> str:
        """Return a name as it was sent."""
        return name

    def _row(self, row: Row[Any]) -> LockRow:
        if row.number is None:
            return LockRow(row.now, None, "", "", 0, 0)
        return LockRow(row.now, row.number, row.token, self._received(row.owner), row.granted_at, row.expires_at)

    def _text(self, statement: str, **more: str) -> TextClause:
        resource, owner = self.sent.format("resource"), self.sent.format("owner")
        for key, value in more.items():  # these have places of their own
            statement = statement.replace(f"{{{key}}}", value)
        return text(
            statement.replace("{state}", self.state).format(
                table=self._name,
                clock=self.clock,
                greatest=self.greatest,
                resource=resource,
                owner=owner,
                name=self.name,
                as_l="AS l",
            )
        )

    def _renewed_names(self, count: int) -> str:
        resources = ", ".join(self.sent.format(f"r{i}") for i in range(count))
        tokens = ", ".join(f":t{i}" for i in range(count))
        return f"l.resource IN ({resources}) AND l.token IN ({tokens}) AND l.expires_at > {{clock}}"


def lock_definition(
    name: TypeEngine[Any], token: TypeEngine[Any], owner: TypeEngine[Any], schema: str | None, **options: Any
) -> Table:
    """Return the table with the given types of its texts."""
    return Table(
        TABLE,
        MetaData(),
        Column("resource", name, primary_key=True),
        Column("number", BigInteger, nullable=False),
        Column("token", token, nullable=False),
        Column("owner", owner, nullable=False),
        Column("granted_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        CheckConstraint(f"number BETWEEN 1 AND {MAX_NUMBER}", name="fencing_locks_number"),
        schema=schema,
        **options,
    )


class _WithReturning(SQLLocks):
    """The statements where a changed row is returned: a grant takes one statement, a refusal two."""

    _renewal: ClassVar[str]

    def __init__(self, schema: str | None, dialect: Dialect) -> None:
        super().__init__(schema, dialect)
        returning = "RETURNING {clock} AS now, number, token, owner, granted_at, expires_at"
        upsert = f"{_INSERT} ON CONFLICT (resource) DO UPDATE SET {_SET} WHERE {_IS_FREE} {returning}"
        change = f"UPDATE {{table}} AS l SET {_SET} WHERE l.resource = {{resource}} AND "
        self._acquire = self._text(upsert)
        self._remint = self._text(f"{change} {_IS_OLD} {returning}")
        self._force = self._text(f"{change} {_IS_ANY} {returning}")
        self._renewals = lru_cache(maxsize=128)(self._renew_text)

    def _acquire_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._acquire, values)

    def _remint_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._remint, values)

    def _force_free(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._force, values)

    def _changed(self, connection: Connection, statement: TextClause, values: Mapping[str, Any]) -> LockRow:
        row = connection.execute(statement, values).one_or_none()
        # A statement of its own: the first one's snapshot may be older than the row that it waited for.
        return self._read_lock(connection, values) if row is None else self._row(row)

    def _renew_lock(self, connection: Connection, values: Mapping[str, Any]) -> set[tuple[str, str]]:
        rows = connection.execute(self._renewals(values["count"]), values).all()
        return {(row.resource, row.token) for row in rows}

    def _renew_text(self, count: int) -> TextClause:
        return self._text(self._renewal, given=self._renewed_names(count))


class PostgreSQLLocks(_WithReturning):
    """The table of locks on PostgreSQL."""

    clock = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
    # Rows are locked in the order of their names, or two renewals could wait for each other.
    _renewal = """
        UPDATE {table} AS l SET expires_at = greatest(l.expires_at, {clock} + :ttl)
        WHERE l.resource IN (SELECT l.resource FROM {table} AS l WHERE {given} ORDER BY l.resource FOR UPDATE)
        RETURNING resource, token
    """

    def _define(self, schema: str | None) -> Table:
        exact = Text(collation="C")
        # Nothing that is indexed changes, so with free space an update stays in its page.
        return lock_definition(exact, exact, Text(), schema, postgresql_with={"fillfactor": 50})


class SQLiteLocks(_WithReturning):
    """The table of locks in a file of SQLite, which only one statement writes at a time."""

    # In whole milliseconds: SQLite's clock has no more.
    clock = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"
    greatest = "max"
    is_embedded = True
    _renewal = """
        UPDATE {table} AS l SET expires_at = max(l.expires_at, {clock} + :ttl) WHERE {given}
        RETURNING resource, token
    """

    def _define(self, schema: str | None) -> Table:
        exact = Text(collation="BINARY")
        return lock_definition(exact, exact, Text(), schema)


class MySQLLocks(SQLLocks):
    """The table of locks on MariaDB and MySQL, where changed rows are not returned: each request also reads.

    Names and owners are sent as hexadecimal digits, so no character set and no ``sql_mode`` changes them.
    """

    # The moment at which the statement began, also in a replica. A statement that waited grants a shorter time.
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    state = (
        "{clock} AS now, l.number, CONVERT(l.token USING utf8mb4) AS token, HEX(l.owner) AS owner, l.granted_at, "
        "l.expires_at"
    )
    name = "HEX(l.resource)"
    sent = "UNHEX(:{})"

    def __init__(self, schema: str | None, dialect: Dialect) -> None:
        super().__init__(schema, dialect)
        change = f"UPDATE {{table}} AS l SET {_SET} WHERE l.resource = {{resource}} AND "
        self._acquire = self._text(f"{change} {_IS_FREE}")
        self._remint = self._text(f"{change} {_IS_OLD}")
        self._force = self._text(f"{change} {_IS_ANY}")
        self._insert = self._text(f"{_INSERT} ON DUPLICATE KEY UPDATE number = number", as_l="")
        self._renewals = lru_cache(maxsize=128)(self._renew_texts)

    def _acquire_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        row = self._changed(connection, self._acquire, values)
        return row if row.number is not None else self._changed(connection, self._insert, values)

    def _remint_lock(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._remint, values)

    def _force_free(self, connection: Connection, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._force, values)

    def _changed(self, connection: Connection, statement: TextClause, values: Mapping[str, Any]) -> LockRow:
        connection.execute(statement, self._sent(values))
        return self._read_lock(connection, values)

    def _renew_lock(self, connection: Connection, values: Mapping[str, Any]) -> set[tuple[str, str]]:
        change, read = self._renewals(values["count"])
        sent = self._sent(values)
        connection.execute(change, sent)
        return {(self._received(row.resource), row.token) for row in connection.execute(read, sent)}

    def _renew_texts(self, count: int) -> tuple[TextClause, TextClause]:
        given = self._renewed_names(count)
        extended = "expires_at = greatest(l.expires_at, {clock} + :ttl)"
        return (
            self._text(f"UPDATE {{table}} AS l SET {extended} WHERE {given} ORDER BY l.resource"),
            self._text(
                "SELECT HEX(l.resource) AS resource, CONVERT(l.token USING utf8mb4) AS token FROM {table} AS l "
                f"WHERE {given}"
            ),
        )

    def _sent(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        names = {key: value for key, value in values.items() if key in ("resource", "owner") or key[0] == "r"}
        return {**values, **{key: value.encode().hex() for key, value in names.items()}}

    def _received(self, name: str) -> str:
        return bytes.fromhex(name).decode()

    def _define(self, schema: str | None) -> Table:
        name, token, owner = (VARBINARY(size) for size in (MAX_RESOURCE_BYTES, _TOKEN_BYTES, _OWNER_BYTES))
        return lock_definition(name, token, owner, schema, mysql_engine="InnoDB", mariadb_engine="InnoDB")

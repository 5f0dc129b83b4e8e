"""The table of locks: its columns, the requests to it, and their statements on each database.

The row of a resource stays when its lock is free, because it has the last number. Times are microseconds since 1970 in
UTC, and come from the database's clock alone. No statement needs a transaction with another one: each can be
committed by itself, so no client ever holds a row while it computes, or while it is stopped.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Dialect,
    MetaData,
    Row,
    SmallInteger,
    Table,
    TextClause,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from fencing.kernel.fence import MAX_NUMBER
from fencing.sql.errors import UNDEFINED_TABLE, state_of

TABLE = "fencing_locks"

VERSION = 1
"""Of the table: the default of its column ``version``. A coordinator refuses any other one."""

PAGE_ROWS = 1000
"""How many rows a listing reads, or a pruning deletes, in one request. It bounds the time of the request."""

MOST_ENLISTINGS = 20
"""How often a waiter tries to get one of the places that are free. Each time another one was faster."""

FLOOR = ""
"""The resource of the row whose number is the highest of all rows that were pruned. New rows begin above it."""

# The token of a grant that lives is the same request again. That of one that has ended is a late request, or a new one.
_IS_SAME = "l.token = :token AND l.expires_at > {clock}"
# Assignments of MariaDB and MySQL run from left to right, so the expiry and the token come last.
SET = f"""
    number = CASE WHEN {_IS_SAME} THEN l.number ELSE {{greatest}}(l.number, :floor, {{clock}}) + 1 END,
    granted_at = CASE WHEN {_IS_SAME} THEN l.granted_at ELSE {{clock}} END,
    expires_at = CASE WHEN l.token = :token THEN {{greatest}}(l.expires_at, {{clock}} + :ttl) ELSE {{clock}} + :ttl END,
    ttl = :ttl, released_at = 0, owner = {{owner}}, token = :token
"""
INSERT = """
    INSERT INTO {table} {as_l} (resource, number, token, owner, granted_at, expires_at, ttl)
    VALUES ({resource}, {greatest}(:floor, {clock}, {pruned}) + 1, :token, {owner}, {clock}, {clock} + :ttl, :ttl)
"""
PRUNED = f"coalesce((SELECT f.number FROM {{table}} AS f WHERE f.resource = '{FLOOR}'), 0)"
# A lease that ends later than two ttls from now was given by a clock that has gone back since: it would last too long.
IS_FREE = (
    f"(l.token IN ('', :token) OR l.expires_at <= {{clock}} OR l.expires_at > {{clock}} + 2 * l.ttl) "
    f"AND l.number < {MAX_NUMBER}"
)
# A request may arrive late, when others have had the lock since. So it names the number, and the row of a lock that is
# free has that of the last grant.
_IS_REPLACEABLE = f"l.expires_at > {{clock}} AND l.number < {MAX_NUMBER}"
IS_OLD = f"(l.token = :token OR (l.token = :old AND l.number = :number)) AND {_IS_REPLACEABLE}"
IS_FORCED = f"(l.token = :token OR l.number = :number) AND {_IS_REPLACEABLE}"
_READ = """
    SELECT {state} FROM (SELECT 1 AS one) AS always LEFT JOIN {table} AS l ON l.resource = {resource}
"""
_LIST = f"""
    SELECT {{name}} AS resource, {{state}} FROM {{table}} AS l WHERE l.resource > {{resource}}
    ORDER BY l.resource LIMIT {PAGE_ROWS}
"""
_PLACES = """
    SELECT {name} AS resource, {state} FROM {table} AS l
    WHERE l.resource > {r0} AND l.resource < {r1} AND l.token <> '' AND l.expires_at > {clock}
"""
_LEAVE = """
    UPDATE {table} AS l SET token = '', expires_at = 0
    WHERE l.resource > {r0} AND l.resource < {r1} AND l.token = :token
"""
# Their numbers lie so far behind the clock that one that is minted meanwhile, by a request that does not see the floor
# yet, is above them. A request takes seconds, and the age is a minute at least.
IS_UNUSED = (
    f"l.resource <> '{FLOOR}' AND (l.token = '' OR l.expires_at <= {{clock}}) AND l.granted_at <= {{clock}} - :age "
    f"AND l.number <= {{clock}} - :age"
)
_RELEASE = """
    UPDATE {table} AS l SET token = '', expires_at = 0
    WHERE l.resource = {resource} AND l.token = :token AND l.expires_at > {clock}
"""
# The ttl, too, or it would count as the lease of a clock that has gone back.
RELEASE_LATER = """
    UPDATE {table} AS l SET ttl = :left, released_at = {clock}, expires_at = {clock} + :left, token = :new
    WHERE l.resource = {resource} AND l.token = :token AND l.expires_at > {clock}
"""

Operation = Literal[
    "acquire",
    "queue",
    "remint",
    "force",
    "renew",
    "release",
    "release_later",
    "read",
    "list",
    "create",
    "prune",
    "listen",
    "notify",
    "enlist",
    "leave",
]


URGENT: frozenset[Operation] = frozenset(("renew", "release", "release_later"))
"""The requests that must not wait for others. Those may wait for a row that somebody keeps, with every connection."""

LAST: frozenset[Operation] = frozenset(("release", "release_later", "leave"))
"""The requests that a closed coordinator still sends: a block may end later, and a waiter leaves its place."""


class Request(NamedTuple):
    """The effect: perform one request at the table. Each may be repeated with the same token."""

    operation: Operation
    values: Mapping[str, Any]
    timeout: float


Renewed = tuple[str, str, int]
"""Resource, token and number of a grant whose lock was extended."""


class Renewals(NamedTuple):
    """What became of the grants of one request.

    Args:
        renewed: their locks were extended.
        kept: another session keeps their rows, so nothing is known yet. All others are gone.
    """

    renewed: set[Renewed]
    kept: set[Renewed]


class OtherVersion(Exception):
    """A refusal of a table whose version this library does not know. The text has the next step."""


class LockRow(NamedTuple):
    """The row of a resource, and the moment at which the database read it.

    Args:
        now: the database's clock, in microseconds.
        number: of the last grant; None: there is no row.
        token: empty: the lock is free.
        released_at: when the holder has released a lock that stays taken until ``expires_at``, in microseconds. 0: it
            has not.
    """

    now: int
    number: int | None
    token: str
    owner: str
    granted_at: int
    expires_at: int
    released_at: int = 0

    @property
    def is_held(self) -> bool:
        """Whether the lock is held."""
        return bool(self.token) and self.expires_at > self.now


def places_of(resource: str) -> tuple[str, str]:
    """Return what the names of a resource's places lie between. A place is a lock of its own, with a reserved name.

    At most ``max_waiters`` of them exist, and each has one holder. So no two waiters pass the limit.
    """
    begin = f"fencing:waiting:{hashlib.sha256(resource.encode()).hexdigest()}"
    return f"{begin}:", f"{begin};"  # the character after ":"


def is_place(name: str) -> bool:
    """Return whether the row is a waiter's place, and no lock of a user."""
    return name.startswith("fencing:")


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

    notifies: ClassVar[bool] = False
    """Whether a release notifies waiters. Then ``listen`` and ``notify`` are requests, too."""

    def __init__(self, schema: str | None, dialect: Dialect) -> None:
        self._definition = self._define(schema)
        self.metadata = self._definition.metadata
        self._name = dialect.identifier_preparer.format_table(self._definition).replace(":", "\\:")
        if "%%" in dialect.identifier_preparer.quote_identifier("%"):  # text() doubles them itself
            self._name = self._name.replace("%%", "%")
        self._facts = text(self._question(self._name))
        self._is_of_this_version = False
        self._read = self._text(_READ)
        self._list = self._text(_LIST)
        self._release = self._text(_RELEASE)
        self._release_later = self._text(RELEASE_LATER)
        ends = {"r0": self.sent.format("r0"), "r1": self.sent.format("r1")}
        self._places, self._leave = self._text(_PLACES, **ends), self._text(_LEAVE, **ends)

    def perform(self, connection: Any, request: Request) -> Any:
        """Perform a request on a connection in autocommit, or in a transaction of the request.

        Raises:
            OtherVersion: the table is of another version. Nothing was changed.
        """
        if not self._is_of_this_version:
            self._check_version(connection)
        answer: Any = getattr(self, f"_{request.operation}_lock")(connection, request.values)
        return answer

    def _check_version(self, connection: Any) -> None:
        """Look at the table's version, once for each coordinator. Where there is no table, the request says so."""
        found = connection.execute(self._facts, {}).one()
        if not found.how_many:
            return
        if found.version is None:
            added = ["released_at BIGINT DEFAULT 0 NOT NULL"] if not found.released else []
            added.append(f"version SMALLINT DEFAULT {VERSION} NOT NULL")
            table = self._name.replace("\\:", ":")
            raise OtherVersion(
                f"the table {TABLE} is of an earlier program: as its owner, execute these statements one after the "
                f"other; nothing was written. {'; '.join(f'ALTER TABLE {table} ADD COLUMN {each}' for each in added)}"
            )
        if found.version != str(VERSION):
            raise OtherVersion(
                f"the table {TABLE} is of version {found.version}, and this library knows {VERSION}: upgrade this "
                f"library; nothing was written"
            )
        self._is_of_this_version = True

    @abstractmethod
    def _question(self, table: str) -> str:
        """Return the query for ``how_many``: its columns, ``released``: whether it has ``released_at``, and
        ``version``: its version, or NULL."""

    @abstractmethod
    def _define(self, schema: str | None) -> Table: ...

    @abstractmethod
    def _acquire_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow: ...

    def _queue_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        """Acquire for a caller that waits: the next release notifies it, where the database can."""
        return self._acquire_lock(connection, values)

    def _enlist_lock(self, connection: Any, values: Mapping[str, Any]) -> int | None:
        """Take or keep a place for a waiter. Return how many wait if the limit is reached; None: it has a place."""
        first, limit, token = values["r0"], values["limit"], values["token"]
        waiting = 0
        for attempt in range(1, MOST_ENLISTINGS + 1):
            rows = connection.execute(self._places, self._sent(values)).all()
            taken = {self._received(row.resource): row.token for row in rows}
            place, waiting = next((name for name in taken if taken[name] == token), None), len(taken)
            if place is None:
                free = (name for each in range(1, limit + 1) if (name := f"{first}{each}") not in taken)
                # The lowest, so that there are few rows; but many that come at once do not all try the same ones.
                lowest = list(islice(free, min(8**attempt, 1000))) if waiting < limit else []
                if not lowest:
                    break
                place = random.choice(lowest)
            if self._acquire_lock(connection, {**values, "resource": place}).token == token:
                return None
        return None if values["is_enlisted"] else waiting

    def _leave_lock(self, connection: Any, values: Mapping[str, Any]) -> None:
        connection.execute(self._leave, self._sent(values))

    @abstractmethod
    def _remint_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow: ...

    @abstractmethod
    def _force_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow: ...

    @abstractmethod
    def _renew_lock(self, connection: Any, values: Mapping[str, Any]) -> Renewals:
        """Extend the locks of the grants."""

    def _release_lock(self, connection: Any, values: Mapping[str, Any]) -> bool:
        return bool(connection.execute(self._release, self._sent(values)).rowcount > 0)

    def _release_later_lock(self, connection: Any, values: Mapping[str, Any]) -> bool:
        return bool(connection.execute(self._release_later, self._sent(values)).rowcount > 0)

    def _read_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        return self._row(connection.execute(self._read, self._sent(values)).one())

    def _list_lock(self, connection: Any, values: Mapping[str, Any]) -> list[tuple[str, LockRow]]:
        rows = connection.execute(self._list, self._sent(values)).all()
        return [(self._received(row.resource), self._row(row)) for row in rows]

    def _prune_lock(self, connection: Any, values: Mapping[str, Any]) -> int:
        # The floor first, in a statement of its own: whoever does not find a row any more finds the floor.
        connection.execute(self._raise_floor, values)
        floor = self._read_lock(connection, {"resource": FLOOR}).number
        return int(connection.execute(self._prune, {**values, "floor": floor or 0}).rowcount)

    def _create_lock(self, connection: Any, values: Mapping[str, Any]) -> None:
        # Looking comes first: IF NOT EXISTS asks for the privilege to create even where the table exists.
        if self.is_embedded or not self._exists(connection):
            connection.execute(CreateTable(self._definition, if_not_exists=True))

    def _exists(self, connection: Any) -> bool:
        try:
            self._read_lock(connection, {"resource": FLOOR})
        except DBAPIError as error:
            if state_of(error.orig) != UNDEFINED_TABLE:
                raise
            return False
        return True

    # What differs

    _raise_floor: TextClause
    _prune: TextClause

    state: ClassVar[str] = "{clock} AS now, l.number, l.token, l.owner, l.granted_at, l.expires_at, l.released_at"
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
        owner = self._received(row.owner)
        return LockRow(row.now, row.number, row.token, owner, row.granted_at, row.expires_at, row.released_at)

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
                pruned=PRUNED.format(table=self._name),
                as_l="AS l",
            )
        )

    def _renewed_names(self, count: int) -> str:
        resources = ", ".join(self.sent.format(f"r{i}") for i in range(count))
        tokens = ", ".join(f":t{i}" for i in range(count))
        numbers = ", ".join(f":n{i}" for i in range(count))
        given = f"l.resource IN ({resources}) AND l.token IN ({tokens}) AND l.number IN ({numbers})"
        return f"{given} AND l.expires_at > {{clock}}"


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
        Column("ttl", BigInteger, nullable=False, server_default="0"),
        Column("waited_until", BigInteger, nullable=False, server_default="0"),
        Column("released_at", BigInteger, nullable=False, server_default="0"),
        Column("version", SmallInteger, nullable=False, server_default=text(str(VERSION))),
        CheckConstraint(f"number BETWEEN 1 AND {MAX_NUMBER}", name="fencing_locks_number"),
        schema=schema,
        **options,
    )

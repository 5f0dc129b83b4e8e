"""The statements of the table of locks on each database."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import VARBINARY, Dialect, Table, Text, TextClause, text

from fencing.kernel.fence import MAX_RESOURCE_BYTES
from fencing.sql import dialects
from fencing.sql.notifications import CHANNEL
from fencing.sql.table import (
    FLOOR,
    INSERT,
    IS_FORCED,
    IS_FREE,
    IS_OLD,
    IS_UNUSED,
    PAGE_ROWS,
    RELEASE_LATER,
    SET,
    TABLE,
    LockRow,
    Renewals,
    Renewed,
    SQLLocks,
    lock_definition,
)
from fencing.sql.waiters import ANNOUNCED_SECONDS

_TOKEN_BYTES = 128
_OWNER_BYTES = 800  # 200 characters


_RAISE_FLOOR = f"""
    INSERT INTO {{table}} {{as_l}} (resource, number, token, owner, granted_at, expires_at)
    SELECT '{FLOOR}', found.highest, '', '', 0, 0
    FROM (SELECT max(l.number) AS highest FROM {{table}} AS l WHERE {IS_UNUSED}) AS found
    WHERE found.highest IS NOT NULL
"""
_RETURNING = "RETURNING {clock} AS now, number, token, owner, granted_at, expires_at, released_at"

# A commit that notifies waits for every other one in the server. So a release notifies only where somebody waits.
_NOTIFYING_RELEASE = f"""
    UPDATE {{table}} AS l SET token = '', expires_at = 0
    WHERE l.resource = {{resource}} AND l.token = :token AND l.expires_at > {{clock}}
    RETURNING CASE WHEN l.waited_until > {{clock}} THEN CAST(pg_notify('{CHANNEL}', l.resource) AS text) END
"""
# The waiters ask when it frees itself. Nothing notifies them then.
_NOTIFYING_RELEASE_LATER = f"""
    {RELEASE_LATER}
    RETURNING CASE WHEN l.waited_until > {{clock}} THEN CAST(pg_notify('{CHANNEL}', l.resource) AS text) END
"""
_ANNOUNCE = f"""
    UPDATE {{table}} AS l SET waited_until = {{clock}} + {int(ANNOUNCED_SECONDS * 1e6)}
    WHERE l.resource = {{resource}} AND l.token <> '' AND l.expires_at > {{clock}} {_RETURNING}
"""


class _WithReturning(SQLLocks):
    """The statements where a changed row is returned: a grant takes one statement, a refusal two."""

    _renewal: ClassVar[str]

    def __init__(self, schema: str | None, dialect: Dialect) -> None:
        super().__init__(schema, dialect)
        returning = _RETURNING
        upsert = f"{INSERT} ON CONFLICT (resource) DO UPDATE SET {SET} WHERE {IS_FREE} {returning}"
        change = f"UPDATE {{table}} AS l SET {SET} WHERE l.resource = {{resource}} AND "
        self._acquire = self._text(upsert)
        self._remint = self._text(f"{change} {IS_OLD} {returning}")
        self._force = self._text(f"{change} {IS_FORCED} {returning}")
        self._renewals = lru_cache(maxsize=128)(self._renew_text)
        higher = "ON CONFLICT (resource) DO UPDATE SET number = {greatest}(l.number, excluded.number)"
        self._raise_floor = self._text(f"{_RAISE_FLOOR} {higher}")
        some = f"SELECT l.resource FROM {{table}} AS l WHERE {IS_UNUSED} AND l.number <= :floor LIMIT {PAGE_ROWS}"
        # The condition twice: a lock that was taken after the inner statement's snapshot stays.
        self._prune = self._text(f"DELETE FROM {{table}} AS l WHERE l.resource IN ({some}) AND {IS_UNUSED}")

    def _acquire_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._acquire, values)

    def _remint_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._remint, values)

    def _force_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._force, values)

    def _changed(self, connection: Any, statement: TextClause, values: Mapping[str, Any]) -> LockRow:
        row = connection.execute(statement, values).one_or_none()
        # A statement of its own: the first one's snapshot may be older than the row that it waited for.
        return self._read_lock(connection, values) if row is None else self._row(row)

    def _renew_lock(self, connection: Any, values: Mapping[str, Any]) -> Renewals:
        return Renewals(_grants(connection, self._renewals(values["count"]), values), set())

    def _renew_text(self, count: int) -> TextClause:
        return self._text(self._renewal, given=self._renewed_names(count))


def _grants(connection: Any, statement: TextClause, values: Mapping[str, Any]) -> set[Renewed]:
    rows = connection.execute(statement, values).all()
    return {(row.resource, row.token, row.number) for row in rows}


class PostgreSQLLocks(_WithReturning):
    """The table of locks on PostgreSQL."""

    # date_part is faster than extract, whose numbers are decimal. A double has enough digits until the year 2255.
    clock = "CAST(date_part('epoch', clock_timestamp()) * 1000000 AS bigint)"
    # Rows are locked in the order of their names, or two renewals could wait for each other.
    _renewal = """
        UPDATE {table} AS l SET expires_at = {clock} + :ttl
        WHERE l.resource IN (SELECT l.resource FROM {table} AS l WHERE {given} ORDER BY l.resource FOR UPDATE {skips})
        RETURNING resource, token, number
    """
    _still_held = "SELECT l.resource, l.token, l.number FROM {table} AS l WHERE {given}"

    notifies = True

    def __init__(self, schema: str | None, dialect: Dialect) -> None:
        super().__init__(schema, dialect)
        self._release = self._text(_NOTIFYING_RELEASE)
        self._release_later = self._text(_NOTIFYING_RELEASE_LATER)
        self._announce = self._text(_ANNOUNCE)
        self._held = lru_cache(maxsize=128)(self._held_text)

    def _renew_lock(self, connection: Any, values: Mapping[str, Any]) -> Renewals:
        """Renew several without those whose rows somebody keeps: the others need not wait for that. One alone waits."""
        count = values["count"]
        renewed = _grants(connection, self._renewals(count), values)
        if len(renewed) == count or count == 1:
            return Renewals(renewed, set())
        return Renewals(renewed, _grants(connection, self._held(count), values) - renewed)

    def _renew_text(self, count: int) -> TextClause:
        skips = "SKIP LOCKED" if count > 1 else ""
        return self._text(self._renewal, given=self._renewed_names(count), skips=skips)

    def _held_text(self, count: int) -> TextClause:
        return self._text(self._still_held, given=self._renewed_names(count))

    def _queue_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        row = connection.execute(self._acquire, values).one_or_none()
        if row is None:
            row = connection.execute(self._announce, values).one_or_none()
        # A statement of its own again: it was released just now, perhaps without a notification.
        return self._read_lock(connection, values) if row is None else self._row(row)

    def _question(self, table: str) -> str:
        named = table.replace("'", "''")
        return (
            "SELECT count(*) AS how_many, count(*) FILTER (WHERE a.attname = 'released_at') AS released, "
            "max(pg_get_expr(d.adbin, d.adrelid)) FILTER (WHERE a.attname = 'version') AS version "
            "FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND "
            f"d.adnum = a.attnum WHERE a.attrelid = to_regclass('{named}') AND a.attnum > 0 AND NOT a.attisdropped"
        )

    def _listen_lock(self, connection: Any, values: Mapping[str, Any]) -> None:
        connection.execute(text(f"LISTEN {CHANNEL}"))

    def _notify_lock(self, connection: Any, values: Mapping[str, Any]) -> None:
        connection.execute(text(f"SELECT pg_notify('{CHANNEL}', :resource)"), values)

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
        UPDATE {table} AS l SET expires_at = {clock} + :ttl WHERE {given}
        RETURNING resource, token, number
    """

    def _question(self, table: str) -> str:
        schema = self._definition.schema
        where = "" if schema is None else ", '{}'".format(schema.replace("'", "''").replace(":", "\\:"))
        return (
            "SELECT count(*) AS how_many, count(CASE WHEN name = 'released_at' THEN 1 END) AS released, "
            "max(CASE WHEN name = 'version' THEN dflt_value END) AS version "
            f"FROM pragma_table_info('{TABLE}'{where})"
        )

    def _define(self, schema: str | None) -> Table:
        exact = Text(collation="BINARY")
        return lock_definition(exact, exact, Text(), schema)


class _RenewTexts(NamedTuple):
    """The statements of a renewal: which rows nobody has locked, the change, and which grants still have locks."""

    probe: TextClause
    change: TextClause
    read: TextClause


class MySQLLocks(SQLLocks):
    """The table of locks on MariaDB and MySQL, where changed rows are not returned: each request also reads.

    Names and owners are sent as hexadecimal digits, so no character set and no ``sql_mode`` changes them.
    """

    # The moment at which the statement began, also in a replica. A statement that waited grants a shorter time.
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
    # The moment at which the row is read: the grant in it may be younger than the statement. The session is in UTC.
    state = (
        "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) AS now, l.number, "
        "CONVERT(l.token USING utf8mb4) AS token, HEX(l.owner) AS owner, l.granted_at, l.expires_at, "
        "l.released_at"
    )
    name = "HEX(l.resource)"
    sent = "UNHEX(:{})"

    def __init__(self, schema: str | None, dialect: Dialect) -> None:
        super().__init__(schema, dialect)
        self._dialect: Any = dialect  # which knows the server's version once it has connected
        change = f"UPDATE {{table}} AS l SET {SET} WHERE l.resource = {{resource}} AND "
        self._acquire = self._text(f"{change} {IS_FREE}")
        self._remint = self._text(f"{change} {IS_OLD}")
        self._force = self._text(f"{change} {IS_FORCED}")
        # A statement may not read the table that it changes, but for a derived table.
        derived = "coalesce((SELECT d.number FROM (SELECT f.number FROM {table} AS f WHERE f.resource = '') AS d), 0)"
        insert = INSERT.replace("{pruned}", derived)
        self._insert = self._text(f"{insert} ON DUPLICATE KEY UPDATE number = number", as_l="")
        higher = "ON DUPLICATE KEY UPDATE number = greatest({table}.number, found.highest)"
        self._raise_floor = self._text(f"{_RAISE_FLOOR} {higher}", as_l="")
        unused = IS_UNUSED.replace("l.", "")
        self._prune = self._text(
            f"DELETE FROM {{table}} WHERE {unused} AND number <= :floor ORDER BY resource LIMIT {PAGE_ROWS}"
        )
        self._renewals = lru_cache(maxsize=128)(self._renew_texts)

    def _question(self, table: str) -> str:
        schema = self._definition.schema
        where = "DATABASE()" if schema is None else f"UNHEX('{schema.encode().hex()}')"
        return (
            "SELECT count(*) AS how_many, count(IF(column_name = 'released_at', 1, NULL)) AS released, "
            "max(IF(column_name = 'version', column_default, NULL)) AS version "
            f"FROM information_schema.columns WHERE table_schema = CONVERT({where} USING utf8mb4) "
            f"AND table_name = '{TABLE}'"
        )

    def _acquire_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        row = self._changed(connection, self._acquire, values)
        return row if row.number is not None else self._changed(connection, self._insert, values)

    def _remint_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._remint, values)

    def _force_lock(self, connection: Any, values: Mapping[str, Any]) -> LockRow:
        return self._changed(connection, self._force, values)

    def _changed(self, connection: Any, statement: TextClause, values: Mapping[str, Any]) -> LockRow:
        connection.execute(statement, self._sent(values))
        return self._read_lock(connection, values)

    def _renew_lock(self, connection: Any, values: Mapping[str, Any]) -> Renewals:
        """Renew several without those whose rows somebody keeps, as on PostgreSQL. One alone waits.

        An UPDATE cannot skip rows. So a statement before it says which of them are not locked at this moment.
        """
        texts, sent = self._renewals(values["count"]), self._sent(values)
        if values["count"] == 1 or not self._skips_locked_rows():
            connection.execute(texts.change, sent)
            return Renewals(self._found(connection, texts.read, sent), set())
        unlocked = self._found(connection, texts.probe, sent)
        some = _only(values, unlocked)
        if unlocked:
            connection.execute(self._renewals(len(unlocked)).change, self._sent(some))
        held = self._found(connection, texts.read, sent)
        return Renewals(held & unlocked, held - unlocked)

    def _found(self, connection: Any, statement: TextClause, sent: Mapping[str, Any]) -> set[Renewed]:
        rows = connection.execute(statement, sent).all()
        return {(self._received(row.resource), row.token, row.number) for row in rows}

    def _skips_locked_rows(self) -> bool:
        """Return whether the server has SKIP LOCKED (https://mariadb.com/kb/en/select/#skip-locked, and since 8.0.1
        https://dev.mysql.com/doc/refman/8.4/en/innodb-locking-reads.html)."""
        version: tuple[int, ...] = getattr(self._dialect, "server_version_info", None) or ()
        return version >= ((10, 6) if getattr(self._dialect, "is_mariadb", False) else (8, 0, 1))

    def _renew_texts(self, count: int) -> _RenewTexts:
        given = self._renewed_names(count)
        read = (
            "SELECT HEX(l.resource) AS resource, CONVERT(l.token USING utf8mb4) AS token, l.number "
            f"FROM {{table}} AS l WHERE {given}"
        )
        change = f"UPDATE {{table}} AS l SET expires_at = {{clock}} + :ttl WHERE {given} ORDER BY l.resource"
        return _RenewTexts(self._text(f"{read} FOR UPDATE SKIP LOCKED"), self._text(change), self._text(read))

    def _sent(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        names = {key: value for key, value in values.items() if key in ("resource", "owner") or key[0] == "r"}
        return {**values, **{key: value.encode().hex() for key, value in names.items()}}

    def _received(self, name: str) -> str:
        return bytes.fromhex(name).decode()

    def _define(self, schema: str | None) -> Table:
        name, token, owner = (VARBINARY(size) for size in (MAX_RESOURCE_BYTES, _TOKEN_BYTES, _OWNER_BYTES))
        return lock_definition(name, token, owner, schema, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def _only(values: Mapping[str, Any], grants: set[Renewed]) -> Mapping[str, Any]:
    """Return the values of a renewal for some of its grants."""
    some = dict(values)
    for i, (resource, token, number) in enumerate(grants):
        some[f"r{i}"], some[f"t{i}"], some[f"n{i}"] = resource, token, number
    return some


LOCKS: dict[type[dialects.Dialect], type[SQLLocks]] = {
    dialects.PostgreSQL: PostgreSQLLocks,
    dialects.MySQL: MySQLLocks,
    dialects.SQLite: SQLiteLocks,
}

"""The report of ``verify``, the questions to PostgreSQL, and the meaning of the answers. No I/O, and no driver is known
here."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql.outcome import FLOOR, TABLE
from storage_guards.sql.pruning import NO_FLOOR, is_implausible
from storage_guards.sql.schema import quoted
from storage_guards.sql.table import DONE, MARK_TABLE

MAKE_ANEW = f"make the table {TABLE} as create_tables() or guard.metadata does"


@dataclass(frozen=True)
class Finding:
    """One fact about the database that should be changed.

    Args:
        threatens: ``"safety"``: the rules do not hold, or no guarded write can succeed. ``"durability"``: acknowledged
            writes may be gone after a crash. ``"waiting"``: a wait has no bound. ``"upkeep"``: all rules hold now, but
            one safeguard of several is missing, or cannot be seen from here.
        problem: the fact that was found.
        change: what to do about it.
    """

    __module__ = "storage_guards"

    threatens: Literal["safety", "durability", "waiting", "upkeep"]
    problem: str
    change: str

    def __str__(self) -> str:
        return f"{self.threatens}: {self.problem}; {self.change}"


@dataclass(frozen=True)
class VerifyReport:
    """All findings of ``verify``. None of them breaks safety.

    Args:
        database: its kind and version.
        findings: may be empty.
        table: the mark table, with its schema.
    """

    __module__ = "storage_guards"

    database: str
    findings: tuple[Finding, ...]
    table: str = TABLE

    def __str__(self) -> str:
        return "\n".join([f"{self.database}, {self.table}", *map(str, self.findings)])


def report(database: str, findings: Iterable[Finding], table: str) -> VerifyReport:
    """Return the report. Raise GuardNotEnforceable where a finding threatens safety."""
    found = VerifyReport(database, tuple(findings), table)
    broken = [f"{finding.problem}; {finding.change}" for finding in found.findings if finding.threatens == "safety"]
    if broken:
        raise GuardNotEnforceable(f"{database} cannot enforce the rules as it is: {'. '.join(broken)}")
    return found


def missing_checks(there: Container[str], how: str = "is missing", *, may_be_added: bool = True) -> Iterator[Finding]:
    """Yield the CHECK constraints that every database has and that are not ``there``."""
    for name, check in MARK_TABLE.checks.items():
        if name not in there:
            add = f"ALTER TABLE {TABLE} ADD CONSTRAINT {name} CHECK ({check})"
            yield Finding("upkeep", f"the CHECK {name} {how}", add if may_be_added else MAKE_ANEW)


def missing_floor(count: int) -> Iterator[Finding]:
    """Yield a finding if the number of floor rows, ``count``, is 0."""
    if not count:
        problem, _, change = NO_FLOOR.partition(". ")
        yield Finding("safety", f"{problem}, so no new name can be claimed", change)


IMPLAUSIBLE = 5
"""How many marks with an implausible number a report names."""


def implausible_marks(rows: Iterable[tuple[str, int]]) -> Iterator[Finding]:
    """Yield the marks whose number no coordinator can have minted: ``rows`` of names and numbers.

    Such a mark shuts out its own name only. As the floor, the number shuts out every name without a mark.
    """
    for name, number in rows:
        if name == FLOOR:
            yield Finding(
                "safety",
                f"the floor is {number}, which no coordinator can have minted, so no new name can be claimed",
                "correct it as docs/operations/incidents.md says",
            )
        else:
            yield Finding(
                "upkeep",
                f"the mark of {name!r} has the number {number}, which no coordinator can have minted; it is not pruned",
                "correct it as docs/operations/incidents.md says",
            )


def other_tables(names: Iterable[str]) -> Iterator[Finding]:
    """Yield a finding where there are other mark tables."""
    listed = ", ".join(names)
    if listed:
        yield Finding(
            "upkeep",
            f"there are other mark tables: {listed}",
            "see that all writers of the same data name the same one with schema=",
        )


def missing_done(is_there: bool) -> Iterator[Finding]:
    """Yield a finding where the table of what was done once is missing."""
    if not is_there:
        yield Finding("upkeep", f"the table {DONE} is missing", "call guard.create_tables() once, as the owner")


def not_durable(name: str, value: str, change: str) -> Finding:
    """Return the finding for a setting of the database that may lose acknowledged writes."""
    return Finding("durability", f"{name} is {value}: a crash may lose acknowledged writes and marks", change)


def unfit_done(key: Iterable[str], *, is_logged: bool = True) -> Iterator[Finding]:
    """Yield what makes the table of what was done once unfit. Guards without ``once=`` do not need it.

    Args:
        key: the columns of its primary key.
        is_logged: it is there after a crash, too.
    """
    if sorted(key) != ["once_key", "resource"]:
        yield Finding(
            "upkeep",
            f"the primary key of {DONE} is not (resource, once_key), so a block with once= may be done twice",
            MAKE_ANEW,
        )
    if not is_logged:
        yield Finding(
            "upkeep", f"{DONE} is unlogged, so after a crash a block with once= may be done twice", "SET LOGGED"
        )


# PostgreSQL

_POSTGRESQL_FACTS = """
    SELECT json_build_object(
        'server', current_setting('server_version'),
        'encoding', current_setting('server_encoding'),
        'fsync', current_setting('fsync'),
        'full_page_writes', current_setting('full_page_writes'),
        'synchronous_commit', current_setting('synchronous_commit'),
        'read_only', current_setting('transaction_read_only'),
        'replica', pg_is_in_recovery(),
        'pid', pg_backend_pid(),
        'floor', (SELECT count(*) FROM {table} WHERE resource = '{floor}'),
        'implausible', (
            SELECT COALESCE(json_agg(json_build_array(resource, newest)), '[]') FROM (
                SELECT resource, greatest(number, readers) AS newest FROM {table} WHERE {is_implausible} LIMIT {most}
            ) AS implausible
        ),
        'others', (
            SELECT COALESCE(json_agg(nspname || '.' || other.relname ORDER BY nspname), '[]')
            FROM pg_class AS other JOIN pg_namespace ON pg_namespace.oid = other.relnamespace
            WHERE other.relname = '{name}' AND other.relkind IN ('r', 'p', 'v', 'm', 'f')
            AND nspname !~ '^pg_(temp|toast)' AND other.oid <> pg_class.oid
        ),
        'forgers', (
            SELECT COALESCE(json_agg(rolname ORDER BY rolname), '[]') FROM ({forgers}) AS forging
            WHERE to_regprocedure('{home}.fencing_check(text, bigint, text, text)') IS NOT NULL
        ),
        'done', (
            SELECT json_build_object('logged', done.relpersistence = 'p', 'key', (
                SELECT COALESCE(json_agg(attname), '[]')
                FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
                WHERE indrelid = done.oid AND indisprimary AND indisvalid AND indimmediate
            )) FROM pg_class AS done WHERE done.oid = to_regclass('{home}.{done}')
        ),
        'kind', relkind,
        'persistence', relpersistence,
        'row_security', relrowsecurity AND row_security_active(pg_class.oid),
        'columns', (
            SELECT json_object_agg(attname, json_build_object(
                'type', format_type(atttypid, atttypmod),
                'required', attnotnull,
                'exact', COALESCE(collisdeterministic, true)
            ))
            FROM pg_attribute LEFT JOIN pg_collation ON pg_collation.oid = attcollation
            WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
        ),
        'key', (
            SELECT json_agg(attname)
            FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
            WHERE indrelid = pg_class.oid AND indisprimary AND indisvalid AND indimmediate
        ),
        'checks', (
            SELECT COALESCE(json_agg(conname), '[]')
            FROM pg_constraint WHERE conrelid = pg_class.oid AND contype = 'c' AND convalidated
        )
    )::text
    FROM pg_class WHERE oid = to_regclass('{table}')
"""

_FORGERS = """
    SELECT rolname FROM pg_roles AS one WHERE rolcanlogin
    AND NOT EXISTS (
        SELECT FROM pg_roles AS other
        WHERE (other.rolsuper OR other.oid = {owner}) AND pg_has_role(one.oid, other.oid, 'MEMBER')
    )
    AND EXISTS (
        SELECT FROM pg_roles AS other
        WHERE (has_table_privilege(other.oid, {table}, 'INSERT, UPDATE, DELETE, TRUNCATE')
            OR has_any_column_privilege(other.oid, {table}, 'INSERT, UPDATE'))
        AND pg_has_role(one.oid, other.oid, 'MEMBER')
    )
"""


def forgers(table: str, owner: str) -> str:
    """Return the query for the roles, neither owner nor superuser, that may change the mark table directly. The
    table's own grants do not show the members of ``pg_write_all_data``.

    Args:
        table: the table's oid, as SQL.
        owner: the oid of its owner, as SQL.
    """
    return _FORGERS.format(table=table, owner=owner)


def postgresql_facts(schema: str) -> str:
    """Return the query for the facts of :func:`assess_postgresql`: one row with one column of JSON.

    The error is undefined_table where there is no table.
    """
    return _POSTGRESQL_FACTS.format(
        home=quoted(schema),
        table=f"{quoted(schema)}.{TABLE}",
        name=TABLE,
        done=DONE,
        floor=FLOOR,
        is_implausible=is_implausible(),
        most=IMPLAUSIBLE,
        forgers=forgers("pg_class.oid", "pg_class.relowner"),
    )


_TEXTS = ("text", "character varying")
_TYPES = {
    "resource": _TEXTS,
    "number": ("bigint",),
    "token": _TEXTS,
    "seq": ("bigint",),
    "readers": ("bigint",),
    "recent_writes": _TEXTS,
    "claimed_at": ("timestamp with time zone",),
    "xact": ("xid8",),
    "version": ("smallint",),
}


def assess_postgresql(text: str, schema: str, *, pid: int | None, parameters: dict[str, str] | None) -> VerifyReport:
    """Return the report. Raise GuardNotEnforceable where something breaks safety.

    Args:
        text: the answer to :func:`postgresql_facts`.
        schema: of the mark table.
        pid: the server process that the server named to the driver at connecting. None: the driver does not say.
        parameters: libpq's, for a connection over a network. None: another driver, or no network.
    """
    facts = json.loads(text)
    findings = [*_table_findings(facts), *_server_findings(facts), *_connection_findings(facts, pid, parameters)]
    return report(f"PostgreSQL {facts['server']}", findings, f"{schema}.{TABLE}")


def _table_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["kind"] != "r":
        yield Finding("safety", f"{TABLE} is no plain table", MAKE_ANEW)
    if facts["persistence"] != "p":
        kind = "unlogged: after a crash the server empties it" if facts["persistence"] == "u" else "temporary"
        yield Finding("safety", f"{TABLE} is {kind}, but the marks must live as long as the data", "SET LOGGED")
    if facts["row_security"]:
        yield Finding("safety", f"row security hides rows of {TABLE} from this role", "disable it on this table")
    columns = facts["columns"]
    for name, types in _TYPES.items():
        column = columns.get(name)
        if column is None:
            yield Finding("safety", f"the column {name} is missing", MAKE_ANEW)
        elif column["type"].partition("(")[0] not in types:
            yield Finding("safety", f"the column {name} is {column['type']}, not {types[0]}", MAKE_ANEW)
        elif not column["exact"]:
            yield Finding("safety", f"the collation of {name} treats different names as equal", 'use COLLATE "C"')
        elif not column["required"] and name != "xact":
            yield Finding("upkeep", f"the column {name} may be NULL", "SET NOT NULL")
    if facts["key"] != ["resource"]:
        yield Finding("safety", "the primary key is not (resource) alone, valid and checked at once", MAKE_ANEW)
    yield from missing_checks(facts["checks"], "is missing or not validated")
    yield from missing_floor(facts["floor"])
    yield from implausible_marks(facts["implausible"])
    yield from other_tables(facts["others"])
    yield from missing_done(facts["done"] is not None)
    if facts["done"] is not None:
        yield from unfit_done(facts["done"]["key"], is_logged=facts["done"]["logged"])
    for role in facts["forgers"]:
        yield Finding(
            "upkeep",
            f"the role {role} may change {TABLE} directly, so it can forge a mark and pass the check",
            "revoke that (pg_write_all_data, for instance); if it uses a guard, call enforce() for it",
        )


def _server_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    if facts["replica"]:
        yield Finding("safety", "this server is a replica", "connect to the primary")
    elif facts["read_only"] == "on":
        yield Finding("safety", "this connection is read-only", "unset default_transaction_read_only for it")
    if facts["encoding"] == "SQL_ASCII":
        yield Finding(
            "upkeep",
            "the database's encoding is SQL_ASCII: programs with different client encodings have different marks for "
            "the same name, unless it is plain ASCII",
            "use a UTF8 database",
        )
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if facts[name] == "off":
            yield not_durable(name, "off", f"turn it on: ALTER SYSTEM SET {name} = on, and SELECT pg_reload_conf()")


def _connection_findings(
    facts: dict[str, Any], pid: int | None, parameters: dict[str, str] | None
) -> Iterator[Finding]:
    if pid is not None and pid != facts["pid"]:
        yield Finding(
            "upkeep",
            f"there is a pooler between this client and the server (it names process {pid}, the server {facts['pid']})",
            "let it pool transactions or sessions, not statements",
        )
    for name in ("connect_timeout", "tcp_user_timeout"):
        if parameters is not None and parameters.get(name, "0") == "0":
            yield Finding(
                "waiting",
                f"{name} is not set: a silent network is noticed by the operating system, after minutes",
                f"put {name} into the connection string",
            )

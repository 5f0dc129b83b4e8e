"""The mark tables that a connection can see, and which of them a guard uses. No I/O, and no driver is known here.

Its schema is named by the caller, or found once in the catalog. Its columns are in
``sql/table.py``.

Two mark tables for one set of data are as bad as none: two holders are admitted, each by its own table, and an update
is lost. So each guard writes the table's name with its schema, and refuses where the choice is not clear:

- With a schema that the caller named, no other mark table may be on the connection's search path.
- Without one, the database may have only one mark table, and the search path must lead to it.

On MariaDB and MySQL a schema is a database of the server. On SQLite it is ``main``, or the name of an attached file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql.outcome import TABLE
from storage_guards.sql.table import (
    ADDED,
    DONE,
    NAMES_OF_FUNCTIONS,
    VERSION,
    VERSION_MARK,
    DatabaseName,
    bring_up_to_date,
)

_UNUSUAL = re.compile(r"""["'`\\%:{}\x00-\x1f\x7f]""")

_VERSION_OF = """
    SELECT COALESCE(pg_get_expr(adbin, adrelid), '') FROM pg_class AS of
    LEFT JOIN pg_attribute ON attrelid = of.oid AND attname = 'version' AND NOT attisdropped
    LEFT JOIN pg_attrdef ON adrelid = of.oid AND adnum = attnum
    WHERE of.relnamespace = pg_namespace.oid AND of.relname = '{table}' AND of.relkind IN ('r', 'p')
"""
_VERSION_OF_FUNCTIONS = f"""
    SELECT CASE WHEN count(*) = count(version) THEN max(version::integer)::text ELSE '' END
    FROM (
        SELECT substring(prosrc FROM '{VERSION_MARK}([0-9]+)') AS version FROM pg_proc
        WHERE pronamespace = pg_namespace.oid AND proname IN ({NAMES_OF_FUNCTIONS})
    ) AS functions HAVING count(*) > 0
"""
"""The highest version of the functions in ``pg_namespace``. "": one of them tells none. No row: there are none."""

_LACKS = f"""
    SELECT COALESCE(json_agg(name), '[]') FROM unnest(ARRAY{list(ADDED)}) AS name
    WHERE relkind IN ('r', 'p') AND NOT EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = name AND NOT attisdropped
    )
"""

POSTGRESQL_VISIBLE_TABLES = f"""
    SELECT json_build_object(
        'everywhere', (
            SELECT COALESCE(json_agg(json_build_array(
                nspname, ({_VERSION_OF.format(table=TABLE)}), ({_VERSION_OF.format(table=DONE)}),
                ({_VERSION_OF_FUNCTIONS}), ({_LACKS})
            ) ORDER BY nspname), '[]')
            FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE relname = '{TABLE}' AND relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname !~ '^pg_(temp|toast)'
        ),
        'path', current_schemas(false)
    )::text
"""
"""One row with one column of JSON, for :func:`read_visible_tables`. It needs no privilege."""


class Versions(NamedTuple):
    """The versions in one schema, as the catalog has them. "": it tells none. None: there is no such thing.

    Args:
        marks: of the mark table.
        done: of the table of what was done once.
        functions: of the functions that enforce.
        lacks: the columns of the mark table that are not there.
    """

    marks: str | None
    done: str | None
    functions: str | None = None
    lacks: Sequence[str] = ()


class VisibleTables(NamedTuple):
    """The mark tables that a connection can see.

    Args:
        everywhere: the schemas of this database that have a mark table, with the versions there.
        path: the schemas in which a name without a schema is looked up, in this order.
    """

    everywhere: Mapping[str, Versions]
    path: tuple[str, ...]


def read_visible_tables(text: str) -> VisibleTables:
    """Return the answer to POSTGRESQL_VISIBLE_TABLES as a value."""
    found = json.loads(text)
    everywhere = {schema: Versions(*versions) for schema, *versions in found["everywhere"]}
    return VisibleTables(everywhere, tuple(found["path"] or ()))


def check_schema(schema: object) -> str | None:
    """Return the schema's name. Raise TypeError or ValueError where it is none."""
    if schema is None:
        return None
    if not isinstance(schema, str):
        raise TypeError(f"schema is a str, not {type(schema).__name__}")
    if not schema.strip() or _UNUSUAL.search(schema):
        raise ValueError("schema is the plain name of a schema: it is not empty, and has no quotes, no \\ % : { }")
    if schema.lower() in ("temp", "information_schema") or schema.lower().startswith("pg_"):
        raise ValueError(f"the schema {schema} is of one connection, or of the database itself: name one of your own")
    return schema


class Choice:
    """The choice of a mark table, for one guard.

    Args:
        database: its kind.
        named: the schema that the caller named, or None.
        missing: what to do where there is no table yet.
    """

    def __init__(
        self, database: DatabaseName, named: str | None, missing: str = "call guard.create_tables() once"
    ) -> None:
        self.database = database
        self.named = named
        self._missing = missing

    def of(self, visible: VisibleTables) -> str:
        """Return the schema of the guard's table. Raise GuardNotEnforceable where there is none, or no clear one, or
        one of another version."""
        schema = self.find(visible)
        if schema is None:
            where = "" if self.named is None else f" in the schema {self.named}"
            raise GuardNotEnforceable(f"the table {TABLE} is missing{where}: {self._missing}")
        self._check_tables(schema, visible.everywhere[schema])
        functions = visible.everywhere[schema].functions
        if functions is not None and functions != str(VERSION):
            raise GuardNotEnforceable(
                f"the functions of {schema} that enforce the check are {_made_by(functions)}: "
                f"{_UPGRADE if functions else 'call guard.enforce() again for each table, as the owner'}; nothing "
                f"was written"
            )
        return schema

    def home(self, schema: str) -> str:
        """Return the schema as SQL."""
        return quoted(schema, mark="`" if self.database == "mysql" else '"')

    def _check_tables(self, schema: str, versions: Versions) -> None:
        """Raise GuardNotEnforceable where a table is of another version."""
        if versions.marks is None:
            raise GuardNotEnforceable(
                f"{schema}.{TABLE} is no plain table: a view, or a table of another server, tells no version. Use the "
                f"table itself; nothing was written"
            )
        statements = self.to_bring_up_to_date(schema, versions)
        if versions.lacks:
            raise GuardNotEnforceable(
                f"the table {schema}.{TABLE} is {_made_by('')}: as its owner, execute these statements one after the "
                f"other (docs/guards/databases.md, earlier tables); nothing was written. {'; '.join(statements)}"
            )

    def to_bring_up_to_date(self, schema: str, versions: Versions) -> list[str]:
        """Return the statements that are left to do with tables of an earlier program. None are, where they are of
        this version.

        Raises:
            GuardNotEnforceable: one is of a newer version.
        """
        for table, version in ((TABLE, versions.marks), (DONE, versions.done)):
            if version == "" and not (table == TABLE and versions.lacks):
                raise GuardNotEnforceable(
                    f"the column version of {schema}.{table} has no default, which tells the version: make the table "
                    f"as create_tables() does; nothing was written"
                )
            if version and version != str(VERSION):
                raise GuardNotEnforceable(
                    f"the table {schema}.{table} is {_made_by(version)}: {_UPGRADE}; nothing was written"
                )
        home = self.home(schema)
        return bring_up_to_date(home, self.database, versions.lacks, lacks_done=versions.done is None)

    def to_create(self, visible: VisibleTables) -> str | None:
        """Return the schema in which tables must be created. None: they are there already.

        Raises:
            GuardNotEnforceable: there would be two mark tables, or there is one of another version.
        """
        schema = self.find(visible)
        if schema is not None:
            self._check_tables(schema, visible.everywhere[schema])
            return None
        if self.named is not None:
            return self.named
        if not visible.path:
            raise GuardNotEnforceable(f"the connection has no schema to create {TABLE} in: pass schema= to the guard")
        check_found(visible.path[0])
        return visible.path[0]

    def find(self, visible: VisibleTables) -> str | None:
        """Return the schema of the guard's table, whatever its version. None: there is none.

        Raises:
            GuardNotEnforceable: the choice is not clear.
        """
        if self.named is not None:
            others = [schema for schema in visible.path if schema in visible.everywhere and schema != self.named]
            if others and self.named not in visible.everywhere:
                raise GuardNotEnforceable(
                    f"there is no table {TABLE} in the schema {self.named}, or no such schema, and {others[0]}.{TABLE} "
                    f"is visible to it too: name that one with schema=, or, for other data, remove its schema from the "
                    f"search_path and create the tables"
                )
            if others:
                raise GuardNotEnforceable(
                    f"this guard uses {self.named}.{TABLE}, but {others[0]}.{TABLE} is visible to it too, and with two "
                    f"mark tables for the same data updates are lost: name the right one with schema=, and drop the "
                    f"other one or remove its schema from the search_path"
                )
            return self.named if self.named in visible.everywhere else None
        if not visible.everywhere:
            return None
        if len(visible.everywhere) > 1:
            raise GuardNotEnforceable(
                f"there are several mark tables here ({_listed(visible.everywhere)}), and with two for the same data "
                f"updates are lost: drop those that are not used, or name the right one with schema= at every guard"
            )
        schema = next(iter(visible.everywhere))
        if schema not in visible.path:
            raise GuardNotEnforceable(
                f"the mark table is {schema}.{TABLE}, and this connection's search_path does not lead to it: pass "
                f'schema="{schema}" to the guard, or another schema if these are other data'
            )
        return check_found(schema)


def check_found(schema: str) -> str:
    """Return the name of a schema that was found. Raise GuardNotEnforceable where the guard cannot write it."""
    if _UNUSUAL.search(schema):
        raise GuardNotEnforceable(f"the schema {schema!r} of {TABLE} has an unusual name: rename it")
    return schema


def other_mark_tables(visible: VisibleTables, schema: str) -> list[str]:
    """Return the names of the other mark tables."""
    return [f"{other}.{TABLE}" for other in visible.everywhere if other != schema]


_UPGRADE = "upgrade this library"


def _made_by(version: str) -> str:
    return f"of version {version}, and this library knows {VERSION}" if version else "of an earlier program"


def _listed(schemas: Iterable[str]) -> str:
    return ", ".join(f"{schema}.{TABLE}" for schema in schemas)


def quoted(*names: str, mark: str = '"') -> str:
    """Return names of the kind that :func:`check_schema` admits as one SQL identifier."""
    return ".".join(f"{mark}{name}{mark}" for name in names)

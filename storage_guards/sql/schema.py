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
from typing import NamedTuple

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sql.outcome import TABLE

_UNUSUAL = re.compile(r"""["'`\\%:{}\x00-\x1f\x7f]""")

POSTGRESQL_VISIBLE_TABLES = f"""
    SELECT json_build_object(
        'everywhere', (
            SELECT COALESCE(json_agg(nspname ORDER BY nspname), '[]')
            FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE relname = '{TABLE}' AND relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname !~ '^pg_(temp|toast)'
        ),
        'path', current_schemas(false)
    )::text
"""
"""One row with one column of JSON, for :func:`read_visible_tables`. It needs no privilege."""


class VisibleTables(NamedTuple):
    """The mark tables that a connection can see.

    Args:
        everywhere: the schemas of this database that have a mark table.
        path: the schemas in which a name without a schema is looked up, in this order.
    """

    everywhere: tuple[str, ...]
    path: tuple[str, ...]


def read_visible_tables(text: str) -> VisibleTables:
    """Return the answer to POSTGRESQL_VISIBLE_TABLES as a value."""
    found = json.loads(text)
    return VisibleTables(tuple(found["everywhere"]), tuple(found["path"] or ()))


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
        named: the schema that the caller named, or None.
        missing: what to do where there is no table yet.
    """

    def __init__(self, named: str | None, missing: str = "call guard.create_tables() once") -> None:
        self.named = named
        self._missing = missing

    def of(self, visible: VisibleTables) -> str:
        """Return the schema of the guard's table. Raise GuardNotEnforceable where there is none, or no clear one."""
        schema = self._of(visible)
        if schema is None:
            where = "" if self.named is None else f" in the schema {self.named}"
            raise GuardNotEnforceable(f"the table {TABLE} is missing{where}: {self._missing}")
        return schema

    def to_create(self, visible: VisibleTables) -> str | None:
        """Return the schema in which the table must be created. None: it is there already.

        Raises:
            GuardNotEnforceable: there would be two mark tables.
        """
        if self._of(visible) is not None:
            return None
        if self.named is not None:
            return self.named
        if not visible.path:
            raise GuardNotEnforceable(f"the connection has no schema to create {TABLE} in: pass schema= to the guard")
        check_found(visible.path[0])
        return visible.path[0]

    def _of(self, visible: VisibleTables) -> str | None:
        if self.named is not None:
            others = [schema for schema in visible.path if schema in visible.everywhere and schema != self.named]
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
        [schema] = visible.everywhere
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


def _listed(schemas: tuple[str, ...]) -> str:
    return ", ".join(f"{schema}.{TABLE}" for schema in schemas)


def quoted(*names: str, mark: str = '"') -> str:
    """Return names of the kind that :func:`check_schema` admits as one SQL identifier."""
    return ".".join(f"{mark}{name}{mark}" for name in names)

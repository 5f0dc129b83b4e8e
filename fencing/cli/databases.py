"""What guards keep in SQL databases: ``fencing marks``, ``verify``, ``prune``, ``enforce`` and the like."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from fencing import GuardNotEnforceable, __version__
from fencing.cli import status
from fencing.cli.display import progress, say_rows, seconds_of, shown, stamp, url_of
from fencing.cli.files import require_file
from fencing.cli.options import check_age, check_key, check_schema
from fencing.cli.output import say, say_json
from fencing.cli.words import of_commands
from fencing.locks.urls import redacted, scheme_of

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Of the database: postgresql://user@host/database. - reads it from stdin.")
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="SCHEMA", callback=check_schema, help="Of the mark table, where there are several."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON, for programs: docs/operations/command-line.md")]
Table = Annotated[str, typer.Argument(metavar="TABLE", help="As in SQL: orders, shop.orders.")]


class Owner(StrEnum):
    """Whose tables."""

    LOCKS = "locks"
    MARKS = "marks"


def marks(
    url: Url,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="* stands for any characters, ? for one: 'orders:*'.")
    ] = "*",
    schema: Schema = None,
    json: Json = False,
) -> int:
    """List the marks: the newest fence claimed for each name."""
    found = _guard_of(url, schema).marks(pattern)
    if json:
        say_json(
            [
                {
                    "name": each.resource,
                    "number": each.mark.number,
                    "seq": each.mark.seq,
                    "readers": each.mark.readers,
                    "claimed_at": stamp(each.claimed_at),
                }
                for each in found
            ]
        )
    else:
        say_rows(
            ("NAME", "NUMBER", "WRITES", "CLAIMED"),
            ((each.resource, each.mark.number, each.mark.seq, stamp(each.claimed_at)) for each in found),
        )
    return 0


def verify(url: Url, schema: Schema = None, json: Json = False) -> int:
    """Look for what breaks or weakens the guards of a database. Status 2: there is something to change."""
    try:
        guard = _guard_of(url, schema)
        with progress("looking at the database"):
            report = guard.verify()
    except GuardNotEnforceable as error:
        if json:
            say_json({"database": None, "table": None, "refused": of_commands(str(error)), "findings": []})
        else:
            say(f"safety: {of_commands(str(error))}")
        return status.FOUND_WRONG
    if json:
        findings = [
            {"threatens": f.threatens, "problem": f.problem, "change": of_commands(f.change)} for f in report.findings
        ]
        say_json({"database": report.database, "table": report.table, "refused": None, "findings": findings})
    else:
        say(of_commands(str(report)) if report.findings else f"{report}: nothing to change")
    return status.FOUND_WRONG if report.findings else 0


def prune(
    url: Url,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            callback=check_age,
            help="Delete marks not claimed for so long: 90d, 12h. Longer than any lease.",
        ),
    ] = None,
    below: Annotated[int | None, typer.Option(metavar="NUMBER", help="Delete marks with a lower number.")] = None,
    done: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of marks, what was done once under this lock.")
    ] = None,
    below_key: Annotated[
        str | None, typer.Option(metavar="KEY", callback=check_key, help="With --done: delete lower keys.")
    ] = None,
    schema: Schema = None,
    json: Json = False,
) -> int:
    """Delete old marks, or old keys of what was done once.

    Every fence that is older than a deleted mark is shut out instead.
    """
    if (done is None) != (below_key is None):
        raise typer.BadParameter("--done NAME and --below-key KEY go together")
    if (done is None) == (older_than is None and below is None):
        raise typer.BadParameter("pass --older-than AGE or --below NUMBER, or both; or --done NAME with --below-key")
    age = None if older_than is None else seconds_of(older_than)
    guard = _guard_of(url, schema)
    with progress("pruning"):
        if done is not None and below_key is not None:
            count = guard.prune_done(done, below=below_key)
        else:
            count = guard.prune(below=below, older_than=age)
    if json:
        say_json({"deleted": count})
    else:
        say(f"{'marks' if done is None else 'keys'} deleted: {count}")
    return 0


def enforce(
    url: Url,
    table: Table,
    resource: Annotated[
        str, typer.Option(metavar="SQL", help="The name of a row's lock, from its columns: \"'orders:' || id\".")
    ],
    role: Annotated[str, typer.Option(metavar="ROLE", help="The role of the application.")],
    show: Annotated[bool, typer.Option("--print", help="Print the statement, and change nothing.")] = False,
    schema: Schema = None,
) -> int:
    """Make PostgreSQL refuse writes without a guard's check.

    Each write of the table by the role is refused. Connect as the owner of the table.
    """
    guard = _guard_of(url, schema)
    if show:
        say(f"{guard.enforcement_sql(table, resource=resource, role=role)};")
        return 0
    with progress(f"enforcing {table}"):
        was_enforced = _is_enforced(guard, table)
        guard.enforce(table, resource=resource, role=role)
    again = "; it was enforced already, and this was done again" if was_enforced else ""
    say(f"{shown(table)} refuses each write of {shown(role)} that has not passed a guard's check{again}")
    return 0


def unenforce(url: Url, table: Table, schema: Schema = None) -> int:
    """Let a table be written without a guard's check again. Connect as the owner of the table."""
    guard = _guard_of(url, schema)
    with progress(f"no longer enforcing {table}"):
        was_enforced = _is_enforced(guard, table)
        guard.unenforce(table)
    if was_enforced:
        say(f"{shown(table)} is written without a guard's check again")
    else:
        say(f"nothing was enforced on {shown(table)}, and nothing was changed")
    return 0


def create_tables(
    url: Url,
    only: Annotated[
        Owner | None, typer.Option(metavar="locks|marks", help="Of locks in this database, or the marks of its guards.")
    ] = None,
    schema: Schema = None,
) -> int:
    """Create the tables of locks and of marks.

    Those that are there stay as they are, so it may be repeated. --only makes one part.
    """
    from fencing import SQLCoordinator
    from fencing.sql.urls import engine_of

    engine = engine_of(_checked(url), asynchronous=False)
    if only != Owner.MARKS:
        with SQLCoordinator(engine, schema=schema) as coordinator:
            coordinator.create_tables()
        say("locks: the table fencing_locks is there")
    if only != Owner.LOCKS:
        from storage_guards import SQLAlchemyGuard

        SQLAlchemyGuard(engine, schema=schema).create_tables()
        say("marks: the tables fencing_marks and fencing_done are there")
    return 0


def sql(
    target: Annotated[
        str, typer.Argument(metavar="URL|postgresql", help="A database, whose mark table is looked up; or postgresql.")
    ],
    schema: Schema = None,
) -> int:
    """Print SQL functions for scripts of psql under fencing run.

    They are fencing_claim(text) and fencing_check(text).
    """
    from storage_guards.sql.text_functions import functions_of_texts

    made_by = f"Made by fencing {__version__}"
    if target in ("postgresql", "postgres"):
        found = schema or "public"
        say(functions_of_texts(found, is_named=schema is not None, made_by=made_by))
        return 0
    url = url_of(target) if "://" in target or target == "-" else target
    if "://" not in url or scheme_of(url).partition("+")[0] not in ("postgresql", "postgres"):
        raise ValueError(
            f"{redacted(url)!r:.200} is not PostgreSQL, which alone has these functions: write to other databases "
            f"through a guard"
        )
    guard = _guard_of(url, schema)
    say(functions_of_texts(_schema_of(guard), is_named=True, made_by=made_by))
    return 0


def _checked(text: str) -> str:
    from storage_guards.sql.table import TYPES

    url = url_of(text)
    kind = scheme_of(url).partition("+")[0]
    if kind not in (*TYPES, "postgres", "mariadb"):
        raise ValueError(
            f"{redacted(url)!r:.200} is no SQL database; their schemes are postgresql, mysql, mariadb, sqlite"
        )
    return url


def _guard_of(text: str, schema: str | None) -> Any:
    from sqlalchemy import NullPool

    from fencing.sql.urls import engine_of
    from storage_guards import SQLAlchemyGuard

    url = _checked(text)
    require_file(url, "'fencing create-tables URL' makes it")
    # No connection is left open when the command ends.
    guard = SQLAlchemyGuard(engine_of(url, asynchronous=False, poolclass=NullPool), schema=schema)
    if schema is not None:
        _require_schema(guard, schema)
    return guard


def _require_schema(guard: Any, schema: str) -> None:
    """Raise GuardNotEnforceable where a schema that the command line names has no mark table."""
    found = _ask(guard, guard._marks._visible_tables).everywhere
    if schema not in found:
        there = f"the schemas with one: {', '.join(map(shown, found))}" if found else "no schema here has one"
        raise GuardNotEnforceable(
            f"there is no table fencing_marks in the schema {schema}, or no such schema; {there}. Correct --schema, or "
            f"call 'fencing create-tables URL --schema {schema}'"
        )


def _is_enforced(guard: Any, table: str) -> bool:
    from storage_guards.sql.enforcement import question_whether_enforced

    if guard._marks.database != "postgresql":
        return False  # what it does next says why
    question = question_whether_enforced(table)
    options = {"no_parameters": True}
    return bool(
        _ask(guard, lambda connection: connection.exec_driver_sql(question, execution_options=options).scalar())
    )


def _ask(guard: Any, ask: Callable[[Any], Any]) -> Any:
    """Ask something in a transaction of its own, whether there is a mark table or not."""
    from storage_guards.sql.base import Operation

    def inside(connection: Any) -> Any:
        with guard._marks.transaction(connection, guard._timeout):
            return ask(connection)

    return guard._operate(Operation(guard._errors(), inside))


def _schema_of(guard: Any) -> str:
    """Return the schema of the mark table."""
    return str(_ask(guard, lambda connection: guard._marks.locate(connection).schema))

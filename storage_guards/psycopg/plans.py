"""What ``wire`` asks PostgreSQL besides the plans of ``sql/plans.py``: where the marks are, and the set-up."""

from __future__ import annotations

from typing import TypeVar

from psycopg.abc import PQGen

from storage_guards.psycopg.statements import ROLLBACK, AnyConnection, MarkAccess, opening_of
from storage_guards.psycopg.wire import all_rows, ask, perform
from storage_guards.sql.plans import Plan, plan_facts
from storage_guards.sql.schema import POSTGRESQL_VISIBLE_TABLES, read_visible_tables
from storage_guards.sql.verify import VerifyReport, assess_postgresql

T = TypeVar("T")


def locate(connection: AnyConnection, access: MarkAccess, seconds: float) -> PQGen[None]:
    """Look up the mark table's schema, on an idle connection. It takes one round trip, once for each guard."""
    opening, _ = opening_of(connection, seconds, idle=False)
    results = yield from ask(connection, [opening, POSTGRESQL_VISIBLE_TABLES, ROLLBACK])
    _choose(access, all_rows(connection, results[-2])[0][0])


def locate_here(connection: AnyConnection, access: MarkAccess) -> PQGen[None]:
    """Look up the mark table's schema, in the connection's transaction or outside any."""
    [visible] = yield from ask(connection, [POSTGRESQL_VISIBLE_TABLES])
    _choose(access, all_rows(connection, visible)[0][0])


def _choose(access: MarkAccess, visible: str | None) -> None:
    access.locate(access.choice.of(read_visible_tables(visible or "")))


def located(connection: AnyConnection, access: MarkAccess, plan: Plan[T], seconds: float) -> PQGen[T]:
    """Perform a plan of ``sql/plans.py`` where the mark table must be there. The connection is idle."""
    if access.located is None:
        yield from locate(connection, access, seconds)
    return (yield from perform(connection, access, plan, seconds))


def verify(connection: AnyConnection, access: MarkAccess, seconds: float) -> PQGen[VerifyReport]:
    """Ask for the facts, and assess them."""
    schema, facts = yield from perform(connection, access, plan_facts(access.choice), seconds)
    info = connection.info
    parameters = None if info.host.startswith("/") else info.get_parameters()
    return assess_postgresql(facts, schema, pid=info.backend_pid, parameters=parameters)


def execute(connection: AnyConnection, statement: str, question: str, seconds: float) -> PQGen[list[str]]:
    """Execute one statement in a transaction of its own, and return the texts that answer the question."""
    opening, _ = opening_of(connection, seconds, idle=False)
    results = yield from ask(connection, [opening, statement, question, "COMMIT"])
    return [row[0] or "" for row in all_rows(connection, results[-2])]

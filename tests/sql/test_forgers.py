"""Roles that can change marks although the database enforces: ``enforce`` logs them, and ``verify`` reports them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from tests.support.enforced import Roles, dsn, two_roles
from tests.support.sides import Side, close_engine

RESOURCE = "'orders:' || id"


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    with two_roles(postgres_url) as roles:
        roles.owners_guard().create_tables()
        with roles.as_owner() as owner:
            owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
            owner.execute("INSERT INTO orders VALUES (1, 0)")
        yield roles


@pytest.fixture(params=["WITH INHERIT TRUE", "WITH INHERIT FALSE"])
def forger(request: pytest.FixtureRequest, roles: Roles) -> Iterator[str]:
    """A role that nobody named, with the right by a predefined role: at once, or after SET ROLE."""
    name = roles.owner.replace("_owner", "_load")
    grant = request.param
    with roles.as_admin() as admin:
        if admin.info.server_version < 160000:
            grant = ""
        admin.execute(SQL("CREATE ROLE {} LOGIN").format(Identifier(name)))
        admin.execute(SQL(f"GRANT pg_write_all_data TO {{}} {grant}").format(Identifier(name)))
        yield name
        admin.execute(SQL("DROP ROLE {}").format(Identifier(name)))


@pytest.fixture(params=["psycopg", "sqlalchemy"])
def guard(request: pytest.FixtureRequest, side: Side, roles: Roles) -> Iterator[Any]:
    if request.param == "psycopg":
        yield (AsyncPsycopgGuard if side.asynchronous else PsycopgGuard)(dsn(roles.owner_url))
        return
    engine: Any = (create_async_engine if side.asynchronous else create_engine)(roles.owner_url)
    yield (AsyncSQLAlchemyGuard if side.asynchronous else SQLAlchemyGuard)(engine)
    close_engine(side, engine)


def test_they_are_told(side: Side, roles: Roles, guard: Any, forger: str, caplog: pytest.LogCaptureFixture) -> None:
    assert forger not in str(side.call(guard.verify))  # nothing is enforced yet
    with caplog.at_level(logging.WARNING, "fencing"):
        side.call(guard.enforce, "orders", resource=RESOURCE, role=roles.app)
    [said] = [record.getMessage() for record in caplog.records if "forge" in record.getMessage()]
    assert f"can forge a mark and pass the check: {forger}; revoke" in said
    report = str(side.call(guard.verify))
    assert f"the role {forger} may change fencing_marks directly, so it can forge a mark and pass the check" in report
    assert roles.app not in report
    assert roles.owner not in report
    with roles.as_admin() as admin:
        admin.execute(SQL("REVOKE pg_write_all_data FROM {}").format(Identifier(forger)))
    caplog.clear()
    side.call(guard.enforce, "orders", resource=RESOURCE, role=roles.app)
    assert "forge" not in caplog.text
    assert forger not in str(side.call(guard.verify))


def test_what_a_forger_can_do(roles: Roles, forger: str) -> None:
    """The reason for the warning: it passes the check without a claim."""
    roles.owners_guard().enforce("orders", resource=RESOURCE, role=roles.app)
    notices: list[str] = []
    with roles.as_owner() as owner:
        owner.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        owner.execute(roles.owners_guard().enforcement_sql("orders", resource=RESOURCE, role=roles.app))
    assert any(f"the role {forger} may change public.fencing_marks directly" in notice for notice in notices)
    with roles.as_admin() as admin, admin.transaction():
        admin.execute(SQL("SET LOCAL ROLE {}").format(Identifier(forger)))
        admin.execute("SET LOCAL ROLE pg_write_all_data")
        admin.execute(
            "INSERT INTO fencing_marks (resource, number, token, seq, xact) "
            "VALUES ('orders:2', 1, 'x', 1, pg_current_xact_id())"
        )
        admin.execute("INSERT INTO orders VALUES (2, 0)")


def test_the_named_role_after_set_role(roles: Roles) -> None:
    """A membership that is not inherited is refused, too."""
    with roles.as_admin() as admin:
        grant = "GRANT pg_write_all_data TO {} WITH INHERIT FALSE"
        if admin.info.server_version < 160000:
            pytest.skip("since PostgreSQL 16")
        admin.execute(SQL(grant).format(Identifier(roles.app)))
        with pytest.raises(psycopg.errors.RaiseException, match="may still change"):
            admin.execute(roles.owners_guard().enforcement_sql("orders", resource=RESOURCE, role=roles.app))
        admin.execute(SQL("REVOKE pg_write_all_data FROM {}").format(Identifier(roles.app)))

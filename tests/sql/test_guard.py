"""What the SQL guards refuse before they reach a server, and that their statements are the kernel's rule, on SQLite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, literal, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable, StaleFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from fencing.sql import client
from storage_guards import AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.sql.plans import plan_check, plan_claim
from storage_guards.sqlalchemy.sqlite import SQLiteMarks
from tests.support.small_world import FENCES, RESOURCE, TOKENS, WORLDS, World, outcome, set_world


def fence(number: int, token: str = TOKENS[0]) -> Fence:
    return Fence(RESOURCE, number, token)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/data.db")
    yield engine
    engine.dispose()


@pytest.fixture
def guard(engine: Engine) -> SQLAlchemyGuard:
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    return guard


# The statements against the rule: every mark, floor and fence of a small world


def test_the_statements_are_the_admission_rule(engine: Engine, guard: SQLAlchemyGuard) -> None:
    statements = SQLiteMarks()
    for world, mine in itertools.product(WORLDS, FENCES):
        with engine.connect() as connection:
            set_world(connection, world)
            claim, check = plan_claim([mine], 0), plan_check([mine])
            claimed = outcome(lambda c=connection, p=claim: statements.perform(c, p) and statements.read(c, RESOURCE))
            assert claimed == world.claimed(mine), (world, mine)
            if isinstance(claimed, tuple):
                assert statements.read(connection, RESOURCE) == world.mark
            set_world(connection, world)
            checked = outcome(lambda c=connection, p=check: statements.perform(c, p) and statements.read(c, RESOURCE))
            assert checked == world.checked(mine), (world, mine)


def test_a_pruned_mark_leaves_its_floor(engine: Engine, guard: SQLAlchemyGuard) -> None:
    with engine.begin() as connection:
        set_world(connection, World(None, 7))
    with pytest.raises(StaleFence) as refused:
        guard.claim(fence(7))
    assert (refused.value.mark, refused.value.floor) == (None, 7)
    with pytest.raises(StaleFence), guard.begin(fence(7), claim=True):
        pass
    assert guard.mark(RESOURCE) is None
    guard.claim(fence(8))


@pytest.mark.parametrize("number", [0, -1, MAX_NUMBER + 1, "7", "x", 1.5])
def test_the_table_refuses_impossible_numbers(engine: Engine, guard: SQLAlchemyGuard, number: Any) -> None:
    values = {"number": number, "token": TOKENS[0]}
    insert = text("INSERT INTO fencing_marks (resource, number, token, seq) VALUES ('r', :number, :token, 0)")
    if number == "7":  # column affinity makes an integer of it
        with engine.begin() as connection:
            connection.execute(insert, values)
        assert guard.mark("r") == Mark(7, TOKENS[0], 0)
    else:
        with pytest.raises(IntegrityError), engine.begin() as connection:
            connection.execute(insert, values)


# Misuse


def test_a_sync_engine_is_refused_by_the_async_guard_and_the_reverse(engine: Engine, tmp_path: Path) -> None:
    asynchronous = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/data.db")
    with pytest.raises(TypeError, match="AsyncSQLAlchemyGuard"):
        SQLAlchemyGuard(asynchronous)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="use SQLAlchemyGuard"):
        AsyncSQLAlchemyGuard(engine)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AsyncSQLAlchemyGuard"):
        SQLAlchemyGuard(asynchronous.sync_engine)
    for kind in (SQLAlchemyGuard, AsyncSQLAlchemyGuard):
        with pytest.raises(TypeError, match="str"):
            kind("sqlite://")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [True, None, "5"])
def test_a_timeout_is_a_number(engine: Engine, timeout: Any) -> None:
    with pytest.raises(TypeError):
        SQLAlchemyGuard(engine, timeout=timeout)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_finite_and_above_zero(engine: Engine, timeout: float) -> None:
    with pytest.raises(ValueError):
        SQLAlchemyGuard(engine, timeout=timeout)


def test_an_unproved_database_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.dialect, "driver", "pysqlcipher")
    with pytest.raises(GuardNotEnforceable, match="postgresql\\+psycopg"):
        SQLAlchemyGuard(engine)


def test_a_sqlite_without_returning_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.dialect.dbapi is not None
    monkeypatch.setattr(engine.dialect.dbapi, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(GuardNotEnforceable, match=r"3\.35"):
        SQLAlchemyGuard(engine)


def test_a_pool_that_shares_its_connection_is_refused() -> None:
    with pytest.raises(GuardNotEnforceable, match="share one connection"):
        SQLAlchemyGuard(create_engine("sqlite://"))
    with pytest.raises(GuardNotEnforceable, match="share one connection"):
        AsyncSQLAlchemyGuard(create_async_engine("sqlite+aiosqlite://"))


def test_write_takes_statements_that_write(guard: SQLAlchemyGuard) -> None:
    with pytest.raises(TypeError, match=r"text\(\)"):
        guard.write(fence(1), "DELETE FROM orders")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SELECT"):
        guard.write(fence(1), select(literal(1)))
    for words in ("SELECT 1", " \n( select 1)"):  # it would be counted as a write of one row
        with pytest.raises(ValueError, match=r"write takes no SELECT; read inside begin\(\)"):
            guard.write(fence(1), text(words))
        with pytest.raises(ValueError, match="write takes no SELECT"):
            PsycopgGuard("postgresql://127.0.0.1:1/none").write(fence(1), words)
    assert guard.mark(RESOURCE) is None


def test_write_returns_the_row_count(engine: Engine, guard: SQLAlchemyGuard) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)"))
    guard.claim(fence(1))
    rows = [{"id": number} for number in range(5)]
    assert guard.write(fence(1), text("INSERT INTO orders VALUES (:id, 0)"), rows) == 5
    assert guard.write(fence(1), text("UPDATE orders SET total = 1 WHERE id < 3")) == 3
    assert guard.write(fence(1), text("UPDATE orders SET total = 2 WHERE id < 2 RETURNING id")) == 2
    assert guard.write(fence(1), text("DELETE FROM orders WHERE id = :id"), {"id": 77}) == 0


def test_advance_takes_connections_and_sessions_of_its_own_side(engine: Engine, guard: SQLAlchemyGuard) -> None:
    with pytest.raises(TypeError, match="Engine"):
        guard.advance(engine, fence(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="at least one"), Session(engine) as session:
        guard.advance(session)


def test_names_that_do_not_exist_are_attribute_errors() -> None:
    import storage_guards

    assert "SQLAlchemyGuard" in dir(storage_guards)
    with pytest.raises(AttributeError, match="PickleGuard"):
        storage_guards.PickleGuard  # noqa: B018


def test_an_interruption_while_the_bound_is_set_leaves_no_changed_connection(
    engine: Engine, guard: SQLAlchemyGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cancelled statement of aiosqlite, which its thread runs all the same."""
    original = client.ask

    def interrupted(connection: Connection, statement: str) -> Any:
        answer = original(connection, statement)
        if "=" in statement:
            raise KeyboardInterrupt
        return answer

    def busy_timeout() -> Any:
        with engine.connect() as connection:
            return connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()

    before = busy_timeout()
    with monkeypatch.context() as patched:
        patched.setattr(client, "ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            guard.claim(fence(5))
    assert busy_timeout() == before


def test_swapped_arguments(guard: SQLAlchemyGuard) -> None:
    swapped: Any = (text("DELETE FROM orders"), fence(5))
    with pytest.raises(TypeError, match="not Fence; the lease comes first"):
        guard.write(*swapped)


def test_a_database_that_is_not_there() -> None:
    engine = create_engine("postgresql+psycopg://localhost:1/x")
    with pytest.raises(GuardUnavailable, match="is it running, and is its address right"):
        SQLAlchemyGuard(engine).claim(fence(5))
    engine.dispose()

"""``advance``: the check in a transaction of the caller's own, with an ORM session or a plain connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, StaleFence, UnclaimedFence
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.sql_ways import Way, WayLender, asyncio_url

MINE = Fence("orders:1", 5, "a" * 22)
NEWER = Fence("orders:1", 6, "b" * 22)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


@pytest.fixture(params=["psycopg", "pymysql", "sqlite"])
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


@pytest.fixture
def url(way: Way) -> str:
    return way.url


@pytest.fixture
def engine(way: Way) -> Engine:
    return way.outside


@pytest.fixture
def guard(engine: Engine) -> SQLAlchemyGuard:
    return SQLAlchemyGuard(engine, timeout=1.0)


def total(engine: Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT total FROM orders")).scalar_one()


def add_elsewhere(engine: Engine, amount: int) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE orders SET total = total + :amount"), {"amount": amount})


def test_objects_read_before_the_claim_are_read_again(engine: Engine, guard: SQLAlchemyGuard) -> None:
    """The identity map would return what it has seen; a write from it would undo the other's."""
    with Session(engine, expire_on_commit=False) as session:
        order = session.get_one(Order, 1)
        session.commit()
        add_elsewhere(engine, 10)
        guard.claim(MINE)
        guard.advance(session, MINE)
        assert order.total == 10
        order.total += 1
        session.commit()
    assert total(engine) == 11


@pytest.mark.thorough
def test_it_checks_and_locks_and_never_commits(engine: Engine, guard: SQLAlchemyGuard) -> None:
    guard.claim(MINE)
    with engine.connect() as connection:
        patient = SQLAlchemyGuard(engine, timeout=30)  # because the connection stands still while the other one waits
        patient.advance(connection, MINE)
        connection.execute(text("UPDATE orders SET total = 7"))
        with pytest.raises(GuardUnavailable):
            guard.claim(NEWER, timeout=0.05)
        connection.rollback()
    assert total(engine) == 0
    mark = guard.mark("orders:1")
    assert mark is not None
    assert mark.seq == 0
    with engine.begin() as connection:
        guard.advance(connection, MINE)
        connection.execute(text("UPDATE orders SET total = 7"))
    assert total(engine) == 7


def test_a_connection_that_has_begun_nothing(engine: Engine, guard: SQLAlchemyGuard) -> None:
    """The transaction that the check begins is SQLAlchemy's, and ends when the caller says so."""
    guard.claim(MINE)
    with engine.connect() as connection:
        guard.advance(connection, MINE)
        assert connection.in_transaction()
        connection.rollback()
        guard.claim(NEWER)
        with pytest.raises(StaleFence):
            guard.advance(connection, MINE)
        connection.rollback()
        guard.advance(connection, NEWER)
        connection.execute(text("UPDATE orders SET total = 7"))
        connection.commit()
    assert total(engine) == 7


@pytest.mark.thorough
def test_after_a_check_that_failed(engine: Engine, guard: SQLAlchemyGuard) -> None:
    guard.claim(MINE)
    with engine.connect() as connection:
        with engine.connect() as other:
            other.execute(text("UPDATE fencing_marks SET seq = seq"))
            with pytest.raises(GuardUnavailable):
                guard.advance(connection, MINE)
        connection.rollback()
        guard.advance(connection, MINE)


def test_a_connection_of_another_driver(postgres_url: str) -> None:
    with_psycopg = create_engine(postgres_url)
    SQLAlchemyGuard(with_psycopg).create_tables()
    SQLAlchemyGuard(with_psycopg).claim(MINE)

    async def scenario() -> None:
        guards_own, other = create_async_engine(postgres_url), create_async_engine(with_asyncpg)
        async_guard = AsyncSQLAlchemyGuard(guards_own)
        async with other.begin() as connection:
            await async_guard.advance(connection, MINE)
        await guards_own.dispose()
        await other.dispose()

    with_asyncpg = postgres_url.replace("+psycopg", "+asyncpg")
    asyncio.run(scenario())
    mark = SQLAlchemyGuard(with_psycopg).mark("orders:1")
    assert mark is not None
    assert mark.seq == 1
    with_psycopg.dispose()


def test_the_rule_is_the_same(engine: Engine, guard: SQLAlchemyGuard) -> None:
    with engine.begin() as connection, pytest.raises(UnclaimedFence):
        guard.advance(connection, MINE)
    guard.claim(NEWER)
    with Session(engine) as session, pytest.raises(StaleFence):
        guard.advance(session, MINE)


def test_a_nested_transaction_is_refused(engine: Engine, guard: SQLAlchemyGuard) -> None:
    guard.claim(MINE)
    with engine.begin() as connection, connection.begin_nested(), pytest.raises(ValueError, match="savepoint"):
        guard.advance(connection, MINE)
    with (
        Session(engine) as session,
        session.begin(),
        session.begin_nested(),
        pytest.raises(ValueError, match="savepoint"),
    ):
        guard.advance(session, MINE)
    with engine.begin() as connection, connection.begin_nested():
        joined = Session(connection, join_transaction_mode="create_savepoint")
        with joined, pytest.raises(ValueError, match="savepoint"):
            guard.advance(joined, MINE)


@pytest.mark.parametrize("way", ["psycopg"], indirect=True)
@pytest.mark.parametrize("target", ["connection", "session", "asyncpg"])
def test_a_savepoint_that_was_sent_as_text_is_refused(
    engine: Engine, guard: SQLAlchemyGuard, url: str, target: str
) -> None:
    """A rollback to it would undo the check: a newer holder could claim, and this one write after that."""
    guard.claim(MINE)
    savepoint = text("SAVEPOINT mine")

    async def advance_with_asyncpg() -> None:
        asynchronous = create_async_engine(url.replace("+psycopg", "+asyncpg"))
        async_guard = AsyncSQLAlchemyGuard(asynchronous)
        async with asynchronous.connect() as connection:
            await connection.execute(savepoint)
            with pytest.raises(ValueError, match="savepoint"):
                await async_guard.advance(connection, MINE)
        await asynchronous.dispose()

    if target == "asyncpg":
        asyncio.run(advance_with_asyncpg())
    else:
        with Session(engine) if target == "session" else engine.connect() as mine:
            mine.execute(savepoint)
            with pytest.raises(ValueError, match="savepoint"):
                guard.advance(mine, MINE)
            mine.rollback()
            guard.advance(mine, MINE)
            mine.execute(text("UPDATE orders SET total = 7"))
            mine.commit()
        assert total(engine) == 7


@pytest.mark.parametrize("change", ["new", "dirty", "deleted"])
def test_unflushed_changes_are_refused(engine: Engine, guard: SQLAlchemyGuard, change: str) -> None:
    guard.claim(MINE)
    with Session(engine) as session:
        order = session.get_one(Order, 1)
        if change == "new":
            session.add(Order(id=2, total=0))
        elif change == "dirty":
            order.total = 5
        else:
            session.delete(order)
        with pytest.raises(ValueError, match="unflushed"):
            guard.advance(session, MINE)


def test_autocommit_is_refused(engine: Engine, guard: SQLAlchemyGuard) -> None:
    guard.claim(MINE)
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(GuardNotEnforceable, match="AUTOCOMMIT"):
            guard.advance(connection, MINE)


def test_another_kind_of_database_is_refused(guard: SQLAlchemyGuard, monkeypatch: pytest.MonkeyPatch) -> None:
    other = create_engine("sqlite://")
    monkeypatch.setattr(other.dialect, "name", "other")
    with Session(other) as session, pytest.raises(ValueError, match="other"):
        guard.advance(session, MINE)


def test_with_asyncio(engine: Engine, guard: SQLAlchemyGuard, url: str) -> None:
    guard.claim(MINE)

    async def scenario() -> None:
        asynchronous = create_async_engine(asyncio_url(url))
        async_guard = AsyncSQLAlchemyGuard(asynchronous)
        async with AsyncSession(asynchronous, expire_on_commit=False) as session:
            order = await session.get_one(Order, 1)
            await session.commit()
            await asyncio.to_thread(add_elsewhere, engine, 10)
            await async_guard.advance(session, MINE)
            await session.refresh(order)
            order.total += 1
            await session.commit()
        async with asynchronous.begin() as connection:
            await async_guard.advance(connection, MINE)
            with pytest.raises(TypeError, match="Connection or a Session"):
                guard.advance(connection, MINE)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="AsyncConnection or AsyncSession"):
                await async_guard.advance(connection.sync_connection, MINE)  # type: ignore[arg-type]
        await asynchronous.dispose()

    asyncio.run(scenario())
    assert total(engine) == 11


def test_a_session_on_a_guarded_connection(engine: Engine, guard: SQLAlchemyGuard) -> None:
    """As docs/guards/sqlalchemy.md has it; a refused check leaves the data alone."""
    guard.claim(MINE)
    with guard.begin(MINE) as connection, Session(connection) as session, session.begin():
        session.get_one(Order, 1).total += 1
    assert total(engine) == 1
    guard.claim(NEWER)
    with (
        pytest.raises(StaleFence),
        guard.begin(MINE) as connection,
        Session(connection) as session,
        session.begin(),
    ):
        session.get_one(Order, 1).total += 1
    assert total(engine) == 1


def test_many_transactions_of_the_callers_own_follow_one_claim(engine: Engine, guard: SQLAlchemyGuard) -> None:
    """The mark soon remembers none of the guard's own acknowledged writes any more: it knows of no commit of these."""
    guard.claim(MINE)
    guard.write(MINE, text("UPDATE orders SET total = total + 1"))
    for _ in range(20):
        with engine.begin() as connection:
            guard.advance(connection, MINE)
            connection.execute(text("UPDATE orders SET total = total + 1"))


@pytest.mark.parametrize("between", [14, 15, 16])
def test_writes_of_another_guard_object_are_no_loss(engine: Engine, guard: SQLAlchemyGuard, between: int) -> None:
    other = SQLAlchemyGuard(engine, timeout=1.0)
    guard.claim(MINE)
    guard.write(MINE, text("UPDATE orders SET total = total + 1"))
    for _ in range(between):
        other.write(MINE, text("UPDATE orders SET total = total + 1"))
    guard.write(MINE, text("UPDATE orders SET total = total + 1"))

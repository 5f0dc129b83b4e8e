"""The bound of a transaction that ``advance`` has joined on MariaDB and MySQL: it ends with the transaction.

``test_frozen_holders.py`` has the holder that stands still.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from fencing import StaleFence
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.sql_ways import ADD, MINE, NEWER, Way, WayLender, asyncio_url

ENDINGS = ("rollback", "close", "cancel")


@pytest.fixture(params=["pymysql"])
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        SQLAlchemyGuard(way.outside).claim(MINE)
        yield way


@pytest.fixture
def engine(way: Way) -> Iterator[Engine]:
    """With one connection only."""
    engine = create_engine(way.url, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def guard(engine: Engine) -> SQLAlchemyGuard:
    return SQLAlchemyGuard(engine, timeout=7)


def bounds(connection: Connection) -> list[int]:
    """How long the client may stand still after a write, and the number of the session."""
    name = "idle_write_transaction_timeout" if connection.dialect.is_mariadb else "wait_timeout"  # type: ignore[attr-defined]
    return list(connection.execute(text(f"SELECT @@{name}, CONNECTION_ID()")).one())


def session_of(engine: Engine, **settings: int) -> list[int]:
    """The settings of the pool's only session, after a change of them."""
    with engine.connect() as connection:
        for name, value in settings.items():
            connection.execute(text(f"SET SESSION {name} = {value}"))
        return bounds(connection)


def roll_back(connection: Connection) -> None:
    connection.rollback()
    assert bounds(connection)[0] != 7, "before it goes back to its pool"


def commit(connection: Connection) -> None:
    connection.commit()
    assert bounds(connection)[0] != 7, "before it goes back to its pool"


def commit_as_text(connection: Connection) -> None:
    connection.execute(text("COMMIT"))


def do_nothing(connection: Connection) -> None:
    pass


@pytest.mark.parametrize("end", [commit, roll_back, commit_as_text, do_nothing])
def test_the_session_is_as_it_was(engine: Engine, guard: SQLAlchemyGuard, end: Callable[[Connection], None]) -> None:
    before = session_of(engine)
    with engine.connect() as connection:
        guard.advance(connection, MINE)
        assert bounds(connection)[0] == 7
        guard.advance(connection, MINE)
        connection.execute(text(ADD))
        end(connection)
    assert session_of(engine) == before, "the same connection, with its own settings"


STRICTER = [(3, 0, 3), (30, 0, 7), (0, 3, 3), (0, 30, 7), (30, 3, 7), (3, 1, 3)]


@pytest.mark.thorough
@pytest.mark.parametrize(("idle_write", "idle", "expected"), STRICTER)
def test_a_stricter_bound_of_ones_own_stays(
    way: Way, engine: Engine, guard: SQLAlchemyGuard, idle_write: int, idle: int, expected: int
) -> None:
    if way.is_mysql:
        idle_write = idle_write or idle
        before, expected = session_of(engine, wait_timeout=idle_write), min(idle_write, 7)
    else:
        before = session_of(engine, idle_write_transaction_timeout=idle_write, idle_transaction_timeout=idle)
    with engine.begin() as connection:
        guard.advance(connection, MINE)
        assert bounds(connection)[0] == expected
        guard.advance(connection, MINE)
    assert session_of(engine) == before


def test_a_connection_that_is_forgotten(engine: Engine, guard: SQLAlchemyGuard) -> None:
    before = session_of(engine)
    guard.advance(engine.connect(), MINE)
    gc.collect()
    assert session_of(engine) == before


def test_a_check_that_is_refused(engine: Engine, guard: SQLAlchemyGuard) -> None:
    before = session_of(engine)
    guard.claim(NEWER)
    with engine.connect() as connection, pytest.raises(StaleFence):
        guard.advance(connection, MINE)
    assert session_of(engine) == before


def test_a_session_of_the_orm_and_a_transaction_in_two_phases(engine: Engine, guard: SQLAlchemyGuard) -> None:
    before = session_of(engine)
    for is_committed in (True, False):
        for twophase in (False, True):
            with Session(engine, twophase=twophase) as session:
                guard.advance(session, MINE)
                session.execute(text(ADD))
                assert bounds(session.connection())[0] == 7
                if is_committed:
                    session.commit()
            assert session_of(engine) == before
    with engine.connect() as connection:
        assert connection.execute(text("SELECT total FROM orders")).scalar_one() == 2


def test_a_lost_connection_is_no_commit(way: Way, engine: Engine, guard: SQLAlchemyGuard) -> None:
    """COMMIT is not sent, so the error does not leave open whether it has happened."""
    sent: list[str] = []
    for ending in (commit, roll_back):
        with engine.connect() as connection:
            guard.advance(connection, MINE)
            connection.execute(text(ADD))
            way.sql(f"KILL CONNECTION {bounds(connection)[1]}")
            event.listen(connection, "commit", lambda _: sent.append("after ours"))
            if ending is commit:
                with pytest.raises(DBAPIError, match="fencing_idle"):
                    connection.commit()
            connection.rollback()
    assert not sent
    assert way.total == 0


@pytest.mark.parametrize("ending", ["commit", *(pytest.param(each, marks=pytest.mark.thorough) for each in ENDINGS)])
def test_asyncio(way: Way, ending: str) -> None:
    async def scenario() -> None:
        engine = create_async_engine(asyncio_url(way.url), pool_size=1, max_overflow=0)
        guard = AsyncSQLAlchemyGuard(engine, timeout=7)
        async with engine.connect() as connection:
            before = await connection.run_sync(bounds)
        async with engine.connect() as connection:
            await guard.advance(connection, MINE)
            assert (await connection.run_sync(bounds))[0] == 7
            if ending == "cancel":
                task = asyncio.ensure_future(connection.commit())
                asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(task.cancel))
                await asyncio.wait([task])
            elif ending != "close":
                await getattr(connection, ending)()
        async with engine.connect() as connection:
            after = await connection.run_sync(bounds)
        assert after[0] == before[0]
        assert ending == "cancel" or after == before
        await engine.dispose()

    asyncio.run(scenario())

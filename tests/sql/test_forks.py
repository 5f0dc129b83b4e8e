"""A fork inside a guarded block. The child leaves the block, too, and must not end the parent's transaction."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from fencing import GuardNotEnforceable, GuardUnavailable, LeaseLost
from storage_guards import SQLAlchemyGuard
from tests.support.forks import in_child
from tests.support.sql_ways import ADD, ASYNC, MINE, NEWER, OVER_A_NETWORK, READ, SYNC, Way, WayLender, ways


@pytest.fixture
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


class LeftByItself(Exception):
    """The child leaves the block by an error of its own."""


class Fork:
    """A fork, whose child says how it left the block."""

    def __init__(self, way: Way, how: str) -> None:
        self.way, self.how = way, how
        self.reader, self.writer = os.pipe()
        self.child = -1

    def __call__(self) -> bool:
        """Fork. Return True in the parent, when the child has left the block, and the mark is locked still."""
        self.child = os.fork()
        if self.child == 0:
            signal.alarm(60)
            if self.how == "error":
                raise LeftByItself
            return False
        os.close(self.writer)
        with os.fdopen(self.reader) as report:
            said = report.read()
        if not self.way.side.asynchronous:  # there the child has no running loop, and asyncio says so
            assert said == ("LeftByItself" if self.how == "error" else "LeaseLost: forked")
        os.waitpid(self.child, 0)
        with pytest.raises(GuardUnavailable, match="stayed locked"):
            self.way.beside.claim(NEWER, timeout=0.2)
        return True

    def end_of_child(self, error: BaseException | None) -> None:
        """End the child, if this is it."""
        if self.child == 0:
            reason = f": {error.reason}" if isinstance(error, LeaseLost) else ""
            os.write(self.writer, f"{type(error).__name__}{reason}".encode())
            os._exit(0)


HOW = pytest.mark.parametrize("how", ["by falling through", "error"])
_SYNC = [name for name in SYNC if name in OVER_A_NETWORK]
_ASYNC = [name for name in ASYNC if name in OVER_A_NETWORK]


@HOW
@pytest.mark.parametrize("way", ways("psycopg", "PsycopgGuard", of=_SYNC), indirect=True)
def test_the_transaction_is_the_parents(way: Way, how: str) -> None:
    """The child's COMMIT or ROLLBACK freed the mark. On PostgreSQL, what the parent sent then was written unchecked."""
    way.claim(MINE)
    fork, error = Fork(way, how), None
    try:
        with way.guard.begin(MINE) as connection:
            connection.execute(way.statement(READ)[0])
            if fork():
                connection.execute(way.statement(ADD)[0])
    except BaseException as raised:  # noqa: BLE001 - of the child
        error = raised
    fork.end_of_child(error)
    assert error is None
    assert way.total == 1
    way.claim(NEWER)


@HOW
@pytest.mark.parametrize("way", ways("asyncpg", of=_ASYNC), indirect=True)
def test_the_transaction_is_the_parents_with_asyncio(way: Way, how: str) -> None:
    way.beside.claim(MINE)
    fork = Fork(way, how)
    error: list[BaseException] = []

    async def story() -> None:
        guard: Any = way.guard_at(way.direct)
        try:
            async with guard.begin(MINE) as connection:
                await connection.execute(way.statement(READ)[0])
                if fork():
                    await connection.execute(way.statement(ADD)[0])
        except BaseException as raised:  # noqa: BLE001 - of the child
            error.append(raised)
        fork.end_of_child(error[0] if error else None)
        if not way.is_psycopg:
            await guard._engine.dispose()

    asyncio.run(story())
    assert error == []
    assert way.total == 1


@pytest.mark.parametrize("way", ways("psycopg-async", of=_ASYNC), indirect=True)
def test_the_block_of_another_task_is_the_parents(way: Way) -> None:
    """The child drops that task. Its coroutine is closed, and leaves its block."""
    way.beside.claim(MINE)
    fork = Fork(way, "by dropping the task")
    begun, may_end = asyncio.Event(), asyncio.Event()
    guard: Any = way.guard_at(way.direct)

    async def hold() -> None:
        async with guard.begin(MINE) as connection:
            await connection.execute(way.statement(READ)[0])
            begun.set()
            await may_end.wait()
            await connection.execute(way.statement(ADD)[0])

    async def story() -> None:
        holding = hold()
        task = asyncio.ensure_future(holding)
        await begun.wait()
        if not fork():
            with suppress(BaseException):  # it awaits something as it is closed, and its connection is dead
                holding.close()
            fork.end_of_child(None)
        may_end.set()
        await task
        if not way.is_psycopg:
            await guard._engine.dispose()

    asyncio.run(story())
    assert way.total == 1


@pytest.mark.parametrize("way", ways("psycopg", of=[name for name in _SYNC if name != "PsycopgGuard"]), indirect=True)
def test_a_child_has_sessions_of_its_own(way: Way) -> None:
    """As a worker of a server that has loaded the application before. The engine's pool has an idle connection."""
    session = "SELECT pg_backend_pid()" if way.database == "postgres" else "SELECT CONNECTION_ID()"

    def session_of_block() -> int:
        with way.guard.begin(MINE) as connection:
            return int(connection.execute(text(session)).scalar_one())

    way.claim(MINE)
    mine = session_of_block()

    def check() -> None:
        assert session_of_block() != mine
        assert way.guard._engine.pool.checkedin() == 1

    in_child(check)
    in_child(check)
    assert session_of_block() == mine, "no child has ended it"


@pytest.mark.parametrize("way", ways("psycopg", of=[name for name in _SYNC if name != "PsycopgGuard"]), indirect=True)
def test_a_guard_that_a_child_makes_over_an_engine_of_its_parent(way: Way) -> None:
    """As a worker does whose application is loaded before, but for the guard. The pool has the parent's connection."""
    session = text("SELECT pg_backend_pid()" if way.database == "postgres" else "SELECT CONNECTION_ID()")
    engine = create_engine(way.url)
    way.claim(MINE)
    with engine.connect() as connection:
        mine = connection.execute(session).scalar_one()

    def check() -> None:
        with SQLAlchemyGuard(engine).begin(MINE) as connection:
            assert connection.execute(session).scalar_one() != mine

    in_child(check)
    with engine.connect() as connection:
        assert connection.execute(session).scalar_one() == mine, "the child has not ended it"
    engine.dispose()


@pytest.mark.parametrize("way", ways("PsycopgGuard", of=["PsycopgGuard"]), indirect=True)
def test_what_was_opened_before_the_fork_is_refused(way: Way) -> None:
    way.claim(MINE)

    def check() -> None:
        with pytest.raises(GuardNotEnforceable, match="opened before this process was forked"):
            way.guard.claim(MINE)
        with pytest.raises(GuardNotEnforceable, match="opened before this process was forked"):
            way.guard.mark(MINE.resource)

    in_child(check)
    way.claim(MINE)

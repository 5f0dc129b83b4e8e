"""A task is cancelled while its COMMIT is under way: it is carried to its answer, or it is said that there was none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from examples.servers import Proxy
from fencing import Fence, GuardUnavailable, OutcomeUnknown
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.scenario.sql_ways import EACH_WAY, Way, is_commit

MINE = Fence("orders:1", 5, "a" * 22)
ADD = text("INSERT INTO done VALUES (:id)")


class Stage:
    """A guard with one connection, behind a proxy that falls silent when a COMMIT (or what else) comes by."""

    def __init__(self, engine: AsyncEngine, direct: Engine, proxy: Proxy, timeout: float) -> None:
        self.engine, self.direct, self.proxy = engine, direct, proxy
        self.guard = AsyncSQLAlchemyGuard(engine, timeout=timeout)
        self.beside = SQLAlchemyGuard(direct)

    def hold_back(self, statement: str) -> None:
        """The reply to the request with ``statement`` arrives late: at ``proxy.restore``."""
        self._hold = self.proxy.hold_reply_when(
            lambda request: is_commit(request) if statement == "COMMIT" else statement.encode() in request
        )

    async def until_held_back(self) -> None:
        assert await asyncio.to_thread(self._hold.wait, 5)

    @property
    def done(self) -> set[int]:
        with self.direct.connect() as connection:
            return set(connection.execute(text("SELECT id FROM done")).scalars())

    async def is_usable(self) -> None:
        """The pool has one connection, which must be free and clean."""
        self.proxy.restore()
        assert await self.guard.write(MINE, ADD, {"id": 99}) == 1
        assert 99 in self.done


Scene = Callable[[Stage], Awaitable[None]]


@pytest.fixture(params=[name for name in EACH_WAY if name not in ("psycopg", "pymysql")])
def play(request: pytest.FixtureRequest, proxy: Callable[[Any], Proxy]) -> Any:
    way = Way(request, request.param, proxy)

    def play(scene: Scene, timeout: float = 10.0) -> None:
        async def run() -> None:
            async with stage(way, timeout) as made:
                await asyncio.wait_for(scene(made), 30)

        asyncio.run(run())

    return play


@asynccontextmanager
async def stage(way: Way, timeout: float) -> AsyncIterator[Stage]:
    direct = create_engine(way.url)
    engine = create_async_engine(way.through, pool_size=1, max_overflow=0, pool_timeout=5)
    made = Stage(engine, direct, way.proxy, timeout)
    made.beside.create_tables()
    deferred = "" if way.is_mariadb else "DEFERRABLE INITIALLY DEFERRED"
    with direct.begin() as connection:
        connection.execute(text(f"CREATE TABLE done (id INTEGER UNIQUE {deferred})"))
    await made.guard.claim(MINE)  # and is connected now, with what SQLAlchemy asks first
    try:
        yield made
    finally:
        way.proxy.restore()
        await engine.dispose()
        direct.dispose()


async def cancelled_thrice(stage: Stage, task: asyncio.Task[Any]) -> None:
    await stage.until_held_back()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.02)  # time in which nothing is to happen
        assert not task.done(), "a cancellation got through the shield"


async def ended(task: asyncio.Task[Any]) -> asyncio.CancelledError:
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    return raised.value


def test_the_commit_is_finished_first(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, {"id": 1}))
        await cancelled_thrice(stage, task)
        stage.proxy.restore()
        assert (await ended(task)).__cause__ is None
        assert stage.done == {1}
        await stage.is_usable()

    play(scene)


def test_a_commit_that_is_refused_is_told(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        if stage.direct.dialect.name == "mysql":
            return  # it checks all constraints at once, and refuses no COMMIT
        await stage.guard.write(MINE, ADD, {"id": 1})
        stage.hold_back("COMMIT")
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, {"id": 1}))
        await cancelled_thrice(stage, task)
        stage.proxy.restore()
        assert isinstance((await ended(task)).__cause__, IntegrityError)
        await stage.is_usable()

    play(scene)


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])
def test_a_commit_without_an_answer_is_told(play: Callable[..., None], cut: bool) -> None:
    """Silence is waited for as long as the guard's bound allows, and no longer."""

    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        started = time.monotonic()
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, {"id": 1}))
        await cancelled_thrice(stage, task)
        if cut:
            stage.proxy.cut()
        error = await ended(task)
        assert time.monotonic() - started < 4
        assert isinstance(error.__cause__, OutcomeUnknown)
        stage.proxy.restore()
        assert await stage.guard.landed(error.__cause__) is (stage.done == {1})
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_a_timeout_around_it_keeps_the_cause(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        with pytest.raises(asyncio.TimeoutError) as raised:
            await asyncio.wait_for(stage.guard.write(MINE, ADD, {"id": 1}), 0.2)
        error: BaseException | None = raised.value
        while error is not None and not isinstance(error, OutcomeUnknown):
            error = error.__cause__ or error.__context__
        assert error is not None
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_silence_without_a_cancellation_ends_too(play: Callable[..., None]) -> None:
    """The request itself is stuck, and arrives later: by then the database has ended the session that waited for it."""

    async def scene(stage: Stage) -> None:
        started = time.monotonic()
        event.listen(stage.engine.sync_engine, "commit", lambda _: stage.proxy.silence(), once=True)
        with pytest.raises(OutcomeUnknown) as raised:
            await stage.guard.write(MINE, ADD, {"id": 1})
        assert time.monotonic() - started < 4
        assert stage.beside.landed(raised.value) is False
        stage.proxy.restore()
        await stage.is_usable()
        assert stage.done == {99}

    play(scene, timeout=0.5)


def test_a_silent_claim_ends_too(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        with pytest.raises(GuardUnavailable):
            await stage.guard.claim(MINE)
        await stage.is_usable()

    play(scene, timeout=0.5)


@pytest.mark.parametrize("answered", [True, False])
def test_a_rollback_is_shielded_and_bounded_too(play: Callable[..., None], answered: bool) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("ROLLBACK")

        async def block() -> None:
            async with stage.guard.begin(MINE) as connection:
                await connection.execute(ADD, {"id": 1})
                raise ZeroDivisionError

        task = asyncio.ensure_future(block())
        await cancelled_thrice(stage, task)
        if answered:
            stage.proxy.restore()
        error = await ended(task)
        assert error.__cause__ is None
        assert isinstance(error.__context__, ZeroDivisionError)
        assert stage.done == set()
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_a_silent_rollback_leaves_the_blocks_own_error(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("ROLLBACK")
        with pytest.raises(ZeroDivisionError):
            async with stage.guard.begin(MINE):
                raise ZeroDivisionError
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_the_loop_ends_during_the_commit(play: Callable[..., None]) -> None:
    """As asyncio.run ends: every task is cancelled, the one that carries the commit included."""

    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, {"id": 1}))
        await stage.until_held_back()
        [inner] = [each for each in asyncio.all_tasks() if "run_sync" in repr(each)]
        for each in (task, inner):
            each.cancel()
        cause = (await ended(task)).__cause__
        assert isinstance(cause, OutcomeUnknown)
        stage.proxy.restore()
        assert await stage.guard.landed(cause) is (stage.done == {1})
        await stage.is_usable()

    play(scene, timeout=0.5)

"""A task is cancelled while its COMMIT through psycopg is under way: carried to its answer, or said to have none."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.errors import UniqueViolation
from psycopg_pool import AsyncConnectionPool

from examples.servers import PostgresServer, Proxy
from fencing import GuardUnavailable, OutcomeUnknown
from storage_guards import AsyncPsycopgGuard, PsycopgGuard
from tests.scenario.lock_waits import until_locks_are_waited_for
from tests.scenario.psycopg_database import ADD, MINE, NEWER, dsn_of


class Stage:
    """A guard with one connection, behind a proxy that falls silent when a COMMIT (or what else) comes by."""

    def __init__(self, pool: AsyncConnectionPool, url: str, proxy: Proxy, timeout: float) -> None:
        self.proxy, self.pool = proxy, pool
        self.guard = AsyncPsycopgGuard(pool, timeout=timeout)
        self.url, self.dsn = url, dsn_of(url)
        self.beside = PsycopgGuard(self.dsn)

    def hold_back(self, statement: bytes) -> None:
        """The reply to the request with ``statement`` arrives late: at ``proxy.restore``."""
        self._hold = self.proxy.hold_reply_when(lambda request: statement in request)

    async def until_held_back(self) -> None:
        assert await asyncio.to_thread(self._hold.wait, 5)

    @property
    def done(self) -> set[int]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return {row[0] for row in connection.execute("SELECT id FROM done")}

    async def is_usable(self) -> None:
        """The pool has one connection, which must be free and clean."""
        self.proxy.restore()
        for attempt in range(100):
            try:
                assert await self.guard.write(MINE, ADD, [99]) == 1
                break
            except GuardUnavailable:  # the pool connects anew
                assert attempt < 99
        assert 99 in self.done


Scene = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def play(postgres_url: str, postgres_server: PostgresServer, proxy: Callable[[PostgresServer], Proxy]) -> Any:
    def play(scene: Scene, timeout: float = 10.0) -> None:
        async def run() -> None:
            async with stage(postgres_url, proxy(postgres_server), timeout) as made:
                await asyncio.wait_for(scene(made), 30)

        asyncio.run(run())

    return play


@asynccontextmanager
async def stage(url: str, proxy: Proxy, timeout: float) -> AsyncIterator[Stage]:
    async with AsyncConnectionPool(proxy.url(dsn_of(url)), min_size=1, max_size=1, open=False) as pool:
        made = Stage(pool, url, proxy, timeout)
        made.beside.create_tables()
        with psycopg.connect(made.dsn) as connection:
            connection.execute("CREATE TABLE done (id INTEGER UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        await made.guard.claim(MINE)  # and is connected now
        try:
            yield made
        finally:
            proxy.restore()


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
        stage.hold_back(b"COMMIT")
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, [1]))
        await cancelled_thrice(stage, task)
        stage.proxy.restore()
        assert (await ended(task)).__cause__ is None
        assert stage.done == {1}
        await stage.is_usable()

    play(scene)


def test_a_commit_that_is_refused_is_told(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        await stage.guard.write(MINE, ADD, [1])
        stage.hold_back(b"COMMIT")
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, [1]))
        await cancelled_thrice(stage, task)
        stage.proxy.restore()
        assert isinstance((await ended(task)).__cause__, UniqueViolation)
        await stage.is_usable()

    play(scene)


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])
def test_a_commit_without_an_answer_is_told(play: Callable[..., None], cut: bool) -> None:
    """Silence is waited for as long as the guard's bound allows, and no longer."""

    async def scene(stage: Stage) -> None:
        stage.hold_back(b"COMMIT")
        started = time.monotonic()
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, [1]))
        await cancelled_thrice(stage, task)
        if cut:
            stage.proxy.cut()
        error = await ended(task)
        assert time.monotonic() - started < 8
        assert isinstance(error.__cause__, OutcomeUnknown)
        stage.proxy.restore()
        assert stage.beside.landed(error.__cause__) is (stage.done == {1})
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_a_timeout_around_it_keeps_the_cause(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back(b"COMMIT")
        with pytest.raises(asyncio.TimeoutError) as raised:
            await asyncio.wait_for(stage.guard.write(MINE, ADD, [1]), 0.2)
        error: BaseException | None = raised.value
        while error is not None and not isinstance(error, OutcomeUnknown):
            error = error.__cause__ or error.__context__
        assert error is not None
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_silence_without_a_cancellation_ends_too(play: Callable[..., None]) -> None:
    """The request itself is stuck. The server ends the session that stands still meanwhile, so it comes too late."""

    async def scene(stage: Stage) -> None:
        started = time.monotonic()
        with pytest.raises(OutcomeUnknown) as raised:
            async with stage.guard.begin(MINE) as connection:
                await connection.execute(ADD, [1])
                stage.proxy.silence()
        assert time.monotonic() - started < 8
        assert stage.beside.landed(raised.value) is False
        stage.proxy.restore()
        await stage.is_usable()
        assert stage.done == {99}

    play(scene, timeout=0.5)


@pytest.mark.parametrize("answered", [True, False])
def test_a_rollback_is_shielded_and_bounded_too(play: Callable[..., None], answered: bool) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back(b"ROLLBACK")

        async def block() -> None:
            async with stage.guard.begin(MINE) as connection:
                await connection.execute(ADD, [1])
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
        stage.hold_back(b"ROLLBACK")
        with pytest.raises(ZeroDivisionError):
            async with stage.guard.begin(MINE):
                raise ZeroDivisionError
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_the_loop_ends_during_the_commit(play: Callable[..., None]) -> None:
    """As asyncio.run ends: every task is cancelled, the one that carries the commit included."""

    async def scene(stage: Stage) -> None:
        stage.hold_back(b"COMMIT")
        task = asyncio.ensure_future(stage.guard.write(MINE, ADD, [1]))
        await stage.until_held_back()
        [inner] = [each for each in asyncio.all_tasks() if "AsyncRunning._end" in repr(each)]
        for each in (task, inner):
            each.cancel()
        cause = (await ended(task)).__cause__
        assert isinstance(cause, OutcomeUnknown)
        stage.proxy.restore()
        assert stage.beside.landed(cause) is (stage.done == {1})
        await stage.is_usable()

    play(scene, timeout=0.5)


def test_a_cancelled_claim_gives_its_connection_back(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        with stage.beside.begin(MINE):
            claim = asyncio.ensure_future(stage.guard.claim(NEWER))
            await asyncio.to_thread(until_locks_are_waited_for, stage.url)
            assert not claim.done()
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
        await stage.is_usable()

    play(scene)


def test_a_cancelled_body_is_rolled_back(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        in_the_body = asyncio.Event()

        async def block() -> None:
            async with stage.guard.begin(MINE) as connection:
                await connection.execute(ADD, [1])
                in_the_body.set()
                await connection.execute("SELECT pg_sleep(30)")

        task = asyncio.ensure_future(block())
        await asyncio.wait_for(in_the_body.wait(), 5)
        task.cancel()
        assert (await ended(task)).__cause__ is None
        assert stage.done == set()
        await stage.is_usable()

    play(scene)

"""A task is cancelled while its COMMIT is under way: it is carried to its answer, or it is said that there was none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from fencing import Fence, GuardUnavailable, OutcomeUnknown
from tests.support.commit_stages import MINE, PsycopgStage, SQLAlchemyStage, Stage, open_stage
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.servers import Proxy
from tests.support.sql_ways import EACH_WAY, new_way

NEWER = Fence("orders:1", 6, "b" * 22)
SQLALCHEMY = [name for name in EACH_WAY if name not in ("psycopg", "pymysql")]

SILENCE = 0.7
"""Seconds that a guard waits for an answer that does not come."""

Scene = Callable[[Stage], Awaitable[None]]


@pytest.fixture(params=[*SQLALCHEMY, "psycopg guard"])
def play(request: pytest.FixtureRequest, proxy: Callable[[Any], Proxy]) -> Any:
    """Run a scene on a stage of each kind."""
    kind = PsycopgStage if request.param == "psycopg guard" else SQLAlchemyStage
    way = new_way(request, "psycopg-async" if kind is PsycopgStage else request.param, proxy)

    def play(scene: Scene, timeout: float = 10.0) -> None:
        async def run() -> None:
            async with open_stage(kind, way, timeout) as stage:
                await asyncio.wait_for(scene(stage), 120)

        asyncio.run(run())

    return play


of_sqlalchemy = pytest.mark.parametrize("play", SQLALCHEMY, indirect=True)
of_psycopg = pytest.mark.parametrize("play", ["psycopg guard"], indirect=True)


async def cancelled_thrice(stage: Stage, task: asyncio.Task[Any]) -> None:
    await stage.until_held_back()
    for _ in range(3):
        task.cancel()
        for _turn in range(20):
            await asyncio.sleep(0)
        assert not task.done(), "a cancellation got through the shield"


def contexts_of(error: BaseException) -> Iterator[BaseException]:
    """The exceptions during whose handling it was raised: the block's, and before it those of whatever ran there."""
    found = error.__context__
    while found is not None:
        yield found
        found = found.__context__


async def ended(task: asyncio.Task[Any]) -> asyncio.CancelledError:
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    return raised.value


def test_the_commit_is_finished_first(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        task = asyncio.ensure_future(stage.write(1))
        await cancelled_thrice(stage, task)
        stage.proxy.restore()
        cause = (await ended(task)).__cause__
        assert isinstance(cause, OutcomeUnknown)
        assert stage.beside.landed(cause) is True
        assert stage.done == {1}
        await stage.is_usable()

    play(scene)


def test_a_commit_that_is_refused_is_told(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        if stage.is_mariadb:
            return  # it checks all constraints at once, and refuses no COMMIT
        await stage.write(1)
        stage.hold_back("COMMIT")
        task = asyncio.ensure_future(stage.write(1))
        await cancelled_thrice(stage, task)
        stage.proxy.restore()
        assert isinstance((await ended(task)).__cause__, stage.REFUSED_COMMIT)
        await stage.is_usable()

    play(scene)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "silent"])
def test_a_commit_without_an_answer_is_told(play: Callable[..., None], cut: bool) -> None:
    """Silence is waited for as long as the guard's bound allows, and no longer."""

    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        task = asyncio.ensure_future(stage.write(1))
        await cancelled_thrice(stage, task)
        if cut:
            stage.proxy.cut()
        error = await ended(task)
        assert isinstance(error.__cause__, OutcomeUnknown)
        stage.proxy.restore()
        assert stage.beside.landed(error.__cause__) is (stage.done == {1})
        await stage.is_usable()

    play(scene, timeout=10.0 if cut else SILENCE)


@pytest.mark.thorough
def test_a_timeout_around_it_keeps_the_cause(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")

        async def expire_during_the_commit(limit: asyncio.Timeout) -> None:
            await stage.until_held_back()
            limit.reschedule(asyncio.get_running_loop().time())

        async def write_within_a_limit() -> None:
            async with asyncio.timeout(None) as limit:
                expiring = asyncio.create_task(expire_during_the_commit(limit))
                await stage.write(1)
            await expiring

        with pytest.raises(TimeoutError) as raised:
            await write_within_a_limit()
        error: BaseException | None = raised.value
        while error is not None and not isinstance(error, OutcomeUnknown):
            error = error.__cause__ or error.__context__
        assert error is not None
        await stage.is_usable()

    play(scene, timeout=SILENCE)


@pytest.mark.thorough
def test_silence_without_a_cancellation_ends_too(play: Callable[..., None]) -> None:
    """The request itself is stuck, and arrives later: by then the database has ended the session that waited for it."""

    async def scene(stage: Stage) -> None:
        with pytest.raises(OutcomeUnknown) as raised:
            await stage.write_into_silence()
        assert stage.beside.landed(raised.value) is False
        stage.proxy.restore()
        await stage.is_usable()
        assert stage.done == {99}

    play(scene, timeout=SILENCE)


@pytest.mark.thorough
@of_sqlalchemy
def test_a_silent_claim_ends_too(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        with pytest.raises(GuardUnavailable):
            await stage.guard.claim(MINE)
        await stage.is_usable()

    play(scene, timeout=SILENCE)


def rollback_on(stage: Stage) -> str:
    """The request of a ROLLBACK. On MariaDB the check has a ROLLBACK TO SAVEPOINT in it."""
    return "\x03ROLLBACK" if stage.is_mariadb else "ROLLBACK"


@pytest.mark.thorough
@pytest.mark.parametrize("answered", [True, False])
def test_a_rollback_is_shielded_and_bounded_too(play: Callable[..., None], answered: bool) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back(rollback_on(stage))

        async def block() -> None:
            async with stage.guard.begin(MINE) as connection:
                await connection.execute(*stage.adding(1))
                raise ZeroDivisionError

        task = asyncio.ensure_future(block())
        await cancelled_thrice(stage, task)
        if answered:
            stage.proxy.restore()
        error = await ended(task)
        assert error.__cause__ is None
        assert any(isinstance(each, ZeroDivisionError) for each in contexts_of(error))
        assert stage.done == set()
        await stage.is_usable()

    play(scene, timeout=10.0 if answered else SILENCE)


@pytest.mark.thorough
def test_a_silent_rollback_leaves_the_blocks_own_error(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        stage.hold_back(rollback_on(stage))
        with pytest.raises(ZeroDivisionError):
            async with stage.guard.begin(MINE):
                raise ZeroDivisionError
        await stage.is_usable()

    play(scene, timeout=SILENCE)


@pytest.mark.thorough
def test_the_loop_ends_during_the_commit(play: Callable[..., None]) -> None:
    """As asyncio.run ends: every task is cancelled, the one that carries the commit included."""

    async def scene(stage: Stage) -> None:
        stage.hold_back("COMMIT")
        task = asyncio.ensure_future(stage.write(1))
        await stage.until_held_back()
        [inner] = [each for each in asyncio.all_tasks() if stage.CARRIER in repr(each)]
        for each in (task, inner):
            each.cancel()
        cause = (await ended(task)).__cause__
        assert isinstance(cause, OutcomeUnknown)
        stage.proxy.restore()
        assert stage.beside.landed(cause) is (stage.done == {1})
        await stage.is_usable()

    play(scene, timeout=SILENCE)


@of_psycopg
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


@of_psycopg
def test_a_cancelled_body_is_rolled_back(play: Callable[..., None]) -> None:
    async def scene(stage: Stage) -> None:
        in_the_body = asyncio.Event()

        async def block() -> None:
            async with stage.guard.begin(MINE) as connection:
                await connection.execute(*stage.adding(1))
                in_the_body.set()
                await connection.execute("SELECT pg_sleep(300)")

        task = asyncio.ensure_future(block())
        await asyncio.wait_for(in_the_body.wait(), 60)
        task.cancel()
        assert (await ended(task)).__cause__ is None
        assert stage.done == set()
        await stage.is_usable()

    play(scene)

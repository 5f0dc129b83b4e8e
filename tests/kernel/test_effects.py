"""The shells that run plans."""

from __future__ import annotations

import ast
import asyncio
import gc
import warnings
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fencing import AsyncMemoryCoordinator
from fencing.kernel.effects import Plan, finish, run, run_async
from storage_guards.sql.shield import finish_within

ROOT = Path(__file__).resolve().parents[2]


def test_a_coroutine_that_was_cancelled_before_it_began_is_closed() -> None:
    """A loop that ends cancels all its tasks, those included that were just made."""

    async def story() -> None:
        shielding = asyncio.ensure_future(finish(asyncio.sleep(1)))
        await asyncio.sleep(0)  # it has made a task, which has not begun
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await shielding

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(story())
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def test_a_cancellation_is_delivered_after_the_end() -> None:
    async def story() -> None:
        begun, end, ended = asyncio.Event(), asyncio.Event(), []

        async def work() -> None:
            begun.set()
            await end.wait()
            ended.append(True)

        shielding = asyncio.ensure_future(finish(work()))
        await begun.wait()
        for _ in range(2):
            shielding.cancel()
            await asyncio.sleep(0)
        assert not shielding.done()
        end.set()
        with pytest.raises(asyncio.CancelledError) as caught:
            await shielding
        assert ended == [True]
        assert caught.value.__cause__ is None

    asyncio.run(story())


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine that counts how often it was resumed."""

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner
        self.steps = 0

    def __await__(self) -> Any:
        return self._inner.__await__()

    def send(self, value: Any) -> Any:
        self.steps += 1
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        self.steps += 1
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()


async def _shielded(seconds: float) -> None:
    interruption, failure = await finish_within(asyncio.sleep(seconds), 60, lambda: None)
    assert failure is None
    assert interruption is not None
    raise interruption


@pytest.mark.parametrize("shield", [lambda seconds: finish(asyncio.sleep(seconds)), _shielded])
def test_a_task_that_is_cancelled_all_the_time_waits_in_peace(shield: Callable[[float], Any]) -> None:
    """anyio cancels a task at each step of the loop. Each time one more callback was added: their calls took seconds at
    the end."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        counted = Counted(shield(0.2))
        task = loop.create_task(counted)
        cancelled = 0

        def cancel() -> None:
            nonlocal cancelled
            if not task.done():
                cancelled += 1
                task.cancel()
                loop.call_soon(cancel)

        await asyncio.sleep(0)
        cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled > 100
        assert counted.steps < 10

    asyncio.run(story())


@pytest.mark.thorough
def test_an_effect_of_locks_and_backends_is_data() -> None:
    """No field of it is a function: the exploration compares effects, and performs them in its own way."""
    effects = 0
    for path in sorted((ROOT / "fencing").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and (ast.get_docstring(node) or "").startswith("The effect"):
                effects += 1
                fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                assert not [field for field in fields if "Callable" in ast.unparse(field.annotation)], node.name
    assert effects >= 15


class Connection:
    """What a caller has in a variable."""


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_error_of_a_plan_leaves_no_circle_behind(*, asynchronous: bool) -> None:
    """What the frames of its caller refer to is collected at once: such as a connection."""
    made: list[weakref.ref[Connection]] = []

    def plan() -> Plan[None]:
        yield "effect"

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    async def fail_async(_: Any) -> None:
        raise ZeroDivisionError

    def call() -> None:
        connection = Connection()
        made.append(weakref.ref(connection))
        run(plan(), fail)

    async def call_async() -> None:
        connection = Connection()
        made.append(weakref.ref(connection))
        await run_async(plan(), fail_async)

    async def story() -> None:
        with suppress(ZeroDivisionError):
            if asynchronous:
                await call_async()
            else:
                call()
        assert made[0]() is None

    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


def test_a_coroutine_that_asyncio_does_not_run_takes_nothing() -> None:
    """As under trio: tests/runtimes/test_trio.py."""
    coordinator = AsyncMemoryCoordinator(ttl=10)
    with pytest.raises(RuntimeError, match="use the sync class"):
        coordinator.acquire("orders:42").send(None)
    assert asyncio.run(coordinator.holder("orders:42")) is None

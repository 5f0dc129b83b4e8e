"""The blocks of guards: what is not ``with`` or ``async with`` says so, and nobody learns of it from lost data."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence
from storage_guards import (
    AsyncFileGuard,
    AsyncMemoryGuard,
    AsyncPsycopgGuard,
    AsyncRedisGuard,
    AsyncSQLAlchemyGuard,
    FileGuard,
    MemoryGuard,
    PsycopgGuard,
    RedisGuard,
    SQLAlchemyGuard,
    fenced,
)
from tests.support.sides import Side

MINE = Fence("orders:1", 5, "a" * 22)

SYNC = ("FileGuard", "MemoryGuard", "PsycopgGuard", "RedisGuard", "SQLAlchemyGuard")
ASYNC = tuple(f"Async{name}" for name in SYNC)


def guard_of(kind: str, folder: Path) -> Any:
    """A guard that nothing is asked of."""
    side = Side(kind.startswith("Async"))
    match kind.removeprefix("Async"):
        case "FileGuard":
            return (AsyncFileGuard if side.asynchronous else FileGuard)(folder)
        case "MemoryGuard":
            return (AsyncMemoryGuard if side.asynchronous else MemoryGuard)()
        case "PsycopgGuard":
            return (AsyncPsycopgGuard if side.asynchronous else PsycopgGuard)("postgresql://127.0.0.1:1/none")
        case "RedisGuard":
            return (AsyncRedisGuard if side.asynchronous else RedisGuard)(side.client("redis://127.0.0.1:1"))
    if side.asynchronous:
        return AsyncSQLAlchemyGuard(create_async_engine(f"sqlite+aiosqlite:///{folder}/data.db"))
    return SQLAlchemyGuard(create_engine(f"sqlite:///{folder}/data.db"))


@pytest.mark.parametrize("kind", [*SYNC, *ASYNC])
def test_a_block_that_is_not_entered(kind: str, tmp_path: Path) -> None:
    guard = guard_of(kind, tmp_path)
    statement = "async with" if kind.startswith("Async") else "with"
    block = guard.begin(MINE)
    with pytest.raises(AttributeError) as raised:
        block.execute("UPDATE orders SET total = 1")
    text = f"begin() returns a block, which has no 'execute'; write `{statement} … as …:`, and use what that gives"
    assert str(raised.value) == text
    del raised
    with pytest.warns(RuntimeWarning, match="was never entered, so it had no effect") as caught:
        del block
    assert caught[0].filename == __file__


def test_a_block_is_entered_once() -> None:
    guard, asynchronous = MemoryGuard(), AsyncMemoryGuard()
    block: Any = guard.begin(MINE, claim=True)
    again: Any = asynchronous.begin(MINE, claim=True)

    async def enter() -> None:
        async with again:
            pass

    with block:
        pass
    asyncio.run(enter())
    for use in (block.__enter__, lambda: asyncio.run(enter())):
        with pytest.raises(TypeError, match=r"^this begin\(\) was used before; call begin\(\) once for each block$"):
            use()


@pytest.mark.parametrize("kind", SYNC)
def test_a_sync_block_with_async_with(kind: str, tmp_path: Path) -> None:
    async def enter() -> None:
        async with guard_of(kind, tmp_path).begin(MINE):
            raise AssertionError("entered")

    with pytest.raises(TypeError, match=r"for `with`, not for `async with`; write `with guard\.begin\(…\) as …:`"):
        asyncio.run(enter())


@pytest.mark.parametrize("kind", ASYNC)
def test_an_async_block_without_async_with(kind: str, tmp_path: Path) -> None:
    guard = guard_of(kind, tmp_path)

    with (
        pytest.raises(TypeError, match=r"not for `with`; write `async with guard\.begin\(…\) as …:`"),
        guard.begin(MINE),
    ):
        raise AssertionError("entered")


def test_fenced_without_with() -> None:
    with (
        httpx2.Client() as client,
        pytest.warns(RuntimeWarning, match=r"never entered.*; write `with fenced\(…\) as …:`"),
    ):
        fenced(client, MINE)


@pytest.mark.parametrize("kind", [*SYNC, *ASYNC])
def test_a_guard_without_once_says_which_guards_have_it(kind: str, tmp_path: Path) -> None:
    begin = guard_of(kind, tmp_path).begin
    if not kind.endswith("FileGuard"):
        with pytest.warns(RuntimeWarning, match="never entered"):
            begin(MINE, once="2026-11-23")
        return
    with pytest.raises(TypeError, match="SQLAlchemyGuard, PsycopgGuard, RedisGuard"):
        begin(MINE, once="2026-11-23")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_file_guard_writes_and_publishes_nothing_once(is_async: bool, tmp_path: Path) -> None:
    guard: Any = (AsyncFileGuard if is_async else FileGuard)(tmp_path)
    side = Side(is_async)
    for call, body, what in ((guard.write, b"", "a write"), (guard.publish, {}, "a publication")):
        error = side.expect(TypeError, call, MINE, body, once="2026-11-23")
        assert f"cannot do {what} once per key: SQLAlchemyGuard, PsycopgGuard, RedisGuard, the pub" in str(error)

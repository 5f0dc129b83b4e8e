"""A guarded call inside a guarded block of the same thread or task would wait for itself: it is refused at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from fencing import Fence
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard
from tests.support.sql_ways import SYNC, Way, WayLender, asyncio_url, ways

MINE, OTHER, NEWER = Fence("r", 7, "t" * 22), Fence("other", 7, "t" * 22), Fence("other", 8, "u" * 22)
STATEMENT = "UPDATE orders SET total = total + 1"
PATIENCE = 60.0
AT_ONCE = 50.0


@pytest.fixture(params=ways("PsycopgGuard", "pymysql", "sqlite", of=SYNC))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        way.beside.claim(MINE, OTHER)
        yield way


@pytest.fixture
def url(way: Way) -> str:
    return way.direct


def is_psycopg(url: str) -> bool:
    return url.startswith("postgresql:")


@pytest.fixture
def guard(way: Way) -> Any:
    source = way.direct if way.is_psycopg else way.outside
    return way.guard_class(source, timeout=PATIENCE)


@pytest.fixture
def statement(url: str) -> Any:
    return STATEMENT if is_psycopg(url) else text(STATEMENT)


def nothing(guard: Any, statement: Any) -> None:
    with guard.begin(MINE):
        raise AssertionError("it is not entered")


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "write": lambda guard, statement: guard.write(MINE, statement),
    "claim": lambda guard, statement: guard.claim(MINE),
    "begin": nothing,
    "one of several": lambda guard, statement: guard.claim(MINE, OTHER),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_inside_a_block(guard: Any, statement: Any, call: str) -> None:
    started = time.monotonic()
    with guard.begin(MINE) as connection:
        connection.execute(statement)
        with pytest.raises(RuntimeError, match=r"'r'.*the connection or session of that block"):
            CALLS[call](guard, statement)
    assert time.monotonic() - started < AT_ONCE
    assert guard.write(MINE, statement) == 1, "the block is over"
    with guard.begin(MINE) as connection:
        assert connection.execute(_select(statement)).fetchone()[0] == 2


@pytest.mark.parametrize("way", ways("PsycopgGuard", of=("psycopg", "pymysql", "PsycopgGuard")), indirect=True)
def test_another_name_inside_a_block(guard: Any) -> None:
    with guard.begin(MINE):
        guard.claim(NEWER)
        assert guard.mark("other").is_of(NEWER)


def test_a_block_that_was_refused_or_failed_is_over(guard: Any, statement: Any) -> None:
    with pytest.raises(ZeroDivisionError), guard.begin(MINE):
        raise ZeroDivisionError
    assert guard.write(MINE, statement) == 1


@pytest.mark.parametrize("way", ways("psycopg", of=("psycopg", "pymysql", "sqlite")), indirect=True)
def test_a_hook_after_the_end(guard: Any, statement: Any) -> None:
    """The block has not been left yet, but nothing would wait for it any more."""
    rows: list[int] = []
    factory = sessionmaker(guard._engine)
    for end in ("after_commit", "after_rollback"):
        event.listen(factory, end, lambda _: rows.append(guard.write(MINE, statement)))
    with guard.session(MINE, factory=factory) as session:
        session.execute(statement)
    assert rows == [1]
    with pytest.raises(ZeroDivisionError), guard.session(MINE, factory=factory) as session:  # noqa: PT012
        session.execute(statement)
        raise ZeroDivisionError
    assert rows == [1, 1]


def test_another_thread_waits_for_its_turn(guard: Any, statement: Any) -> None:
    rows: list[int] = []
    thread = threading.Thread(target=lambda: rows.append(guard.write(MINE, statement)))
    with guard.begin(MINE):
        thread.start()
        thread.join(0.2)  # time passes: it waits
        assert thread.is_alive()
        assert not rows
    thread.join(PATIENCE)
    assert rows == [1]


def test_tasks(guard: Any, statement: Any, url: str) -> None:
    """A task is refused what it would wait for; its child, which inherits its context, is not."""

    async def main() -> None:
        engine = create_async_engine(asyncio_url(url.replace("postgresql:", "postgresql+psycopg:")))
        own: Any = AsyncSQLAlchemyGuard(engine, timeout=PATIENCE)
        if is_psycopg(url):
            own = AsyncPsycopgGuard(url, timeout=PATIENCE)
        async with own.begin(MINE):
            with pytest.raises(RuntimeError, match="would wait for itself"):
                await own.write(MINE, statement)
            child = asyncio.create_task(own.write(MINE, statement))
            await asyncio.wait([child], timeout=0.2)  # time passes: it waits
            assert not child.done()
        assert await child == 1
        assert await own.write(MINE, statement) == 1
        await engine.dispose()

    asyncio.run(main())


def _select(statement: Any) -> Any:
    query = "SELECT total FROM orders"
    return query if isinstance(statement, str) else text(query)

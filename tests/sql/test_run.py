"""``run``: a block that others at the same time have undone is run anew, as a whole, and within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from fencing import Fence, GuardUnavailable, LeaseLost, OutcomeUnknown, StaleFence
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.sql_ways import ADD, MINE, NEWER, OTHER, READ, TO_SERVERS, Way, WayLender, is_commit, ways

RAISE = {
    "postgres": "DO $$ BEGIN RAISE EXCEPTION 'undone' USING ERRCODE = '{}'; END $$",
    "mariadb": "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {}, MESSAGE_TEXT = 'undone'",
}
RETRIED = {"postgres": ("40001", "40P01"), "mariadb": (1020, 1205, 1213)}


class Shop:
    """A guard, sync or async, and functions to match, made of SQL."""

    def __init__(self, way: Way) -> None:
        self.way, self.side = way, way.side
        self.kind = way.database
        self.direct, self.beside = way.outside, way.beside
        way.sql("INSERT INTO orders VALUES (2, 0)")
        self.guard: Any = way.guard
        self.runs = 0

    def function(self, *steps: str | Callable[[], Any]) -> Callable[..., Any]:
        """A function for ``run`` that executes SQL and calls what is callable; the last value is what it returns."""

        def function(connection: Any) -> Any:
            self.runs += 1
            value: Any = None
            for step in steps:
                if callable(step):
                    step()
                else:
                    result = connection.execute(text(step))
                    value = result.scalar() if result.returns_rows else value
            return value

        async def async_function(connection: Any) -> Any:
            self.runs += 1
            value: Any = None
            for step in steps:
                if callable(step):
                    step()
                else:
                    result = await connection.execute(text(step))
                    value = result.scalar() if result.returns_rows else value
            return value

        return async_function if self.side.asynchronous else function

    def run(self, *arguments: Any, guard: Any = None, **options: Any) -> Any:
        return self.side.call((guard or self.guard).run, *arguments, **options)

    def undone(self, code: object) -> str:
        return RAISE[self.kind].format(code)

    @property
    def total(self) -> int:
        return self.way.total


@pytest.fixture(params=ways("psycopg", "aiomysql", of=TO_SERVERS))
def shop(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Shop]:
    with sql_ways.lend(request.param) as way:
        yield Shop(way)


def test_it_is_a_begin_that_returns(shop: Shop) -> None:
    shop.beside.claim(MINE, OTHER)
    assert shop.run(OTHER, MINE, shop.function(ADD, READ)) == 1
    assert (shop.runs, shop.total) == (1, 1)
    assert shop.run(NEWER, shop.function(ADD, READ), claim=True) == 2
    with pytest.raises(StaleFence):
        shop.run(MINE, shop.function(ADD))
    assert (shop.runs, shop.total) == (2, 2)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_what_others_undid_is_run_anew(shop: Shop, index: int) -> None:
    shop.beside.claim(MINE)
    codes = RETRIED[shop.kind]
    undone = shop.undone(codes[index % len(codes)])

    def function(connection: Any) -> Any:
        return shop.function(ADD, *[undone] * (shop.runs < 3), READ)(connection)

    async def async_function(connection: Any) -> Any:
        return await shop.function(ADD, *[undone] * (shop.runs < 3), READ)(connection)

    assert shop.run(MINE, async_function if shop.side.asynchronous else function) == 1
    assert (shop.runs, shop.total) == (4, 1)


def test_it_ends_after_so_many_attempts(shop: Shop) -> None:
    shop.beside.claim(MINE)
    code = RETRIED[shop.kind][0]
    error = shop.side.expect(GuardUnavailable, shop.guard.run, MINE, shop.function(ADD, shop.undone(code)), attempts=3)
    assert (shop.runs, shop.total) == (3, 0)
    assert error.resource == "orders:1"
    assert "3 of at most 3 times" in str(error)
    assert str(code) in str(error.__cause__)


@pytest.mark.thorough
def test_it_ends_in_time(shop: Shop) -> None:
    shop.beside.claim(MINE)
    guard = shop.way.new_guard(timeout=2.0)
    shop.side.call(guard.mark, "orders:1")  # and is connected now
    started = time.monotonic()
    undone = shop.undone(RETRIED[shop.kind][0])
    shop.side.expect(GuardUnavailable, guard.run, MINE, shop.function(undone), attempts=1_000_000)
    assert 1 < shop.runs < 100_000
    assert time.monotonic() - started < 60


def test_nothing_else_is_run_anew(shop: Shop) -> None:
    shop.beside.claim(MINE)

    def fails(error: Exception) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    for error in (ValueError("mine"), GuardUnavailable("of another guard"), StaleFence(fence=OTHER, mark=None)):
        assert shop.side.expect(type(error), shop.guard.run, MINE, shop.function(ADD, fails(error))) is error
    shop.side.expect(IntegrityError, shop.guard.run, MINE, shop.function(ADD, "INSERT INTO orders VALUES (1, 0)"))
    assert (shop.runs, shop.total) == (4, 0)
    shop.way.proxy.drop_reply_when(is_commit)
    unknown = shop.side.expect(OutcomeUnknown, shop.guard.run, MINE, shop.function(ADD))
    assert shop.beside.landed(unknown) is True
    assert (shop.runs, shop.total) == (5, 1)


def test_a_newer_holder_ends_it(shop: Shop) -> None:
    shop.beside.claim(MINE)
    number = iter(range(6, 100))
    claims = []

    def claim_then_undo() -> None:
        claims.append(pool.submit(shop.beside.claim, Fence("orders:1", next(number), "b" * 22)))

    function = shop.function(claim_then_undo, shop.undone(RETRIED[shop.kind][0]))
    with ThreadPoolExecutor() as pool:
        shop.side.expect(StaleFence, shop.guard.run, MINE, function, attempts=50)
    assert claims[0].exception() is None  # the others may have come in another order
    assert shop.total == 0


def test_a_lease_that_ends_meanwhile(shop: Shop) -> None:
    class Lease:
        fence = MINE
        _ended: str | None = None

    lease = Lease()
    shop.beside.claim(MINE)

    def end() -> None:
        lease._ended = "released"

    function = shop.function(end, shop.undone(RETRIED[shop.kind][0]))
    shop.side.expect(LeaseLost, shop.guard.run, lease, function)
    assert shop.runs == 1


@pytest.mark.thorough
def test_a_real_deadlock(shop: Shop) -> None:
    shop.beside.claim(MINE)
    if shop.kind == "mariadb":
        shop.way.sql("INSERT INTO orders VALUES " + ", ".join(f"({id_}, 0)" for id_ in range(3, 101)))
    with ThreadPoolExecutor() as pool, shop.direct.connect() as other:
        if shop.kind == "postgres":
            other.execute(text("SET deadlock_timeout = '20s'"))  # so it is the guarded one that finds it, and is undone
        other.execute(text("UPDATE orders SET total = 10 WHERE id > 1"))

        def add_and_commit() -> None:
            other.execute(text(ADD))
            other.commit()

        def block_once() -> None:
            if shop.runs == 1:
                pool.submit(add_and_commit)

        function = shop.function(ADD, block_once, "UPDATE orders SET total = total + 1 WHERE id = 2", READ)
        assert shop.run(MINE, function) == 2
    assert shop.runs == 2
    assert shop.total == 2


def test_a_real_race_for_the_check_itself(shop: Shop) -> None:
    """Above READ COMMITTED PostgreSQL refuses a check that had to wait; MariaDB's is READ COMMITTED then."""
    shop.beside.claim(MINE)
    guard = shop.way.new_guard(isolation_level="SERIALIZABLE")
    with ThreadPoolExecutor() as pool:
        with shop.beside.begin(MINE) as connection:
            late = pool.submit(shop.run, MINE, shop.function(ADD, READ), guard=guard)
            until_locks_are_waited_for(shop.way.url)
            connection.execute(text(ADD))
        assert late.result(30) == 2


def test_misuse(shop: Shop) -> None:
    function = shop.function(ADD)
    for arguments in ((), (MINE,), (function,), (function, MINE)):
        assert "guard.run(lease, function)" in str(shop.side.expect(TypeError, shop.guard.run, *arguments))
    shop.side.expect(TypeError, shop.guard.run, MINE, function, attempts="5")
    shop.side.expect(TypeError, shop.guard.run, MINE, function, attempts=True)
    shop.side.expect(ValueError, shop.guard.run, MINE, function, attempts=0)
    shop.beside.claim(MINE)

    async def coroutine(_: Any) -> None:
        raise AssertionError("it has run")

    wrong: Any = (lambda _: None) if shop.side.asynchronous else coroutine
    assert "async" in str(shop.side.expect(TypeError, shop.guard.run, MINE, wrong))
    assert shop.runs == 0

"""A call waits for a connection no longer than its own time: for a free one of a pool, and for one that is opened."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from examples.servers import RedisServer
from fencing import GuardUnavailable, OutcomeUnknown, SQLCoordinator
from fencing.kernel.opening import MOST_OVERDUE
from storage_guards import AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from storage_guards.sqlalchemy import transaction, transaction_async
from tests.support import wait_until
from tests.support.psycopg_database import dsn_of
from tests.support.sql_ways import DONE, MINE, THROUGH_SQLALCHEMY, TO_SERVERS, Way, WayLender, ways

TIMEOUT = 1.0
LONG = 600.0
"""The pool's own time-out, in seconds: only a bound of the guard's ends a call before it."""

caller: ContextVar[str] = ContextVar("caller", default="nobody")


@pytest.fixture
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


def take_all(way: Way, guard: Any) -> Callable[[], Any]:
    """Take the only connection of the guard's engine; the function gives it back."""
    connection: Any = guard._engine.connect()
    if not way.side.asynchronous:
        give_back: Callable[[], Any] = connection.close
        return give_back
    way.side.call(connection.start)
    return lambda: way.side.call(connection.close)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("psycopg", "aiosqlite", of=THROUGH_SQLALCHEMY), indirect=True)
def test_a_pool_that_is_used_up(way: Way) -> None:
    """It was the pool's own bound that counted."""
    guard = way.new_guard(timeout=TIMEOUT, size=1, pool_timeout=LONG)
    give_back = take_all(way, guard)
    uses: list[tuple[Any, dict[str, Any]]] = [
        ((guard.claim, MINE), {}),
        ((guard.claim, MINE), {"timeout": 0.01}),  # which is for locks; to connect needs more
        ((guard.write, MINE, *way.statement(DONE, id=1)), {"claim": True}),
        ((guard.mark, MINE.resource), {}),
    ]
    for use, options in uses:
        error = way.side.expect(GuardUnavailable, *use, **options)
        assert "within 1 s" in str(error)
        assert "the engine's pool is used up" in str(error)
    give_back()
    assert way.side.call(guard.write, MINE, *way.statement(DONE, id=1), claim=True) == 1
    wait_until(lambda: getattr(guard._engine, "sync_engine", guard._engine).pool.checkedout() == 0)


@pytest.mark.parametrize("way", ways("psycopg", "psycopg-async", of=TO_SERVERS), indirect=True)
def test_an_acquire_whose_guard_has_no_connection(way: Way, any_redis: RedisServer) -> None:
    guard = way.new_guard(size=1, pool_timeout=LONG)
    give_back = take_all(way, guard)
    coordinator = way.side.coordinator(any_redis.url, guards=[guard], ttl=LONG)
    error = way.side.expect(GuardUnavailable, coordinator.acquire, "r", timeout=TIMEOUT)
    assert "retry" in str(error)
    give_back()
    lease = way.side.call(coordinator.acquire, "r", timeout=60)
    assert way.side.call(lease.release) is True


@pytest.mark.parametrize("way", ways("psycopg", of=("psycopg", "pymysql", "sqlite")), indirect=True)
def test_whoever_waits_gets_the_connection_that_is_given_back(way: Way) -> None:
    guard = way.new_guard(timeout=LONG, size=1, pool_timeout=LONG)
    give_back = take_all(way, guard)
    threads = [threading.Thread(target=guard.claim, args=(MINE,), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert any(thread.is_alive() for thread in threads)
    give_back()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert guard._engine.pool.checkedout() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("pymysql", "psycopg-async", of=TO_SERVERS), indirect=True)
def test_a_login_that_drips(way: Way) -> None:
    """Each byte of it comes in time, and the whole never."""
    guard = way.new_guard(timeout=TIMEOUT)
    way.proxy.drip(replies=0.2)
    error = way.side.expect(GuardUnavailable, guard.claim, MINE)
    assert "within 1 s" in str(error)
    for _ in range(MOST_OVERDUE):
        way.side.expect(GuardUnavailable, guard.claim, MINE)
    way.proxy.restore()
    wait_until(lambda: way.serves(guard))


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["PsycopgGuard", "AsyncPsycopgGuard"], indirect=True)
def test_a_login_that_drips_to_a_guard_without_a_pool(way: Way) -> None:
    guard = way.guard_class(way.through, timeout=TIMEOUT)
    way.proxy.drip(replies=0.2)
    error = way.side.expect(GuardUnavailable, guard.claim, MINE)
    assert "within 1 s" in str(error)
    way.proxy.restore()
    wait_until(lambda: way.serves(guard))


class Hanging:
    """A user's function that connects, and hangs until it is let go."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self.let_go = threading.Event()
        self.seen: list[str] = []
        self.made: list[Any] = []

    def __call__(self) -> Any:
        self.seen.append(caller.get())
        assert self.let_go.wait(90)
        self.made.append(self._connect())
        return self.made[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("with_sqlalchemy", [True, False])
def test_a_function_of_the_users_that_hangs(with_sqlalchemy: bool, postgres_url: str) -> None:
    """It costs a call its own time. So many may hang at once, and no more; then the error says so. Those that connect
    in the end are closed, or go to a pool."""
    hanging = Hanging(lambda: psycopg.connect(dsn_of(postgres_url)))
    guard: Any = PsycopgGuard(hanging, timeout=TIMEOUT)
    if with_sqlalchemy:
        engine: Any = create_engine("postgresql+psycopg://", creator=hanging)
        guard = SQLAlchemyGuard(engine, timeout=TIMEOUT)
    caller.set("the test")
    errors = []
    for _ in range(MOST_OVERDUE + 1):
        with pytest.raises(GuardUnavailable) as caught:
            guard.claim(MINE)
        errors.append(str(caught.value))
    assert hanging.seen == ["the test"] * MOST_OVERDUE
    assert "hang" in errors[-1]
    hanging.let_go.set()
    guard.create_tables()
    guard.claim(MINE)
    if with_sqlalchemy:
        wait_until(lambda: engine.pool.checkedout() == 0)
        engine.dispose()
    wait_until(lambda: len(hanging.made) >= MOST_OVERDUE and all(each.closed for each in hanging.made))


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("psycopg", of=("psycopg", "pymysql")), indirect=True)
def test_an_engine_without_a_pool(way: Way) -> None:
    guard = SQLAlchemyGuard(create_engine(way.through, poolclass=NullPool), timeout=TIMEOUT)
    guard.claim(MINE)
    way.proxy.drip(replies=0.2)
    with pytest.raises(GuardUnavailable):
        guard.claim(MINE)
    way.proxy.restore()


@pytest.mark.parametrize(
    ("opened_before", "tries_out"), [(False, False), (True, False), (False, True)], ids=["", "before", "ping"]
)
@pytest.mark.parametrize("way", ["psycopg"], indirect=True)
def test_a_connection_that_lies_idle_needs_no_other_thread(way: Way, opened_before: bool, tries_out: bool) -> None:
    """Also one that the engine has opened before there was a guard, or that its pool first tries out: each call took a
    helper thread, for ever."""
    engine = create_engine(way.through, pool_size=1, pool_pre_ping=tries_out)
    if opened_before:
        engine.connect().close()
    guard = SQLAlchemyGuard(engine)
    if not opened_before:
        guard.claim(MINE)
    seen: list[int] = []
    event.listen(engine, "engine_connect", lambda *_: seen.append(threading.get_ident()))
    guard.claim(MINE)
    guard.write(MINE, *way.statement(DONE, id=1))
    guard.mark(MINE.resource)
    assert seen == [threading.get_ident()] * 3
    engine.dispose()


@pytest.mark.parametrize("way", ["psycopg"], indirect=True)
def test_an_error_of_a_signal_handler_while_a_call_waits(way: Way) -> None:
    """It may be a TimeoutError, too: that is the user's own."""
    guard = way.new_guard(timeout=LONG, size=1, pool_timeout=LONG)
    give_back = take_all(way, guard)

    def handle(*_: object) -> None:
        raise TimeoutError("mine")

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="mine"):
            guard.begin(MINE, claim=True).__enter__()
        assert time.monotonic() - began < LONG / 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    give_back()
    guard.claim(MINE)
    wait_until(lambda: guard._engine.pool.checkedout() == 0)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("psycopg", "pymysql", of=("psycopg", "pymysql")), indirect=True)
@pytest.mark.parametrize("settings", [{}, {"pool_recycle": 0}, {"pool_pre_ping": True}], ids=["", "recycle", "ping"])
def test_retries_at_a_server_that_has_stopped(way: Way, settings: dict[str, Any]) -> None:
    """What lies idle in the pool has lost its connection by then, or is tried out first."""
    guard = way.new_guard(timeout=TIMEOUT, size=1, **settings)
    guard.claim(MINE)
    way.proxy.silence()
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(GuardUnavailable, match="retry"):
            guard.claim(MINE)
        assert time.monotonic() - began < 30
    way.proxy.restore()
    wait_until(lambda: way.serves(guard))
    assert guard.write(MINE, *way.statement(DONE, id=1)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("way", ways("asyncpg", of=TO_SERVERS), indirect=True)
def test_each_call_ends_at_a_server_that_has_stopped(way: Way) -> None:
    """A bound that only the server keeps is none there."""
    guard = way.new_guard(timeout=TIMEOUT, size=1)
    way.side.call(guard.claim, MINE)
    unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes="")
    uses: list[tuple[Any, ...]] = [
        (guard.claim, MINE),
        (guard.write, MINE, *way.statement(DONE, id=1)),
        (guard.mark, MINE.resource),
        (guard.landed, unknown),
        (guard.verify,),
    ]
    for use, *arguments in uses:
        way.proxy.restore()
        wait_until(lambda: way.serves(guard))
        way.proxy.silence()
        way.side.expect(GuardUnavailable, use, *arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["psycopg"], indirect=True)
def test_a_connection_is_for_the_call_whose_context_has_prepared_it(way: Way) -> None:
    """As with a hook that sets the session's tenant: what came too late for one call went to another one."""
    guard = way.new_guard(timeout=TIMEOUT, size=1, pool_timeout=LONG)
    seen: list[str] = []
    event.listen(guard._engine, "checkout", lambda connection, *_: seen.append(caller.get()))
    give_back = take_all(way, guard)
    caller.set("late")
    way.side.expect(GuardUnavailable, guard.claim, MINE)

    patient = SQLAlchemyGuard(guard._engine, timeout=LONG)

    def claim_patiently() -> None:
        caller.set("in time")
        patient.claim(MINE)
        seen.append("claimed")

    thread = threading.Thread(target=claim_patiently, daemon=True)
    thread.start()
    wait_until(lambda: any(each.name == "fencing-opener" for each in threading.enumerate()))
    give_back()
    thread.join(60)
    assert seen[seen.index("claimed") - 1] == "in time"


def test_hooks_of_the_user_are_asked_before_a_helper_connects(postgres_url: str) -> None:
    """Those that come after the guard's, too, as where a hook fetches the password. And one hook is enough for all."""
    engine = create_engine(postgres_url)
    guards = [SQLAlchemyGuard(engine) for _ in range(3)]
    coordinators = [SQLCoordinator(engine) for _ in range(3)]
    guards[0].create_tables()
    engine.dispose()
    seen: list[dict[str, Any]] = []
    event.listen(engine, "do_connect", lambda dialect, record, args, options: seen.append(options))
    for guard in guards:
        guard.claim(MINE)
    assert len(seen) == 1
    assert len(engine.dialect.dispatch.do_connect) == 2
    for coordinator in coordinators:
        coordinator.close()
    engine.dispose()


def test_hooks_may_ask_other_databases_and_the_same_one(postgres_url: str, tmp_path: Path) -> None:
    """The bounds of the guard's helper are for its engine alone. And what ends a hook is no error that it catches."""
    vault = create_engine(f"sqlite:///{tmp_path}/vault.db", poolclass=NullPool)
    SQLAlchemyGuard(vault).create_tables()
    engine = create_engine(postgres_url, pool_size=1)
    seen: list[str] = []
    asked = threading.local()

    def ask(other: Any) -> None:
        if not getattr(asked, "is_inside", False):
            asked.is_inside = True
            try:
                with other.connect() as connection:
                    seen.append(connection.execute(text("SELECT 'an answer'")).scalar_one())
            except Exception as error:  # noqa: BLE001 - as a hook with a default
                seen.append(repr(error))
            finally:
                asked.is_inside = False

    event.listen(engine, "do_connect", lambda *_: ask(vault))
    event.listen(engine, "checkout", lambda *_: ask(engine))
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    guard.claim(MINE)  # a second connection is over the pool's size, and closed then
    guard.claim(MINE)
    assert seen
    assert set(seen) == {"an answer"}
    pool: Any = engine.pool
    assert pool.checkedout() == 0
    engine.dispose()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["psycopg", "pymysql"], indirect=True)
def test_a_connection_that_is_tried_out_is_broken_off(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its way is dead, and a new one is not. It kept the only place of the pool for ever. The call itself may still
    have the time for a new one."""
    monkeypatch.setattr(transaction, "OPENING_SECONDS", 2 * TIMEOUT)
    guard = way.new_guard(timeout=TIMEOUT, size=1, pool_timeout=LONG, pool_pre_ping=True)
    guard.claim(MINE)
    way.proxy.stall_connection_when(lambda _: True)
    with suppress(GuardUnavailable):
        way.side.call(guard.claim, MINE)
    wait_until(lambda: way.serves(guard))


def outlast_the_opening_of(guard: Any, beside: Any) -> None:
    """Have a call of a guard give up, and a block of another one go on until the limit of its opening is over."""
    with pytest.raises(GuardUnavailable):
        guard.mark(MINE.resource)
    with beside.begin(MINE, claim=True) as connection:
        time.sleep(2 * TIMEOUT)
        connection.execute(text("SELECT 1"))


@pytest.mark.thorough
def test_an_opening_breaks_off_its_own_connection_alone(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook had asked another engine, and was slow then: at its limit, that engine's connection was shut."""
    monkeypatch.setattr(transaction, "OPENING_SECONDS", 2 * TIMEOUT)
    other, engine = create_engine(postgres_url, pool_size=1), create_engine(postgres_url, pool_size=1)
    guard, beside = SQLAlchemyGuard(engine, timeout=TIMEOUT), SQLAlchemyGuard(other, timeout=LONG)
    beside.create_tables()
    other.dispose()  # it is known, and has no open connection
    pool: Any = engine.pool
    let_go = threading.Event()

    def configure(*_: object) -> None:
        with other.connect() as connection:
            connection.execute(text("SELECT 1"))
        let_go.wait(90)

    event.listen(engine, "connect", configure)
    outlast_the_opening_of(guard, beside)
    let_go.set()
    wait_until(lambda: pool.checkedout() == 0)
    other.dispose()
    engine.dispose()


def test_a_connection_that_comes_after_the_engine_was_disposed_of(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went into a pool that nobody uses any more, and was left to the garbage collector, which warns."""
    monkeypatch.setattr(transaction, "LEAST_CONNECT_SECONDS", 0.01)
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine, timeout=0.01)
    opened: list[Any] = []
    let_go = threading.Event()

    def configure(connection: Any, _: object) -> None:
        opened.append(connection)
        let_go.wait(90)

    event.listen(engine, "connect", configure)
    with pytest.raises(GuardUnavailable):
        guard.mark(MINE.resource)
    wait_until(lambda: opened)
    engine.dispose()
    let_go.set()
    wait_until(lambda: all(connection.closed for connection in opened))


def test_the_opening_of_a_file_is_not_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiosqlite would lose the connection. It takes long only on a machine that is busy."""
    monkeypatch.setattr(transaction_async, "LEAST_CONNECT_SECONDS", 0.0)

    async def story() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/data.db")
        guard = AsyncSQLAlchemyGuard(engine)
        await guard.create_tables()
        await engine.dispose()
        event.listen(engine.sync_engine, "do_connect", lambda *_: time.sleep(0.05))
        await guard.claim(MINE, timeout=0.01)
        await engine.dispose()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(story())
        gc.collect()


@pytest.mark.thorough
def test_what_a_hook_tries_out_is_not_broken_off(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook of a call asks the same engine, and is slow then: at the limit, another call has that connection."""
    monkeypatch.setattr(transaction, "OPENING_SECONDS", 2 * TIMEOUT)
    engine = create_engine(postgres_url, pool_size=2, pool_pre_ping=True)
    guard, beside = SQLAlchemyGuard(engine, timeout=TIMEOUT), SQLAlchemyGuard(engine, timeout=LONG)
    guard.create_tables()
    with engine.connect(), engine.connect():
        pass  # both are idle now
    let_go, calls = threading.Event(), iter(range(1000))

    def configure(*_: object) -> None:
        if next(calls) == 0:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
            let_go.wait(90)

    event.listen(engine, "checkout", configure)
    outlast_the_opening_of(guard, beside)
    let_go.set()
    pool: Any = engine.pool
    wait_until(lambda: pool.checkedout() == 0)
    engine.dispose()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["psycopg-async"], indirect=True)
def test_a_connection_that_is_given_up_leaves_its_number_to_nobody(way: Way) -> None:
    """psycopg has the loop watch the number of its socket. It was closed, and the next socket of the program had it:
    that was not watched, or no more."""
    guard = way.new_guard(timeout=0.3, size=1)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        claim = asyncio.ensure_future(guard.claim(MINE))
        while not claim.done():
            with ExitStack() as stack:
                one, other = map(stack.enter_context, socket.socketpair())
                one.setblocking(False)
                other.setblocking(False)
                answers = [asyncio.ensure_future(loop.sock_recv(each, 1)) for each in (one, other)]
                await asyncio.sleep(0.005)  # the loop watches them
                await loop.sock_sendall(one, b"x")
                await loop.sock_sendall(other, b"x")
                assert await asyncio.wait_for(asyncio.gather(*answers), 60) == [b"x", b"x"]
        with pytest.raises(GuardUnavailable):
            await claim

    for _ in range(4):
        wait_until(lambda: way.serves(guard))
        way.proxy.silence()
        way.side.call(story)
        way.proxy.restore()

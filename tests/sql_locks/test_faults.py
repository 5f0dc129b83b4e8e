"""Servers that die, freeze or keep others waiting: every call ends in time, and the locks work on afterwards."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.util import greenlet_spawn

from examples.servers import ServerError, start_postgres
from fencing import CoordinatorUnavailable, FencingError, LeaseLost, NotAcquired, SQLCoordinator
from fencing.kernel import quirks
from fencing.kernel.workers import stop_objects_of
from fencing.sql.own_engine import MAX_CONNECTIONS, OwnEngine
from tests.support import wait_until
from tests.support.servers import start_mariadb
from tests.support.sides import Side
from tests.support.sql_locks import DRIVERS, OVER_A_NETWORK, LockDatabase, through

TIMEOUT = 0.5
MOST_SECONDS = TIMEOUT + 15
"""Giving back takes a second more, and the machine may be busy."""


MOST_PIECES = 60

WAITING_FOR_A_ROW = {
    "postgres": "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "mariadb": "SELECT 1 FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() "
    "AND info LIKE '%fencing_locks%'",
}


def seconds_of(call: Any, *args: Any, **options: Any) -> float:
    started = time.monotonic()
    call(*args, **options)
    return time.monotonic() - started


@pytest.mark.thorough
@through("psycopg", "asyncpg", of=OVER_A_NETWORK)
def test_a_server_that_falls_silent_costs_the_callers_time(locks: LockDatabase) -> None:
    """The request is under way on an open connection."""
    side, coordinator = locks.side, locks.coordinator()
    side.call(side.call(coordinator.acquire, "free").release)
    locks.proxy.silence()
    took = seconds_of(side.expect, CoordinatorUnavailable, coordinator.acquire, "free", timeout=TIMEOUT)
    assert took < MOST_SECONDS
    locks.proxy.restore()
    side.call(side.call(coordinator.acquire, "free", timeout=5).release)


def is_piece(number: int) -> Callable[[bytes], bool]:
    pieces = itertools.count(1)
    return lambda _: next(pieces) == number


@pytest.mark.thorough
@through("aiomysql", of=OVER_A_NETWORK)
def test_an_opening_that_ends_in_the_middle_leaves_nothing_behind(locks: LockDatabase) -> None:
    """The server is silent after one of its requests, of which there are several: login, version, isolation level.

    What is left to the garbage collector warns, and a warning fails the test. Each attempt has a lock of its own: what
    took one without an answer is given back later, by a coordinator whose server is silent.
    """
    side = locks.side
    for silent_after in range(MOST_PIECES):
        coordinator = locks.coordinator()
        if silent_after == 0:
            locks.proxy.silence()
        else:
            locks.proxy.hold_reply_when(is_piece(silent_after))
        try:
            lease = side.call(coordinator.acquire, f"opened:{silent_after}", timeout=0.2)
        except CoordinatorUnavailable:
            lease = None
        locks.proxy.restore()
        gc.collect()
        if lease is not None:
            side.call(lease.release)
            break
    else:
        pytest.fail(f"no lock after {MOST_PIECES} pieces of an opening")


@through("asyncpg", of=("psycopg-async", "asyncpg", "aiomysql"))
def test_a_connection_that_opens_as_its_loop_ends_is_closed(
    locks: LockDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a renewal, whose loop ends when nothing is left to renew: nobody uses it again."""
    side = locks.side
    opened: list[Any] = []
    open_one = OwnEngine.open

    def recorded(engine: OwnEngine, seconds: float) -> Any:
        opened.append(open_one(engine, seconds))
        return opened[-1]

    async def end_objects() -> None:
        stop_objects_of(asyncio.get_running_loop())

    monkeypatch.setattr(OwnEngine, "open", recorded)
    held = locks.proxy.hold_reply_when(is_piece(1))
    coordinator = locks.coordinator(ttl=60)
    with ThreadPoolExecutor(1) as pool:
        acquiring = pool.submit(side.call, coordinator.acquire, "r", timeout=30)
        assert held.wait(60)
        side.call(end_objects)
        locks.proxy.restore()
        lease = acquiring.result()
    driver = opened[0].driver_connection
    assert driver.is_closed() if hasattr(driver, "is_closed") else driver.closed
    assert side.call(lease.release)


@through("asyncpg", of=("psycopg-async", "asyncpg", "aiomysql"))
def test_a_connection_whose_loop_is_closed_can_be_hung_up(locks: LockDatabase) -> None:
    """asyncpg cannot close it then. The server must not keep its session until it is collected."""
    query = "SELECT id FROM information_schema.processlist WHERE db = DATABASE()"
    if locks.driver.database == "postgres":
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"

    def sessions() -> set[int]:
        return {session for (session,) in locks.sql(query)}

    before = sessions()
    coordinator = locks.coordinator(direct=True)
    loop = asyncio.new_event_loop()
    opened = loop.run_until_complete(greenlet_spawn(coordinator._backend._connections._engine.open, 30.0))
    wait = "pg_sleep" if locks.driver.database == "postgres" else "SLEEP"
    asking = loop.create_task(greenlet_spawn(opened._connection.exec_driver_sql, f"SELECT {wait}(0.5)"))
    loop.run_until_complete(asyncio.wait([asking], timeout=0.1))
    mine = sessions() - before
    assert mine
    quirks.may_be_left_behind(asking)
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # drivers tell of a connection that was not closed on its loop
        opened.hang_up()
        wait_until(lambda: not mine & sessions(), 60)
        del opened, asking, loop  # each refers to the connection
        gc.collect()


@pytest.mark.thorough
@through("asyncpg", of=("psycopg-async", "asyncpg", "aiomysql"))
def test_a_driver_that_loses_a_cancellation_is_cancelled_again(locks: LockDatabase) -> None:
    """As `asyncio.wait_for` does up to Python 3.11: else its task would go on for ever, and nobody would know of it."""
    reached: list[str] = []

    async def connect(*_: object, **__: object) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        reached.append("the cancellation is lost")
        try:
            await asyncio.sleep(600)
        finally:
            reached.append("the end")

    coordinator = locks.driver.kind(locks.engine(connect_args={"async_creator_fn": connect}))
    locks.side.made.append(coordinator)
    locks.side.expect(CoordinatorUnavailable, coordinator.acquire, "opened", timeout=TIMEOUT)
    assert reached[-1] == "the end"
    assert len(set(reached)) == 2


@pytest.mark.thorough
@through("pymysql", of=OVER_A_NETWORK)
def test_a_row_that_somebody_else_has_locked_costs_the_callers_time(locks: LockDatabase) -> None:
    side, coordinator = locks.side, locks.coordinator(direct=True)
    side.call(side.call(coordinator.acquire, "row").release)
    with locks.transaction() as connection:
        connection.execute(text("UPDATE fencing_locks SET owner = 'a person'"))
        took = seconds_of(side.expect, CoordinatorUnavailable, coordinator.acquire, "row", timeout=TIMEOUT)
        if locks.driver.database == "postgres":  # no request waits on, to take the lock later
            wait_until(lambda: not locks.sql(WAITING_FOR_A_ROW["postgres"]))
    assert took < MOST_SECONDS
    side.call(side.call(coordinator.acquire, "row", timeout=5).release)


@pytest.mark.thorough
@through("asyncpg", of=OVER_A_NETWORK)
def test_a_request_that_fails_after_the_closing_leaves_no_connection_open(locks: LockDatabase) -> None:
    """The database answers, so the connection is good; but who would close it, if it were kept?"""
    side, coordinator, others = locks.side, locks.coordinator(), locks.proxy.connections
    side.call(side.call(coordinator.acquire, "row", timeout=5).release)
    with locks.transaction() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(text("UPDATE fencing_locks SET owner = 'a person'"))
        acquiring = pool.submit(side.expect, Exception, coordinator.acquire, "row", timeout=TIMEOUT)
        wait_until(lambda: acquiring.done() or locks.sql(WAITING_FOR_A_ROW[locks.driver.database]))
        side.call(coordinator.close)
        acquiring.result()
    wait_until(lambda: locks.proxy.connections == others)


@pytest.mark.thorough
@through("aiosqlite", of=("sqlite", "aiosqlite"))
def test_a_busy_file_costs_the_callers_time(locks: LockDatabase) -> None:
    side, coordinator = locks.side, locks.coordinator()
    with locks.transaction() as connection:
        connection.execute(text("UPDATE fencing_locks SET owner = 'a person'"))
        took = seconds_of(side.expect, CoordinatorUnavailable, coordinator.acquire, "row", timeout=TIMEOUT)
    assert took < MOST_SECONDS
    side.call(side.call(coordinator.acquire, "row", timeout=5).release)


ENDING_LOOPS = """
import asyncio
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import AsyncSQLCoordinator

url, left = sys.argv[1], []
coordinator = AsyncSQLCoordinator(create_async_engine(url), ttl=20)

async def hold(number):
    async with coordinator.hold(f"b{number}", timeout=30):
        await asyncio.sleep(0.01)

async def use():
    await asyncio.gather(*map(hold, range(8)))
    for _ in range(3):
        left.append(asyncio.create_task(hold(1)))
    await asyncio.sleep(0)

for _ in range(5):
    asyncio.run(use())
asyncio.run(coordinator.close())
with create_engine(url).connect() as connection:
    print(connection.execute(text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")).scalar())
"""


@pytest.mark.thorough
def test_loops_that_end_with_calls_under_way_leave_no_sessions_behind(postgres_url: str) -> None:
    """The tasks that a loop leaves behind keep their connections. A process of its own, for these tasks warn."""
    with SQLCoordinator(create_engine(postgres_url)) as coordinator:
        coordinator.create_tables()
    command = [sys.executable, "-W", "ignore", "-c", ENDING_LOOPS, postgres_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20  # eight of the last loop, and those that look; it was forty


@pytest.mark.thorough
@through("sqlite", of=("sqlite", "aiosqlite"))
def test_a_file_that_others_write_almost_all_the_time(locks: LockDatabase, tmp_path: Path) -> None:
    """SQLite has no queue. A request must ask often enough to find one of the short moments between two writes."""
    side, coordinator = locks.side, locks.coordinator()
    side.call(coordinator.holder, "row")  # opens the connection
    stop = threading.Event()
    writes = 0

    def write() -> None:
        nonlocal writes
        with closing(sqlite3.connect(tmp_path / "locks.db", isolation_level=None, timeout=30)) as connection:
            while not stop.is_set():
                connection.execute("BEGIN IMMEDIATE")
                time.sleep(0.05)
                connection.execute("COMMIT")
                writes += 1
                time.sleep(0.003)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(5):
                lease = side.call(coordinator.acquire, "row", timeout=20)
                time.sleep(0.01)  # the others write again
                side.call(lease.release)
                time.sleep(0.01)
            assert writes < 150, "ten requests, each of which waits for a few writes"
        finally:
            stop.set()
        writing.result()


@pytest.mark.thorough
@through("asyncpg", of=OVER_A_NETWORK)
def test_broken_connections_are_not_noticed_by_callers(locks: LockDatabase) -> None:
    side, coordinator = locks.side, locks.coordinator()
    lease = side.call(coordinator.acquire, "held")
    for _ in range(3):
        locks.proxy.cut()
        assert side.call(coordinator.try_acquire, "held") is None
        side.call(lease.renew)
    locks.proxy.cut()
    assert side.call(lease.release) is True


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.thorough)])
def own_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server to kill."""
    try:
        if request.param == "postgres":
            server: Any = start_postgres(local=True)
        else:
            server = start_mariadb(local=True, settings={"innodb-flush-log-at-trx-commit": "1"})
    except ServerError as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_server_that_is_killed_and_started_again(own_server: Any, asynchronous: bool) -> None:
    """A lease survives a short absence, and its number is not minted again."""
    url, side = own_server.create_database(), Side(asynchronous)
    scheme = url.split(":", 1)[0]
    driver = next(
        each
        for each in DRIVERS.values()
        if each.asynchronous is asynchronous and each.scheme.split("+")[0] == scheme.split("+")[0]
    )
    coordinator = driver.coordinator(url, ttl=30)
    side.call(coordinator.create_tables)
    lease = side.call(coordinator.acquire, "held")
    own_server.kill()
    assert seconds_of(side.expect, CoordinatorUnavailable, coordinator.acquire, "free", timeout=TIMEOUT) < MOST_SECONDS
    own_server.restart()

    def is_back() -> bool:
        try:
            side.call(lease.renew)
        except CoordinatorUnavailable:
            return False
        return True

    wait_until(is_back)
    side.expect(NotAcquired, coordinator.acquire, "held", timeout=0)
    assert side.call(lease.release) is True
    again = side.call(coordinator.acquire, "held")
    assert again.fence.number > lease.fence.number
    side.call(again.release)
    side.call(coordinator.close)


class Alarm(Exception):
    """An exception of a signal handler."""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in a destructor
@through("psycopg", of=("psycopg", "pymysql", "sqlite"))
def test_an_exception_of_a_signal_handler_comes_out_unchanged_and_leaves_nothing_taken(locks: LockDatabase) -> None:
    coordinator = locks.coordinator(direct=True)
    coordinator.acquire("a").release()
    interrupted = 0

    def handler(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for i in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.00005 + 0.00005 * (i % 40))
                with coordinator.hold("a", timeout=3):
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Alarm:
                interrupted += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    coordinator.acquire("a", timeout=15).release()


@pytest.mark.thorough
@through("pymysql", of=("pymysql", "aiomysql"))
def test_a_new_connection_that_breaks_before_its_first_request(locks: LockDatabase) -> None:
    """SQLAlchemy does not translate the errors of the driver's own request for autocommit."""
    coordinator = locks.coordinator()
    lost = locks.proxy.drop_reply_when(lambda request: b"AUTOCOMMIT = 1" in request, times=1000)

    def error() -> str:
        return str(locks.side.expect(CoordinatorUnavailable, coordinator.acquire, "orders", timeout=0.2))

    wait_until(lambda: "Lost connection" in error())  # on a busy machine, to connect may take longer than a call may
    assert lost.fired
    locks.proxy.restore()
    assert locks.side.call(locks.side.call(coordinator.acquire, "orders", timeout=5).release)


@through("psycopg", of=OVER_A_NETWORK)
def test_a_connection_that_is_never_ready_costs_the_callers_time(locks: LockDatabase) -> None:
    """SQLAlchemy asks for the version. So the connection is there, and the coordinator does not have it yet."""
    coordinator = locks.coordinator()
    kept = locks.proxy.hold_reply_when(lambda request: b"version" in request.lower())
    in_the_end = threading.Timer(60, locks.proxy.restore)
    in_the_end.start()

    def is_kept() -> bool:
        locks.side.expect(CoordinatorUnavailable, coordinator.acquire, "orders", timeout=0.3)
        return kept.fired > 0

    try:
        wait_until(is_kept)  # on a busy machine, to connect may take longer than a call may
        assert in_the_end.is_alive(), "it waited until the answer came after all"
    finally:
        in_the_end.cancel()
    locks.proxy.restore()
    locks.side.call(locks.side.call(coordinator.acquire, "orders", timeout=15).release)


@pytest.mark.thorough
@through("pymysql", of=OVER_A_NETWORK)
def test_a_login_that_drips_costs_a_call_its_own_time(locks: LockDatabase) -> None:
    """Each byte of it comes in time, and the whole never."""
    coordinator = locks.coordinator(ttl=60)
    locks.proxy.drip(replies=0.2)
    took = seconds_of(locks.side.expect, CoordinatorUnavailable, coordinator.acquire, "r", timeout=TIMEOUT)
    assert took < MOST_SECONDS
    locks.proxy.restore()
    assert locks.side.call(locks.side.call(coordinator.acquire, "r", timeout=60).release) is True


@through("psycopg", "asyncpg", of=OVER_A_NETWORK)
def test_a_row_that_somebody_keeps_costs_no_lease_of_another(locks: LockDatabase) -> None:
    """Its waiters have all connections, each for as long as an attempt takes."""
    coordinator = locks.coordinator(direct=True, ttl=3)
    locks.side.call(locks.side.call(coordinator.acquire, "kept").release)
    lease = locks.side.call(coordinator.acquire, "r")
    with locks.transaction() as connection:
        connection.execute(text("SELECT 1 FROM fencing_locks WHERE resource = 'kept' FOR UPDATE"))
        waiter = partial(locks.side.expect, FencingError, coordinator.lock("kept", ttl=60).acquire, timeout=6)
        locks.side.race([waiter] * 5 * MAX_CONNECTIONS)
    assert lease.held is True
    assert locks.side.call(lease.release) is True


@through("psycopg", "pymysql", of=OVER_A_NETWORK)
def test_a_lease_whose_own_row_somebody_keeps_costs_no_other_lease(locks: LockDatabase) -> None:
    """All of them are due at the same moments, and renewed in the same requests."""
    coordinator = locks.coordinator(direct=True, ttl=3)
    leases = [locks.side.call(coordinator.acquire, name) for name in ("a", "kept", "r")]
    with locks.transaction() as connection:
        connection.execute(text("SELECT 1 FROM fencing_locks WHERE resource = 'kept' FOR UPDATE"))
        locks.side.wait_until(lambda: leases[1].lost.is_set(), seconds=60)
        assert [lease.held for lease in leases] == [True, False, True]
    error = locks.side.expect(LeaseLost, leases[1].ensure_held)
    assert error.reason == "expired"
    locks.side.call(leases.pop(1).release)  # a renewal that waited may have extended it, after its end
    assert all(locks.side.call(lease.release) for lease in leases)


@through("psycopg", "aiomysql", of=OVER_A_NETWORK)
def test_a_row_that_is_kept_for_a_moment_costs_nothing(locks: LockDatabase) -> None:
    coordinator = locks.coordinator(direct=True, ttl=6)
    leases = [locks.side.call(coordinator.acquire, name) for name in ("kept", "r")]
    before = leases[1]._holding.deadline
    with locks.transaction() as connection:
        connection.execute(text("SELECT 1 FROM fencing_locks WHERE resource = 'kept' FOR UPDATE"))
        locks.side.wait_until(lambda: leases[1]._holding.deadline > before, seconds=60)
        assert leases[0]._holding.deadline <= leases[1]._holding.deadline - 1, "it was not renewed with the other"
    locks.side.wait_until(lambda: leases[0]._holding.deadline > before + 1, seconds=60)
    assert all(locks.side.call(lease.release) for lease in leases)

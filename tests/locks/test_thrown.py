"""What another thread throws into one that waits, as time-out tools do, reaches the caller while it waits."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
import redis
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import Coordinator, MemoryCoordinator, RedisCoordinator, RedlockCoordinator, SQLCoordinator
from fencing.kernel.waking import SafeEvent, Wake
from fencing.locks import settings
from storage_guards import PsycopgGuard, RedisGuard, SQLAlchemyGuard
from tests.support import wait_until
from tests.support.fixtures import ProxyFactory, RedisFactory

LONG = 40.0
"""Seconds for which each of them would wait."""

AT_ONCE = 15.0
"""Seconds, of a machine that is busy with much else."""

WAITS_FOR_ROW = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


class Stopped(Exception):
    """Such as the exception of a job queue that ends its jobs."""


def stop_while(call: Callable[[], object], is_waiting: Callable[[], object], kind: type[BaseException]) -> None:
    """Throw an exception into a thread that waits, and see it come out."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it is what is looked for
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(is_waiting)
    thrown_at = time.monotonic()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(kind))
    thread.join(2 * LONG)
    assert time.monotonic() - thrown_at < AT_ONCE
    assert [type(error) for error in raised] == [kind]


@contextmanager
def locked_rows(url: str, table: str) -> Iterator[Callable[[], object]]:
    """All rows of a table are locked. The value says whether somebody waits for one."""
    with closing(psycopg.connect(url.replace("+psycopg", ""), autocommit=True)) as beside:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(f"SELECT 1 FROM {table} FOR UPDATE"))
            yield lambda: beside.execute(WAITS_FOR_ROW).fetchone()
        engine.dispose()


@pytest.mark.parametrize("wait", [Wake().wait, SafeEvent().wait], ids=["wake", "event"])
def test_waiting_itself(wait: Callable[[float], object]) -> None:
    began = threading.Event()

    def call() -> None:
        began.set()
        wait(LONG)

    stop_while(call, began.is_set, Stopped)


def test_a_wake_that_is_set_or_has_had_its_time() -> None:
    wake = Wake()
    wake.set()
    wake.wait(LONG)
    began = time.monotonic()
    wake.wait(0.3)
    assert 0.3 <= time.monotonic() - began < LONG


@pytest.mark.parametrize("kind", [Stopped, TimeoutError, KeyboardInterrupt])
def test_in_the_queue_of_a_lock(kind: type[BaseException], any_redis: RedisServer) -> None:
    with closing(redis.Redis.from_url(any_redis.url)) as client, ExitStack() as stack:
        coordinators: list[Coordinator] = [RedisCoordinator(client, ttl=LONG), MemoryCoordinator(ttl=LONG)]
        for coordinator in coordinators:
            stack.enter_context(coordinator)
            lease = coordinator.acquire("thrown", timeout=5)
            began = threading.Event()

            def call(coordinator: Coordinator = coordinator, began: threading.Event = began) -> None:
                began.set()
                coordinator.acquire("thrown", timeout=LONG)

            def is_waiting(began: threading.Event = began, on_redis: bool = coordinator is coordinators[0]) -> bool:
                queued = not on_redis or any(b"waiting" in key for key in client.keys("*thrown*"))
                return began.is_set() and queued

            stop_while(call, is_waiting, kind)
            lease.release()
            coordinator.acquire("thrown", timeout=5).release()  # nobody else stands in the queue


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Stopped, TimeoutError, KeyboardInterrupt])
def test_at_a_redis_that_does_not_answer(
    kind: type[BaseException], any_redis: RedisServer, proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is connected: a connection is opened by redis-py, which waits in C until its time-out."""
    monkeypatch.setattr(settings, "LONGEST_ATTEMPT_SECONDS", LONG)
    through = proxy(any_redis)
    with (
        closing(redis.Redis.from_url(through.url(any_redis.url))) as client,
        RedisCoordinator(client, ttl=3 * LONG) as coordinator,
    ):
        lease = coordinator.acquire("thrown", timeout=5)
        guard = RedisGuard(client, timeout=LONG)
        guard.claim(lease)
        for call in (lease.renew, partial(guard.claim, lease), partial(coordinator.acquire, "other", timeout=LONG)):
            held = through.hold_request_when(lambda request: b"EVAL" in request)
            stop_while(call, lambda held=held: held.fired, kind)  # type: ignore[misc]
            through.restore()
        coordinator.acquire("other", timeout=LONG).release()  # what was asked for and taken late is given back
        lease.release()


@pytest.mark.parametrize("kind", [Stopped, TimeoutError])
def test_at_a_majority_that_does_not_answer(
    kind: type[BaseException], fresh_redis: RedisFactory, proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LONGEST_ATTEMPT_SECONDS", LONG)
    servers = [fresh_redis() for _ in range(3)]
    ways = [proxy(server) for server in servers]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(closing(redis.Redis.from_url(way.url(server.url))))
            for way, server in zip(ways, servers, strict=True)
        ]
        ttl = 4 * LONG
        coordinator = stack.enter_context(RedlockCoordinator(clients, ttl=ttl, longest_ttl=ttl, node_timeout=LONG))
        coordinator.initialise()
        lease = coordinator.acquire("thrown", timeout=5)
        for call in (lease.renew, partial(coordinator.acquire, "other", timeout=LONG)):
            held = [way.hold_request_when(lambda request: b"EVAL" in request) for way in ways[:2]]
            stop_while(call, lambda held=held: all(each.fired for each in held), kind)  # type: ignore[misc]
            for way in ways:
                way.restore()
        coordinator.acquire("other", timeout=LONG).release()  # what was asked for and taken late is given back
        lease.release()


@pytest.mark.parametrize("kind", [Stopped, TimeoutError])
def test_at_a_row_that_somebody_has_locked(kind: type[BaseException], postgres_url: str) -> None:
    """psycopg waits in C. A TimeoutError must not be taken for one of the connection."""
    engine = create_engine(postgres_url)
    with (
        SQLCoordinator(engine, ttl=3 * LONG) as coordinator,
        closing(psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True)) as connection,
    ):
        coordinator.create_tables()
        lease = coordinator.acquire("thrown", timeout=5)
        guards: list[Any] = [SQLAlchemyGuard(engine, timeout=LONG), PsycopgGuard(connection, timeout=LONG)]
        guards[0].create_tables()
        guards[0].claim(lease)
        with locked_rows(postgres_url, "fencing_marks") as is_waiting:
            for guard in guards:
                began = threading.Event()

                def claim(guard: Any = guard, began: threading.Event = began) -> None:
                    began.set()
                    guard.claim(lease)

                stop_while(claim, lambda began=began: began.is_set() and is_waiting(), kind)  # type: ignore[misc]
        lease.release()
        with locked_rows(postgres_url, "fencing_locks") as is_waiting:
            stop_while(lambda: coordinator.acquire("thrown", timeout=LONG), is_waiting, kind)
        coordinator.acquire("thrown", timeout=LONG).release()  # what was asked for and taken late is given back
    engine.dispose()

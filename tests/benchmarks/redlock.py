"""Locks on five Redis servers: ours, redlock-py's, pottery's, two algorithms, and the raw fan-out of the same bytes.

The raw fan-out sends our bytes to five sockets, and returns when three have replied. No library can be faster.
"""

from __future__ import annotations

import importlib
import logging
import select
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis

from examples.servers import RedisServer
from fencing import RedlockCoordinator
from fencing.kernel.effects import run as run_plan
from fencing.kernel.fence import new_token
from fencing.redis.calls import release_call
from fencing.redis.resp import INCOMPLETE, bulk, new_reader
from fencing.redlock.calls import Fanout, grant_call, member_words
from fencing.redlock.scripts import ACQUIRE, RENEW
from tests.benchmarks.children import all_cores, leave_cores
from tests.benchmarks.contenders import AGAIN, OURS
from tests.benchmarks.duel import Contenders
from tests.benchmarks.pair import CPU
from tests.benchmarks.parts import Found, Run
from tests.benchmarks.redlock_algorithms import redisson, redsync
from tests.benchmarks.servers import redis_server

NODES = 5
RAW = "raw fan-out"
REDLOCK_PY, POTTERY = "redlock-py", "pottery"
REDISSON, REDSYNC = "Redisson's algorithm", "redsync's algorithm"
PAIR, FROZEN, ROUNDS = "pair on five nodes", "two nodes frozen", "grants in one round"
ELSEWHERE = "pair on five nodes elsewhere"
TIME, ACQUIRED, GRANTED, SHARE = "pair, µs", "acquire, µs", "granted, %", "of all grants, %"
AGAINST = {TIME: (RAW, REDLOCK_PY), CPU: (RAW, REDLOCK_PY)}
TTL = 10
NODE_SECONDS = 0.05
"""For how long a client waits for a node: ours by default, with this ttl."""
LIMIT = 120.0
FROZEN_SECONDS = 30.0
"""After that, the others are not tried any more while nodes are frozen."""
ROUNDS_OF_PAIRS, BATCH = 100, 30
APART = (0, 1, 50)
"""Milliseconds between the clocks of two clients that take turns without a pause."""

Try = Callable[[str], tuple[float, bool]]
"""Tries to take a lock of this name, and frees it; returns the seconds of the try, and whether it was granted."""


def part(run: Run) -> None:
    elsewhere = [ELSEWHERE] if len(all_cores()) > 1 else []  # else there is nowhere else
    for scenario in (PAIR, *elsewhere):
        options = {"elsewhere": scenario == ELSEWHERE}
        run.duel(scenario, "redlock.opened", AGAINST, rounds=ROUNDS_OF_PAIRS, seconds=LIMIT, **options)
    if run.other:
        return
    run.say(FROZEN)
    found = run.child(FROZEN, "all", "redlock.frozen", seconds=LIMIT, rounds=run.rounds(50))
    if found is not None:
        run.compare(FROZEN, found, {})
    run.say(ROUNDS)
    found = run.child(ROUNDS, OURS, "redlock.one_round", seconds=LIMIT, rounds=run.rounds(200))
    if found is not None:
        run.compare(ROUNDS, found, {})


@contextmanager
def _nodes() -> Iterator[tuple[list[RedisServer], RedlockCoordinator]]:
    """Yield five nodes that were admitted, and a coordinator."""
    with ExitStack() as stack:
        servers = [stack.enter_context(redis_server()) for _ in range(NODES)]
        coordinator = stack.enter_context(RedlockCoordinator([server.client() for server in servers], ttl=TTL))
        coordinator.initialise()
        yield servers, coordinator


@contextmanager
def opened(elsewhere: bool) -> Iterator[Contenders]:
    """Open the contenders.

    A turn has many pairs: a pair that returns at the quorum leaves replies behind, and the next contender would pay.

    ``elsewhere``: the servers share a processor that the client does not use, as nodes are other machines.
    """
    with _nodes() as (servers, coordinator):
        if elsewhere:
            leave_cores()
        lock = coordinator.lock("orders:1")

        def ours() -> None:
            lock.acquire(timeout=5).release()

        functions: dict[str, Callable[[], object]] = {
            OURS: ours,
            OURS + AGAIN: ours,
            RAW: _raw(servers),
            REDLOCK_PY: _redlock_py(servers),
            POTTERY: _pottery(servers),
            REDISSON: redisson(servers),
            REDSYNC: redsync(servers),
        }
        yield Contenders(functions, BATCH)


def frozen(rounds: int) -> Found:
    """Return the time of each try while two of the nodes are frozen, and whether it was granted. Runs in a child.

    The contenders take turns. The clients of the others give up on a node after as long as ours does: without a
    time-out, they would wait for ever.
    """
    with _nodes() as (servers, coordinator):
        options = {"socket_timeout": NODE_SECONDS, "socket_connect_timeout": NODE_SECONDS, "retry": None}
        clients = [server.client(**options) for server in servers]
        tries = {OURS: _try_ours(coordinator), REDLOCK_PY: _try_redlock_py(clients), POTTERY: _try_pottery(clients)}
        for attempt in tries.values():
            attempt("orders:warm")
        found: dict[str, dict[str, list[float]]] = {name: {ACQUIRED: [], GRANTED: []} for name in tries}
        for server in servers[:2]:
            server.freeze()
        try:
            ends = time.monotonic() + FROZEN_SECONDS
            for number in range(rounds):
                for name, attempt in tries.items():
                    if name == OURS or time.monotonic() < ends:
                        took, granted = attempt(f"orders:{number}")
                        found[name][ACQUIRED].append(took * 1e6)
                        found[name][GRANTED].append(100.0 * granted)
        finally:
            for server in servers[:2]:
                server.thaw()
        means = {ACQUIRED: [statistics.fmean(found[OURS][ACQUIRED])]}
        shares = {name: {**its, GRANTED: [statistics.fmean(its[GRANTED])]} for name, its in found.items()}
        return {**shares, "mean": means}


def _try_ours(coordinator: RedlockCoordinator) -> Try:
    def attempt(key: str) -> tuple[float, bool]:
        started = time.perf_counter()
        lease = coordinator.acquire(key, timeout=5)
        took = time.perf_counter() - started
        lease.release()
        return took, True

    return attempt


def _try_redlock_py(clients: list[redis.Redis]) -> Try:
    module = importlib.import_module("redlock")
    manager = module.Redlock(clients)
    logging.getLogger().addHandler(logging.NullHandler())  # it logs each release that a node does not answer

    def attempt(key: str) -> tuple[float, bool]:
        started, lock = time.perf_counter(), None
        try:
            lock = manager.lock(f"{key}:redlock-py", TTL * 1000)
        except module.MultipleRedlockException:  # so it does with a majority, too, if one node has failed
            pass
        took = time.perf_counter() - started
        if lock:
            manager.unlock(lock)
        return took, bool(lock)

    return attempt


def _try_pottery(clients: list[redis.Redis]) -> Try:
    module = importlib.import_module("pottery")

    def attempt(key: str) -> tuple[float, bool]:
        lock = module.Redlock(key=f"{key}:pottery", masters=set(clients), auto_release_time=TTL)
        started = time.perf_counter()
        granted = lock.acquire(timeout=5)
        took = time.perf_counter() - started
        if granted:
            lock.release()
        return took, bool(granted)

    return attempt


def one_round(rounds: int) -> Found:
    """Return the share of grants that needed no second round, of two clients that compete. Runs in a child."""
    shares = {}
    for apart in APART:
        seen: list[Any] = []
        with ExitStack() as stack:
            servers, first = stack.enter_context(_nodes())
            clients = [server.client() for server in servers]
            second = stack.enter_context(RedlockCoordinator(clients, ttl=TTL))
            second._backend._wall_clock_us = lambda late=apart * 1000: time.time_ns() // 1000 - late  # type: ignore[misc]
            threads = [threading.Thread(target=_compete, args=(each, rounds, seen)) for each in (first, second)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        confirmed = sum(script is RENEW for script in seen)
        shares[f"clocks {apart} ms apart"] = {SHARE: [100 * (1 - confirmed / (2 * rounds))]}
    return shares


def _compete(coordinator: RedlockCoordinator, rounds: int, seen: list[Any]) -> None:
    def perform(effect: Fanout) -> Any:
        seen.append(effect.script)
        return coordinator._backend.perform(effect)

    for _ in range(rounds):
        token, settings = new_token(), coordinator._backend.settings
        grant: Any = None
        while not hasattr(grant, "fence"):
            deadline = coordinator._backend.clock() + 5
            plan = coordinator._backend.plan_acquire("orders:1", token, settings, floor=0, deadline=deadline)
            grant = run_plan(plan, perform)
        plan_release = coordinator._backend.plan_release(
            grant.fence, settings, deadline=coordinator._backend.clock() + 5
        )
        run_plan(plan_release, coordinator._backend.perform)


def _raw(servers: list[RedisServer]) -> Callable[[], object]:
    """Return the fan-out of our bytes: send to five, return at three."""
    sockets, members = [], []
    poll = select.poll()
    for server in servers:
        with server.client() as client:
            run_id = client.info("server")["run_id"]
            client.script_load(ACQUIRE.text)
        sock = socket.create_connection((server.host, server.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        poll.register(sock, select.POLLIN)
        sockets.append(sock)
        members.append(bulk(member_words(run_id, TTL * 1000, True)))
    readers = {sock.fileno(): (sock, new_reader()) for sock in sockets}
    owed = dict.fromkeys(readers, 0)

    def send(call: Any, members: list[bytes]) -> None:
        data = call.packed
        for sock, member in zip(sockets, members, strict=True):
            sock.send(data + member)
        replied = 0
        for number in owed:
            owed[number] += 1
        while replied < NODES // 2 + 1:
            for number, _ in poll.poll():
                sock, reader = readers[number]
                reader.feed(sock.recv(65536))
                while reader.gets() is not INCOMPLETE:
                    owed[number] -= 1
                    replied += owed[number] == 0

    def pair() -> None:
        token = new_token()
        send(grant_call(ACQUIRE, "orders:2", token, (TTL * 1000, "raw", 0), time.time_ns() // 1000), members)
        send(release_call("orders:2", token), [b""] * NODES)

    return pair


def _redlock_py(servers: list[RedisServer]) -> Callable[[], object]:
    manager = importlib.import_module("redlock").Redlock([server.client() for server in servers])

    def pair() -> None:
        manager.unlock(manager.lock("orders:3", TTL * 1000))

    return pair


def _pottery(servers: list[RedisServer]) -> Callable[[], object]:
    lock_class = importlib.import_module("pottery").Redlock
    masters = {redis.Redis.from_url(server.url) for server in servers}
    lock = lock_class(key="orders:4", masters=masters, auto_release_time=TTL)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair

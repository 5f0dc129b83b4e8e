"""Locks on five Redis servers: ours, redlock-py's, pottery's, two algorithms, and the raw fan-out of the same bytes.

The raw fan-out sends our bytes to five sockets, and returns when three have replied. No library can be faster.
"""

from __future__ import annotations

import importlib
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
TIME, ACQUIRED, SHARE = "pair, µs", "acquire, µs", "of all grants, %"
AGAINST = {TIME: (RAW, REDLOCK_PY), CPU: (RAW, REDLOCK_PY)}
TTL = 10
LIMIT = 120.0
ROUNDS_OF_PAIRS, BATCH = 100, 30
APART = (0, 1, 50)
"""Milliseconds between the clocks of two clients that take turns without a pause."""


def part(run: Run) -> None:
    elsewhere = [ELSEWHERE] if len(all_cores()) > 1 else []  # else there is nowhere else
    for scenario in (PAIR, *elsewhere):
        options = {"elsewhere": scenario == ELSEWHERE}
        run.duel(scenario, "redlock.opened", AGAINST, rounds=ROUNDS_OF_PAIRS, seconds=LIMIT, **options)
    if run.other:
        return
    run.say(FROZEN)
    found = run.child(FROZEN, OURS, "redlock.frozen", seconds=LIMIT, rounds=run.rounds(500))
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
    """Return the time of each acquire while two of the nodes are frozen. Runs in a child."""
    with _nodes() as (servers, coordinator):
        lock = coordinator.lock("orders:1")
        lock.acquire(timeout=5).release()
        times = []
        for server in servers[:2]:
            server.freeze()
        for _ in range(rounds):
            started = time.perf_counter()
            lease = lock.acquire(timeout=5)
            times.append((time.perf_counter() - started) * 1e6)
            lease.release()
        for server in servers[:2]:
            server.thaw()
        return {OURS: {ACQUIRED: times}, "mean": {ACQUIRED: [statistics.fmean(times)]}}


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

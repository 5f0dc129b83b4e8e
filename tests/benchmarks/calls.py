"""Calls of an operation: the library's own functions, module crossings and commands. They do not depend on the machine.

A crossing is a call from a function of one module to a function of another. A generator counts each time it is
resumed: each such step has the cost of a call.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import redis
from sqlalchemy import create_engine, text

from fencing import Fence, RedisCoordinator
from storage_guards import SQLAlchemyGuard
from tests.benchmarks.contenders import OURS, REDIS_PY
from tests.benchmarks.parts import Found, Run
from tests.benchmarks.raw import recorded_pairs
from tests.benchmarks.servers import redis_server

MINE = Fence("orders:1", 1, "a" * 22)
TTL = 10
WARM_UP, TIMES = 3, 9

SCENARIO = "one operation"
PYTHON, CROSSINGS, C_CALLS, COMMANDS = "Python calls", "module crossings", "C calls", "commands"
PAIR, HOLD, THEIR_PAIR = f"{OURS}: acquire and release", f"{OURS}: hold()", f"{REDIS_PY}: acquire and release"
WRITE, PLAIN_WRITE = "SQLAlchemyGuard.write", "SQLAlchemy: the same in its own transaction"


def part(run: Run) -> None:
    run.say(SCENARIO)
    found = run.child(SCENARIO, "all", "calls.measure", seconds=60)
    if found is not None:
        run.compare(SCENARIO, found, {})


def measure() -> Found:
    """Return the counts of each operation. Runs in a child."""
    found: dict[str, dict[str, list[float]]] = {}
    with redis_server() as server, redis.Redis.from_url(server.url) as client:
        with RedisCoordinator(client, ttl=TTL) as coordinator:
            lock, theirs = coordinator.lock("orders:42"), client.lock("orders:43", timeout=TTL)

            def pair() -> None:
                lock.acquire(timeout=5).release()

            def hold() -> None:
                with lock.hold(timeout=5):
                    pass

            def their_pair() -> None:
                theirs.acquire()
                theirs.release()

            found[PAIR], found[HOLD] = counted(pair), counted(hold)
            found[THEIR_PAIR] = counted(their_pair, "redis")
        found[PAIR][COMMANDS] = [len(recorded_pairs(server.host, server.port, ["orders:44"], TTL)[0])]
    with tempfile.TemporaryDirectory() as directory:
        engine = create_engine(f"sqlite:///{Path(directory, 'orders.sqlite')}")
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, total BIGINT NOT NULL)"))
        add = text("UPDATE orders SET total = total + 1")
        guard = SQLAlchemyGuard(engine)
        guard.create_tables()
        guard.claim(MINE)

        def plain() -> None:
            with engine.begin() as connection:
                connection.execute(add)

        found[WRITE] = counted(lambda: guard.write(MINE, add))
        found[PLAIN_WRITE] = counted(plain, "sqlalchemy")
        engine.dispose()
    return found


def counted(operation: Callable[[], object], *packages: str) -> dict[str, list[float]]:
    """Return the median calls of an operation in this thread, when connections are up and caches are full.

    Args:
        operation: the operation.
        packages: those whose functions count; the library's if there are none.
    """
    counting = packages or ("fencing", "storage_guards")

    def module_of(frame: FrameType | None) -> str:
        name: str = "" if frame is None else frame.f_globals.get("__name__", "")
        return name if name.partition(".")[0] in counting else ""

    for _ in range(WARM_UP):
        operation()
    counts: Counter[str] = Counter()
    found: dict[str, list[float]] = {what: [] for what in (PYTHON, CROSSINGS, C_CALLS)}

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and (module := module_of(frame)):
            counts[PYTHON] += 1
            counts[CROSSINGS] += module_of(frame.f_back) not in ("", module)
        elif event == "c_call":
            counts[C_CALLS] += 1

    for _ in range(TIMES):
        counts.clear()
        sys.setprofile(count)
        try:
            operation()
        finally:
            sys.setprofile(None)
        counts[C_CALLS] -= 1  # setprofile itself
        for what, its in found.items():
            its.append(counts[what])
    return {what: [statistics.median(its)] for what, its in found.items()}

"""Waiters and holders that die or stop: how long until the next waiter has the lock.

A holder, a first waiter and a second one, a process each. The first process is killed (SIGKILL) or frozen (SIGSTOP)
just before the holder releases, or the holder is killed. Measured is the time until the second one has the lock: from
the release, or from the expiry of the holder's lock in Redis. A crowd is a first process in which 1,000 tasks wait.
"""

from __future__ import annotations

import asyncio
import select
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack, ExitStack
from itertools import pairwise
from typing import Any

from examples.servers import RedisServer, freeze
from tests.benchmarks.contenders import OURS, THREADS, open_async, open_threads
from tests.benchmarks.measure import turns
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

TTL = 2
RESOURCE = "orders:42"
SETTLE = 0.25
"""Seconds until a process that was asked to acquire surely waits. Nothing reports this moment."""
CROWD = 1_000
CROWD_LIMIT = 15.0
LIMIT = 3 * TTL + 1.5
WHAT = "until the next has it, ms"

WAITER_KILLED = "first waiter killed"
WAITER_FROZEN = "first waiter frozen"
HOLDER_KILLED = "holder killed"
CROWD_KILLED = f"process of {CROWD:,} waiters killed"
CROWD_FROZEN = f"process of {CROWD:,} waiters frozen"
SCENARIOS = (WAITER_KILLED, WAITER_FROZEN, HOLDER_KILLED, CROWD_KILLED, CROWD_FROZEN)


def part(run: Run) -> None:
    for scenario in SCENARIOS:
        run.say(scenario)
        names = THREADS if run.everything and scenario not in (CROWD_KILLED, CROWD_FROZEN) else (OURS,)
        found: dict[str, list[float]] = {name: [] for name in names}
        failed: set[str] = set()
        for name in turns(names, run.rounds(4), failed):
            took = run.child(scenario, name, "failures.measure", seconds=60, name=name, scenario=scenario)
            if isinstance(took, (int, float)):
                found[name].append(took * 1000)
            else:
                failed.add(name)
                if took is not None:
                    run.failed(scenario, name, took)
        for name, its in found.items():
            # The A/A comparison is that with the next round.
            run.add(scenario, name, WHAT, its, [after / before for before, after in pairwise(its)])


def measure(name: str, scenario: str) -> float | str:
    """Return the seconds, or what went wrong. Runs in a child."""
    with redis_server() as server, ExitStack() as stack:
        holder, first, second = (stack.enter_context(Client(name, server.url)) for _ in range(3))
        is_crowd = scenario in (CROWD_KILLED, CROWD_FROZEN)
        holder.ask("acquire")
        if is_crowd:
            first.say("crowd")
            _await_requests(server, CROWD)
        elif scenario != HOLDER_KILLED:
            first.say("acquire")
        time.sleep(SETTLE)  # so that it is first in the queue, if there is one
        second.say("acquire")
        time.sleep(SETTLE)
        if scenario == HOLDER_KILLED:
            holder.process.kill()
            with server.client() as client:
                lock = min(client.scan_iter(f"*{RESOURCE}"), key=len)  # some have a prefix, or more keys
                since = time.perf_counter() + client.pttl(lock) / 1000
        else:
            if scenario in (WAITER_KILLED, CROWD_KILLED):
                first.process.kill()
                first.process.wait(5)
            else:
                freeze(first.process)
            since = holder.ask("release")
        limit = CROWD_LIMIT if is_crowd else LIMIT
        granted = second.answer(limit)
        return f"not within {limit:.1f} s" if granted is None else granted - since


def _await_requests(server: RedisServer, count: int) -> None:
    deadline = time.monotonic() + 20
    with server.client() as client:
        while time.monotonic() < deadline:
            stats: dict[str, Any] = client.info("commandstats")
            if stats.get("cmdstat_evalsha", {"calls": 0})["calls"] >= count:
                return
            time.sleep(0.1)
    raise TimeoutError(f"there are no {count} waiters")


class Client:
    """A process that acquires and releases on request, and reports when it did."""

    def __init__(self, name: str, url: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.failures", name, url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read("ready", 20)

    def say(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def ask(self, order: str) -> float:
        self.say(order)
        return float(self._read("done", 10))

    def answer(self, seconds: float) -> float | None:
        try:
            return float(self._read("done", seconds))
        except TimeoutError:
            return None

    def _read(self, word: str, seconds: float) -> str:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no {word!r} within {seconds:.1f} s")
        said, _, value = self.process.stdout.readline().strip().partition(" ")
        if said != word:
            raise RuntimeError(f"{said} {value}".strip() or "the process died")
        return value

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(5)


async def crowd(name: str, url: str) -> None:
    """Let many tasks wait for the lock."""
    async with AsyncExitStack() as stack:
        make = await open_async(name, url, stack, ttl=TTL, connections=CROWD)
        await asyncio.gather(*(make(RESOURCE).acquire() for _ in range(CROWD)))


def main(name: str, url: str) -> None:
    way = open_threads(name, url, ttl=TTL, connections=2)(RESOURCE)
    warm = open_threads(name, url, ttl=TTL, connections=2)("another")
    warm.acquire()  # connections, scripts, imports: not what is measured
    warm.release()
    print("ready", flush=True)
    for line in sys.stdin:
        order = line.strip()
        try:
            before = time.perf_counter()
            if order == "crowd":
                threading.Thread(target=asyncio.run, args=(crowd(name, url),), daemon=True).start()
                continue
            (way.acquire if order == "acquire" else way.release)()
            print(f"done {time.perf_counter() if order == 'acquire' else before}", flush=True)
        except Exception as error:  # noqa: BLE001 - it is reported
            print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

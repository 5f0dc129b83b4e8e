"""Who waits for the lock when somebody else dies or stands still: how long until the next one has it.

A holder, a first waiter and a second one, a process each. The first waiter is killed (SIGKILL) or frozen (SIGSTOP) just
before the holder releases; or the holder is killed. Told is when the second one has the lock: after the release, or
after the holder's lock expired in Redis.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from examples.servers import freeze
from tests.benchmarks.contenders import THREADS, open_threads
from tests.benchmarks.measure import turns
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server

TTL = 2
RESOURCE = "orders:42"
SETTLE = 0.25
"""Seconds until a process that was told to acquire surely waits: the one delay here that nothing can be asked about."""
LIMIT = 2 * TTL + 1.5
WHAT = "until the next has it, ms"
SCENARIOS = {
    "head waiter killed": "after the release",
    "head waiter frozen": "after the release",
    "holder killed": "after its lock expired",
}


def part(run: Run) -> None:
    rounds = 1 if run.quick else 3
    for happening, since in SCENARIOS.items():
        scenario = f"{happening}: {since}"
        run.say(scenario)
        found: dict[str, list[float]] = {name: [] for name in THREADS}
        failed: set[str] = set()
        for name in turns(THREADS, rounds, failed):
            seconds = 15 + 2 * LIMIT
            took = run.child(
                scenario, name, "failures.measure", seconds=seconds, one_core=False, name=name, happening=happening
            )
            if isinstance(took, (int, float)):
                found[name].append(took * 1000)
            else:
                failed.add(name)
                if took is not None:
                    run.failed(scenario, name, took)
        for name, values in found.items():
            run.add(scenario, name, WHAT, values)


def measure(name: str, happening: str) -> float | str:
    """In a child: seconds, or what kept the next one from it."""
    with redis_server() as server, ExitStack() as stack:
        holder, first, second = (stack.enter_context(Client(name, server.url)) for _ in range(3))
        holder.ask("acquire")
        if happening != "holder killed":
            first.say("acquire")
            time.sleep(SETTLE)  # so that it is at the head of a queue, if there is one
        second.say("acquire")
        time.sleep(SETTLE)
        if happening == "holder killed":
            holder.process.kill()
            with server.client() as client:
                lock = min(client.scan_iter(f"*{RESOURCE}"), key=len)  # some have a prefix, or more keys
                since = time.perf_counter() + client.pttl(lock) / 1000
        else:
            if happening == "head waiter killed":
                first.process.kill()
                first.process.wait(5)
            else:
                first.freeze()
            since = holder.ask("release")
        got = second.answer(LIMIT + TTL)
        return f"not within {LIMIT + TTL:.1f} s" if got is None else got - since


class Client:
    """A process that acquires and releases when it is told to, and says when it did."""

    def __init__(self, name: str, url: str) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.failures", name, url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read("ready", 10)

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

    def freeze(self) -> None:
        freeze(self.process)

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


def main(name: str, url: str) -> None:
    way = open_threads(name, url, ttl=TTL, connections=2)(RESOURCE)
    warm = open_threads(name, url, ttl=TTL, connections=2)("another")
    warm.acquire()  # connections, scripts, imports: not what is measured
    warm.release()
    orders: dict[str, Callable[[], Any]] = {"acquire": way.acquire, "release": way.release}
    print("ready", flush=True)
    for line in sys.stdin:
        order = line.strip()
        try:
            before = time.perf_counter()
            orders[order]()
            print(f"done {time.perf_counter() if order == 'acquire' else before}", flush=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Processes with several waiters each, by random runs: each that is stopped costs the others no more than one offer.

The scripts are simulated, and the waiters of a listener are the library's own. Time passes from one event to the next.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencing.kernel.waking import Wake
from fencing.redis.waiters import BUNDLE_SECONDS, SLACK_SECONDS, Waiter, Waiters
from tests.explorer.simulated_redis import ACCEPT_MS, LONG_MS, SPREAD_MS, SimulatedRedis
from tests.explorer.state import KEYS

MOST_SECONDS = (ACCEPT_MS + 2 + SPREAD_MS) / 1000 + BUNDLE_SECONDS + SLACK_SECONDS
"""How long an offer to a process that is stopped keeps the lock from the others."""

ACQUIRE = [KEYS.lock, KEYS.holder, KEYS.counter, KEYS.queue, KEYS.listeners]
RELEASE = [KEYS.lock, KEYS.holder, KEYS.queue, KEYS.listeners]


class Asking(Waiter):
    """A waiter of a process, which asks as soon as it is woken."""

    __slots__ = ("process", "ticket")

    process: Process
    ticket: str

    def wake(self) -> None:
        self.process.run.at(self.process.run.now, self.process.ask, self)


class Process:
    """A process, whose threads take the lock again and again."""

    def __init__(self, run: Run, name: str, threads: int) -> None:
        self.run, self.stopped = run, False
        self.waiters = Waiters(lambda: run.now, lambda when, call, _: run.at(when, self._alive, call))
        self.waiters.name = name
        run.redis.listening |= {name.encode()}
        for _ in range(threads):
            run.at(run.now + run.chance.uniform(0, 0.4), self._alive, self.begin)

    def _alive(self, call: Callable[[], object]) -> None:
        if not self.stopped:
            call()

    def begin(self) -> None:
        if self.run.is_offered:  # nobody comes who would find the offer by chance
            self.run.at(self.run.now + 1, self._alive, self.begin)
            return
        waiter = Asking("r", f"{self.waiters.name}-{next(self.run.numbers)}", Wake(), self.waiters.name)
        waiter.process, waiter.ticket = self, ""
        self.waiters.add(waiter)
        self.run.waiting[waiter.token] = waiter  # the list of a listener refers to them weakly
        self.ask(waiter)

    def ask(self, waiter: Asking) -> None:
        if self.stopped or waiter.token not in self.run.waiting:
            return
        reply = self.run.script("acquire", ACQUIRE, [waiter.token, 60_000, "me", 0, 0, waiter.listener, waiter.ticket])
        if isinstance(reply, bytes):
            del self.run.waiting[waiter.token]
            self.waiters.remove(waiter, self.run.now + 60)
            self.run.granted(self, waiter.token)
        else:
            waiter.ticket = reply[1].decode()
            self.waiters.schedule_recheck(waiter, reply[2] / 1000)

    def hear(self, text: bytes) -> None:
        self._alive(lambda: self.waiters.on_message(text))


class Run:
    """A run from one seed.

    Args:
        several: several are stopped at once, and all holdings are long.
    """

    def __init__(self, seed: int, several: bool) -> None:
        self.chance, self.now, self.numbers = random.Random(seed), 1000.0, itertools.count(10**9)
        self.redis = SimulatedRedis()
        self.waiting: dict[str, Asking] = {}
        self.longest = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.is_offered = False  # to the process that is stopped
        self._offered_at: float | None = None  # and another waits
        self._holder: Process | None = None
        holdings = [(LONG_MS / 1000, 0.4), (0.05,)] if several else [(0.001, 0.02), (0.02, 0.4), (0.05,)]
        self._held: tuple[float, ...] = self.chance.choice(holdings)
        names = "ABCDEFG"[: self.chance.randint(4, 7)] if several else "ABCD"[: self.chance.randint(2, 4)]
        self.processes = [Process(self, name, self.chance.randint(1, 3)) for name in names]
        count = self.chance.randint(2, len(names) - 1) if several else 1
        self.at(self.now + self.chance.uniform(0.3, 3), self._stop, count)

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._events, (when, next(self.numbers), call, args))

    def go(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, call, args = heapq.heappop(self._events)
            call(*args)
        if self._offered_at is not None:
            self.longest = max(self.longest, self.now - self._offered_at)

    def script(self, name: str, keys: list[str], args: list[Any]) -> Any:
        self.redis.clock_us, self.redis.published = round(self.now * 1e6), []
        reply = self.redis.run(name, keys, args)
        for listener, text in self.redis.published:
            process = next(each for each in self.processes if each.waiters.name.encode() == listener)
            if process.stopped and text.startswith(b"grant "):
                self._end_offer()
                self.is_offered = True
            self.at(self.now, process.hear, text)
        if self.is_offered and self._offered_at is None and self._is_waited_for():
            self._offered_at = self.now
        return reply

    def _is_waited_for(self) -> bool:
        return any(not waiter.process.stopped for waiter in self.waiting.values())

    def granted(self, process: Process, token: str) -> None:
        self._holder, self.is_offered = process, False
        self._end_offer()
        self.at(self.now + self.chance.choice(self._held), self._release, process, token)

    def _end_offer(self) -> None:
        if self._offered_at is not None:
            self.longest, self._offered_at = max(self.longest, self.now - self._offered_at), None

    def _release(self, process: Process, token: str) -> None:
        self._holder = None
        self.script("release", RELEASE, [token])
        self.at(self.now + self.chance.choice([0.0, 0.02, 0.3, 2]), process._alive, process.begin)

    def _stop(self, count: int) -> None:
        for process in self.chance.sample(self.processes, count + 1):
            if process is not self._holder and count > 0:
                process.stopped = True
                count -= 1


@pytest.mark.parametrize(
    ("several", "runs"),
    [(False, 40), (True, 20), *(pytest.param(each, 2000, marks=pytest.mark.thorough) for each in (False, True))],
)
def test_each_stopped_process_costs_the_others_one_offer(several: bool, runs: int) -> None:
    seed = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)
    for number in range(seed, seed + runs):
        run = Run(number, several)
        run.go(8)
        assert run.longest <= MOST_SECONDS, f"FENCING_SEED={number}: {run.longest:.3f} s"

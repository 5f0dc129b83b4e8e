"""Seeded schedules of faults on five real Redis, and what they cost with a guard and without one.

Three clients add to two balances, of which only one has a guard. The faults: nodes killed, stopped, restarted empty or
with the end of their data cut off, frozen, cut off by the network; a majority gone; clocks of nodes that jump by a
minute, and clients that are paused for longer than their ttl.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from examples.servers import FakeClock, RedisServer, find_faketime
from fencing import CoordinatorUnavailable, FencingError, GuardUnavailable, LeaseLost, NotAcquired, StaleFence
from tests.support.redlock import TIMESTAMPS, RedlockNodes, cut_off_the_last_second, start_node
from tests.support.servers import Proxy
from tests.support.sides import Account, Side

NODES, CLIENTS, QUORUM = 5, 3, 3
TTL = 0.4
MINUTE = 60
SECONDS = 2.0
"""How long the faults of one schedule go on. After it each client must get the lock once more."""

IN_THE_END = 30.0


@dataclass
class Counts:
    """What happened, added up over schedules."""

    schedules: int = 0
    faults: int = 0
    grants: int = 0
    not_granted: int = 0
    unavailable: int = 0
    refused: int = 0
    lost_without_guard: int = 0
    lost_under_guard: int = 0
    numbers_not_higher: int = 0

    def add(self, other: Counts) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, field.name):,} {field.name.replace('_', ' ')}" for field in fields(self))


class Schedule:
    """One run. The seed chooses the faults; threads and servers choose the moments."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.side = Side(seed % 2 == 1)
        self.counts = Counts(schedules=1)
        self.unguarded = self.acknowledged = self.guarded = 0
        self.held: list[tuple[float, float, int]] = []  # began to acquire, held, number
        self.said: list[str] = []
        self.errors: list[BaseException] = []
        self.over = threading.Event()
        self._lock = threading.Lock()
        self._losses = 0  # of data, at most a minority

    def run(self) -> Counts:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencing-redlock-")))
            self._start(stack, folder)
            clients = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(CLIENTS)]
            for thread in clients:
                thread.start()
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends and not self.errors:
                self._fault()
            self._heal()
            self.over.set()
            for thread in clients:
                thread.join(2 * IN_THE_END)
                assert not thread.is_alive(), "a client hangs"
            self._close()
        assert not self.errors, self.errors
        return self._checked()

    def _start(self, stack: ExitStack, folder: Path) -> None:
        always = self.chance.random() < 0.2
        args = (*TIMESTAMPS, *(("--appendfsync", "always") if always else ()))
        clocks = [stack.enter_context(FakeClock()) for _ in range(NODES)] if find_faketime() else []
        self.clocks = clocks if self.chance.random() < 0.4 else []
        own_clocks: Sequence[FakeClock | None] = self.clocks or [None] * NODES
        self.servers = [stack.enter_context(start_node(args, clock)) for clock in own_clocks]
        self.proxies = [stack.enter_context(Proxy(server.host, server.port)) for server in self.servers]
        urls = [proxy.url(server.url) for proxy, server in zip(self.proxies, self.servers, strict=True)]
        self.account = Account(self.side, f"sqlite:///{folder / 'account.sqlite'}")
        nodes = RedlockNodes(self.servers, longest_ttl=TTL)
        options: dict[str, Any] = {"ttl": TTL, "node_timeout": 0.05, "renew": False, "restart_wait": not always}
        self.coordinators = [
            nodes.coordinator(self.side, urls, guards=[self.account.guard], **options) for _ in range(CLIENTS)
        ]
        self.side.call(self.coordinators[0].initialise)
        for coordinator in self.coordinators[1:]:
            ahead = self.chance.choice([0, 0, -MINUTE, MINUTE]) * 1_000_000
            coordinator._backend._wall_clock_us = lambda ahead=ahead: time.time_ns() // 1000 + ahead
        self.faults: list[Callable[[], None]] = [self._freeze, self._cut_off, self._kill, self._majority]
        if not always:
            self.faults += [self._stop, self._empty, self._cut]
        if self.clocks:
            self.faults += [self._jump] * 2

    # Clients

    def _client(self, index: int) -> None:
        chance = random.Random(self.chance.random())
        try:
            while not self.over.is_set():
                self._add(self.coordinators[index], chance, timeout=1.0)
                time.sleep(chance.uniform(0, 0.02))
            ends = time.monotonic() + IN_THE_END
            while not self._add(self.coordinators[index], chance, timeout=5.0):
                assert time.monotonic() < ends, "no lock after all faults are over"
        except BaseException as error:  # noqa: BLE001 - run() raises it
            self.errors.append(error)

    def _add(self, coordinator: Any, chance: random.Random, timeout: float) -> bool:
        """Add one to both balances under the lock. Return whether it was granted."""
        call, began = self.side.call, time.monotonic()
        try:
            lease = call(coordinator.acquire, "r", timeout=timeout)
        except (NotAcquired, CoordinatorUnavailable, GuardUnavailable) as error:  # the last one: no time for the claim
            with self._lock:
                self.counts.not_granted += isinstance(error, NotAcquired)
                self.counts.unavailable += not isinstance(error, NotAcquired)
            return False
        with self._lock:
            self.counts.grants += 1
            self.held.append((began, time.monotonic(), lease.fence.number))
        read, unguarded = self.account.balance, self.unguarded
        time.sleep(TTL * 1.5 if chance.random() < 0.1 else chance.uniform(0, 0.02))
        self.unguarded = unguarded + 1
        with self._lock:
            self.acknowledged += 1
        try:
            self.account.write(lease, read + 1)
            with self._lock:
                self.guarded += 1
        except (StaleFence, LeaseLost):
            with self._lock:
                self.counts.refused += 1
        except GuardUnavailable:
            pass  # nothing was written
        try:
            call(lease.release)
        except FencingError:
            pass  # it is given back later, or its ttl ends
        return True

    # Faults: each begins, lasts, and ends

    def _fault(self) -> None:
        fault = self.chance.choice(self.faults)
        self.said.append(fault.__name__.strip("_"))
        self.counts.faults += 1
        fault()
        time.sleep(self.chance.uniform(0, 0.1))

    def _some(self, most: int) -> list[int]:
        return self.chance.sample(range(NODES), self.chance.randint(1, most))

    def _last(self) -> None:
        time.sleep(self.chance.uniform(0.05, 0.5))

    def _freeze(self, count: int = NODES - QUORUM) -> None:
        servers = [self.servers[i] for i in self._some(count)]
        for server in servers:
            server.freeze()
        self._last()
        for server in servers:
            server.thaw()

    def _majority(self) -> None:
        self._freeze(NODES)

    def _cut_off(self) -> None:
        proxies = [self.proxies[i] for i in self._some(NODES - QUORUM)]
        for proxy in proxies:
            proxy.silence()
        self._last()
        for proxy in proxies:
            proxy.restore()

    def _kill(self) -> None:
        for i in self._some(NODES - QUORUM):
            self.servers[i].kill()
            self._last()
            self.servers[i].restart()

    def _stop(self) -> None:
        server = self.chance.choice(self.servers)
        server.stop()
        self._last()
        server.restart()

    def _empty(self) -> None:
        self._lose(lambda server: None, keep_data=False)

    def _cut(self) -> None:
        self._lose(cut_off_the_last_second, keep_data=True)

    def _lose(self, damage: Callable[[RedisServer], object], *, keep_data: bool) -> None:
        """A node loses data. A majority never does in one schedule: the numbers of the others must go on growing."""
        if self._losses == NODES - QUORUM:
            return
        self._losses += 1
        server = self.chance.choice(self.servers)
        server.kill()
        damage(server)
        self._last()
        server.restart(keep_data=keep_data)

    def _jump(self) -> None:
        for i in self._some(NODES):
            self.clocks[i].set(self.chance.choice([-MINUTE, 0, MINUTE]))
        self._last()

    def _heal(self) -> None:
        for clock in self.clocks:
            clock.set(2 * MINUTE)  # later than it ever was: what was granted before is over
        for server, proxy in zip(self.servers, self.proxies, strict=True):
            proxy.restore()
            assert server.pid is not None

    # The end

    def _close(self) -> None:
        for coordinator in self.coordinators:
            self.side.call(coordinator.close)
        balance = self.account.balance
        self.counts.lost_under_guard = self.guarded - balance
        self.counts.lost_without_guard = self.acknowledged - self.unguarded
        self.account.close()

    def _checked(self) -> Counts:
        highest = [(held, number) for _, held, number in self.held]
        for began, _, number in self.held:
            before = [other for held, other in highest if held < began]
            self.counts.numbers_not_higher += number <= max(before, default=0)
        return self.counts

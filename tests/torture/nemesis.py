"""Makes the faults of a plan happen, several at a time, and undoes them when their time is over."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable

import redis
from sqlalchemy.exc import DBAPIError

from fencing import FencingError
from tests.torture.faults import Fault
from tests.torture.history import Event
from tests.torture.processes import Processes
from tests.torture.services import Services

__all__ = ["Nemesis"]

SIGNAL_GAP = 0.01
IDLE_SECONDS = 0.5
"""Marks that were not claimed for so long are pruned, living holders or not: they must be refused then."""


class Nemesis:
    """Works in the caller's thread."""

    def __init__(self, services: Services, processes: Processes) -> None:
        self._services, self._processes = services, processes
        self._ends: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.counts: Counter[str] = Counter()
        self.events: list[Event] = []

    def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Make them happen, and return after so many seconds with everything undone."""
        began = time.monotonic()
        for fault in faults:
            self._wait_until(began + fault.at)
            self._strike(fault)
        self._wait_until(began + seconds)
        while self._ends:
            heapq.heappop(self._ends)[2]()
        self._services.restore()

    def _wait_until(self, moment: float) -> None:
        while self._ends and self._ends[0][0] <= moment:
            at, _, end = heapq.heappop(self._ends)
            time.sleep(max(0.0, at - time.monotonic()))
            end()
        time.sleep(max(0.0, moment - time.monotonic()))

    def _after(self, seconds: float, end: Callable[[], None]) -> None:
        heapq.heappush(self._ends, (time.monotonic() + seconds, next(self._order), end))

    def _strike(self, fault: Fault) -> None:
        kind, _, service = fault.kind.partition(" ")
        start = time.monotonic()
        if kind in ("cut", "drop", "silence"):
            what, service = fault.kind.rsplit(" ", 1)
            self._lose(what, service, fault)
        elif kind in ("stop", "kill", "interrupt") and not service:
            self._strike_worker(kind, fault)
        elif fault.kind == "kill postgresql":
            self._kill_postgresql(fault.seconds)
        elif kind in ("prune", "verify"):
            self._operate(kind)
        else:
            self._strike_redis(kind, fault.seconds)
        self.counts[fault.kind] += 1
        self.events.append(Event("fault", start, time.monotonic(), text=fault.kind))

    def _strike_worker(self, kind: str, fault: Fault) -> None:
        slot = fault.target % len(self._processes.alive)
        if kind == "stop":
            process = self._processes.alive[slot]
            self._processes.stop(slot)
            self._after(fault.seconds, lambda: self._processes.resume(process))
        elif kind == "kill":
            self._processes.restart(slot)
        else:
            for _ in range(1 + fault.target % 8):
                self._processes.interrupt(slot)
                time.sleep(SIGNAL_GAP)

    def _lose(self, what: str, service: str, fault: Fault) -> None:
        proxy, times = self._services.proxies[service], 1 + fault.target % 5

        def matches(request: bytes) -> bool:
            important = {"postgresql": b"COMMIT", "objects": b"PUT "}.get(service, b"")
            return fault.target % 4 == 0 or important in request

        if what == "cut":
            proxy.cut()
        elif what == "drop request":
            proxy.drop_request_when(matches, times=times)
        elif what == "drop reply":
            proxy.drop_reply_when(matches, times=times)
        else:
            proxy.silence()
            self._after(min(fault.seconds, 0.5), proxy.restore)

    def _strike_redis(self, kind: str, seconds: float) -> None:
        server = self._services.redis
        if kind == "older":  # what was not saved is gone
            server.kill()
            server.restart()
        elif kind == "freeze":
            server.freeze()
            time.sleep(min(seconds, 0.5))
            server.thaw()
        else:
            with server.client(socket_timeout=5) as client:
                try:
                    client.flushall() if kind == "flush" else client.save()
                except redis.RedisError:
                    self.counts[f"{kind}, in vain"] += 1

    def _kill_postgresql(self, seconds: float) -> None:
        self._services.postgres.kill()
        time.sleep(min(seconds, 0.5))
        self._services.postgres.restart()

    def _operate(self, kind: str) -> None:
        for guard in self._services.guards.values():
            try:
                guard.prune(older_than=IDLE_SECONDS) if kind == "prune" else guard.verify()
            except (FencingError, DBAPIError):
                self.counts[f"{kind}, in vain"] += 1  # the database is busy, or was killed

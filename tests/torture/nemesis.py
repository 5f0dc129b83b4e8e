"""Makes the faults of a plan happen, several at a time, and undoes them when their time is over."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import psycopg
import redis
from sqlalchemy.exc import SQLAlchemyError

from examples.servers import ServerError
from tests.torture.faults import Fault, Planned, Strike, named
from tests.torture.faults.base import InVain
from tests.torture.history import Event
from tests.torture.processes import Processes
from tests.torture.services import Services

__all__ = ["Nemesis"]

OF_SERVERS = (ServerError, redis.RedisError, psycopg.Error, SQLAlchemyError)
"""Other faults may break the director's own connections."""

MOST_AT_ONCE = 12
"""Slow faults. A service has one at a time of those that would disturb each other."""


class Nemesis:
    """Works in the caller's thread; faults that are slow, and the ends of faults, have threads of their own."""

    def __init__(self, services: Services, processes: Processes) -> None:
        self._services, self._processes = services, processes
        self._ends: list[threading.Timer] = []
        self._slow: list[Future[None]] = []
        self._failed: list[Exception] = []
        self.counts: Counter[str] = Counter()
        self.events: list[Event] = []

    def run(self, faults: Iterable[Planned], seconds: float) -> None:
        """Make them happen, and return after so many seconds with everything undone."""
        began = time.monotonic()
        with ThreadPoolExecutor(MOST_AT_ONCE) as threads:
            for planned in faults:
                time.sleep(max(0.0, began + planned.at - time.monotonic()))
                self._strike(planned, threads)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        for each in self._slow:
            each.result()
        for timer in self._ends:
            timer.join()
        if self._failed:
            raise self._failed[0]
        self._services.restore()

    def _after(self, seconds: float, end: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, self._end, [end])
        self._ends.append(timer)
        timer.start()

    def _end(self, end: Callable[[], None]) -> None:
        try:
            end()
        except Exception as error:  # noqa: BLE001 - raised by `run`
            self._failed.append(error)

    def _strike(self, planned: Planned, threads: ThreadPoolExecutor) -> None:
        fault, name = named(planned.kind)
        service = self._services[name] if name else None
        strike = Strike(service, self._processes, planned.target, planned.seconds, self._after)
        lock = service.busy if service is not None and fault.is_alone else None
        if lock is not None and not lock.acquire(blocking=False):
            self.counts[f"{planned.kind}, in vain"] += 1
            return
        happen = partial(self._happen, fault, planned.kind, strike, lock)
        if fault.is_slow:
            self._slow.append(threads.submit(happen))
        else:
            happen()

    def _happen(self, fault: Fault, kind: str, strike: Strike, lock: threading.Lock | None) -> None:
        start, text = time.monotonic(), ""
        try:
            fault.happen(strike)
        except (InVain, *OF_SERVERS) as error:
            kind, text = f"{kind}, in vain", f": {error}"
        finally:
            if lock is not None:
                lock.release()
        self.counts[kind] += 1
        self.events.append(Event("fault", start, time.monotonic(), text=f"{kind}{text}"))

"""Random faults in random commits of a SQL guard; each answer of ``landed`` is compared with the data at the end.

Also what was acknowledged must be there, and what was refused must not. One seed a run is printed when it fails;
FENCING_SEED replays its choices (threads, servers and time still do as they please).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Any

import psycopg
from sqlalchemy.exc import DBAPIError

from fencing import Fence, FencingError, OutcomeUnknown
from tests.support.psycopg_database import dsn_of
from tests.support.sql_ways import DONE, FlakyCommit, Way

MORE_SECONDS = 60.0
"""What a slow machine gets besides, until each answer has come."""

ERRORS = (DBAPIError, psycopg.Error)
"""What drivers raise where nothing was done."""

KILL = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"
)
SESSIONS = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"


class Hammer:
    """Writes under faults through a guard, and asks the guard beside it what became of them."""

    def __init__(self, way: Way) -> None:
        self.way = way
        if way.is_psycopg:  # no pool: each write connects
            self.guard, self.longest_delay = way.guard_class(dsn_of(way.through)), 0.015
        else:
            self.guard, self.longest_delay = way.new_guard(pool_size=2, max_overflow=0), 0.006
        self.seed = int(os.environ.get("FENCING_SEED") or random.randrange(2**32))
        self.chance = random.Random(self.seed)
        self.ids = count(1)
        self.fence = Fence("orders:1", 1, "a" * 22)
        way.outside.dispose()  # all sessions but one are killed
        way.beside.claim(self.fence)
        self.expected: dict[int, bool] = {}
        self.seen: Counter[Any] = Counter()

    def kill(self) -> None:
        """End the sessions of the guard at the server."""
        if not self.way.is_mariadb:
            self.way.sql(KILL)
            return
        with self.way.outside.connect() as connection:
            for session in connection.exec_driver_sql(SESSIONS).scalars().all():
                with suppress(DBAPIError):  # it has gone by itself
                    connection.exec_driver_sql(f"KILL {session}")

    def clear(self) -> None:
        """Take back a fault that is still armed."""
        FlakyCommit.fault = ""
        if self._timer is not None:
            self._timer.join()
        if self.way.has_network:
            self.way.proxy.restore()

    @property
    def has_seen_all(self) -> bool:
        return self.seen[True] >= 5 and self.seen[False] >= 5 and self.seen[None] >= 1

    def work(self, seconds: float) -> None:
        """Write until each answer has come, and for so many seconds at least; then compare."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline or (not self.has_seen_all and time.monotonic() < deadline + MORE_SECONDS):
                self._blow()
            done = self.way.done
            wrong = {id_: said for id_, said in self.expected.items() if said is not (id_ in done)}
            assert not wrong, f"said, and not so: {wrong}"
            assert self.has_seen_all, self.seen
        except BaseException:
            print(f"FENCING_SEED={self.seed}")
            raise
        print(f"FENCING_SEED={self.seed}: {len(self.expected)} writes, {dict(self.seen)}")

    def _blow(self) -> None:
        """One write under one fault, and what is learned of it."""
        id_, fence = next(self.ids), self.fence
        first = self.chance.random() < 0.1
        if first:  # the first write that its mark ever sees
            fence = Fence(f"orders:{id_}", 1, "a" * 22)
        elif self.chance.random() < 0.2:
            fence = self.fence = Fence("orders:1", fence.number + 1, "a" * 22)
            self.way.beside.claim(fence)
        unknown = self._write_under_a_fault(fence, id_, claim=first)
        if unknown is None:
            return
        for _ in range(self.chance.choice([0, 0, 1, 2, 20])):
            self._write_beside()
        answer = self.ask(unknown)
        self.seen[answer] += 1
        if answer is not None:
            self.expected[id_] = answer

    def ask(self, unknown: OutcomeUnknown) -> bool | None:
        """Through a guard of the same kind where that can connect anew each time."""
        if self.way.is_psycopg:
            answer: bool | None = self.way.side.call(self.guard.landed, unknown)
            return answer
        return self.way.beside.landed(unknown)

    def _write_beside(self) -> None:
        id_ = next(self.ids)
        if self.chance.random() < 0.3:
            self.fence = Fence("orders:1", self.fence.number + 1, "a" * 22)
            self.way.beside.claim(self.fence)
        self.way.write_beside(self.fence, DONE, id=id_)
        self.expected[id_] = True

    def _write_under_a_fault(self, fence: Fence, id_: int, claim: bool) -> OutcomeUnknown | None:
        fault, delay = self._arrange()
        try:
            if self.way.side.asynchronous:
                self.way.side.call(self._write_async, fence, id_, claim, delay if fault == "cancel" else None)
            else:
                self.guard.write(fence, *self.way.statement(DONE, id=id_), claim=claim)
            self.expected[id_] = True
        except OutcomeUnknown as error:
            return error
        except (FencingError, *ERRORS):
            self.expected[id_] = False
        except _Cancelled as cancelled:
            assert cancelled.__cause__ is not None
            if isinstance(cancelled.__cause__.__cause__, OutcomeUnknown):
                return cancelled.__cause__.__cause__
        finally:
            self.clear()
        return None

    async def _write_async(self, fence: Fence, id_: int, claim: bool, cancel_after: float | None) -> None:
        task = asyncio.ensure_future(self.guard.write(fence, *self.way.statement(DONE, id=id_), claim=claim))
        if cancel_after is not None:
            await asyncio.wait([task], timeout=cancel_after)
            task.cancel()
        try:
            await task
        except asyncio.CancelledError as error:
            raise _Cancelled from error

    def _arrange(self) -> tuple[str, float]:
        """Arm a fault, and the delay after which it strikes."""
        fault = self.chance.choice(["none", "reply", "request", "reply", "request", "cut", "kill", "cancel"])
        delay = self.chance.random() * self.longest_delay
        self._timer: threading.Timer | None = None
        if fault in ("reply", "request"):
            self.way.lose(fault)
        elif self.way.has_network and fault in ("cut", "kill"):
            self._timer = threading.Timer(delay, self.way.proxy.cut if fault == "cut" else self.kill)
            self._timer.start()
        return fault, delay


class _Cancelled(Exception):
    """A CancelledError, seen from the thread that waits for it: there it would mean that waiting was cancelled."""

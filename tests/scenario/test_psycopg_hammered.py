"""``landed`` of the psycopg guard under a hammer: random faults in random commits, each answer compared with the data.

One seed a run is printed when it fails; FENCING_SEED replays its choices (threads, servers and time still do as they
please).
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from examples.servers import PostgresServer, Proxy
from fencing import Fence, FencingError, OutcomeUnknown
from tests.scenario.conftest import Side
from tests.scenario.psycopg_database import ADD, Database

SECONDS = 1.8
"""For each of both: long enough for hundreds of rounds. A slow machine gets more, until each answer has come."""

MORE_SECONDS = 20.0


@pytest.fixture
def database(
    side: Side, postgres_url: str, postgres_server: PostgresServer, proxy: Callable[[PostgresServer], Proxy]
) -> Iterator[Database]:
    database = Database(side, postgres_url, proxy(postgres_server), connects=True)
    yield database
    database.close()


class Hammer:
    def __init__(self, database: Database, chance: random.Random) -> None:
        self.database, self.chance = database, chance
        self.ids = count(1)
        self.fence = Fence("orders:1", 1, "a" * 22)
        self.expected: dict[int, bool] = {}
        self.seen: Counter[Any] = Counter()

    @property
    def has_seen_all(self) -> bool:
        return self.seen[True] >= 5 and self.seen[False] >= 5 and self.seen[None] >= 1

    def blow(self) -> None:
        """One write under one fault, and what is learned of it."""
        id_, fence = next(self.ids), self.fence
        first = self.chance.random() < 0.1
        if first:  # the first write that its mark ever sees
            fence = Fence(f"orders:{id_}", 1, "a" * 22)
        elif self.chance.random() < 0.2 or id_ == 1:
            fence = self.fence = Fence("orders:1", fence.number + 1, "a" * 22)
            self.database.beside.claim(fence)
        unknown = self._write_under_a_fault(fence, id_, claim=first)
        if unknown is None:
            return
        for _ in range(self.chance.choice([0, 0, 1, 2, 20])):
            self._write_beside()
        answer = self.database.beside.landed(unknown)
        self.seen[answer] += 1
        if answer is not None:
            self.expected[id_] = answer

    def _write_beside(self) -> None:
        id_ = next(self.ids)
        if self.chance.random() < 0.3:
            self.fence = Fence("orders:1", self.fence.number + 1, "a" * 22)
            self.database.beside.claim(self.fence)
        self.database.beside.write(self.fence, ADD, [id_])
        self.expected[id_] = True

    def _write_under_a_fault(self, fence: Fence, id_: int, claim: bool) -> OutcomeUnknown | None:
        fault, delay = self._arrange()
        try:
            if self.database.side.asynchronous:
                self.database.side.call(self._write_async, fence, id_, claim, delay if fault == "cancel" else None)
            else:
                self.database.guard.write(fence, ADD, [id_], claim=claim)
            self.expected[id_] = True
        except OutcomeUnknown as error:
            return error
        except (FencingError, psycopg.Error):
            self.expected[id_] = False
        except _Cancelled as cancelled:
            assert cancelled.__cause__ is not None
            if isinstance(cancelled.__cause__.__cause__, OutcomeUnknown):
                return cancelled.__cause__.__cause__
        finally:
            self._clear()
        return None

    async def _write_async(self, fence: Fence, id_: int, claim: bool, cancel_after: float | None) -> None:
        task = asyncio.ensure_future(self.database.guard.write(fence, ADD, [id_], claim=claim))
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
        delay = self.chance.random() * 0.015
        self._timer: threading.Timer | None = None
        if fault in ("reply", "request"):
            self.database.lose(fault)
        elif fault in ("cut", "kill"):
            assert self.database.proxy is not None
            self._timer = threading.Timer(delay, self.database.proxy.cut if fault == "cut" else self._kill)
            self._timer.start()
        return fault, delay

    def _kill(self) -> None:
        self.database.direct.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()"
        )

    def _clear(self) -> None:
        if self._timer is not None:
            self._timer.join()
        assert self.database.proxy is not None
        self.database.proxy.restore()


class _Cancelled(Exception):
    """A CancelledError, seen from the thread that waits for it: there it would mean that waiting was cancelled."""


def test_what_landed_says_is_so(database: Database) -> None:
    seed = int(os.environ.get("FENCING_SEED") or random.randrange(2**32))
    hammer = Hammer(database, random.Random(seed))
    deadline = time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline or (not hammer.has_seen_all and time.monotonic() < deadline + MORE_SECONDS):
            hammer.blow()
        done = database.done
        wrong = {id_: said for id_, said in hammer.expected.items() if said is not (id_ in done)}
        assert not wrong, f"said, and not so: {wrong}"
        assert hammer.has_seen_all, hammer.seen
    except BaseException:
        print(f"FENCING_SEED={seed}")
        raise
    print(f"FENCING_SEED={seed}: {len(hammer.expected)} writes, {dict(hammer.seen)}")

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
from abc import ABC, abstractmethod
from collections import Counter
from itertools import count
from typing import Any, ClassVar

from fencing import Fence, FencingError, OutcomeUnknown

SECONDS = 1.8
"""For each of them: long enough for hundreds of rounds. A slow machine gets more, until each answer has come."""

MORE_SECONDS = 20.0


class Hammer(ABC):
    """``database`` has a guard behind a proxy that can lose commits, and another one beside it."""

    ERRORS: ClassVar[type[Exception]]
    """What a driver raises where nothing was done."""
    LONGEST_DELAY: ClassVar[float]
    """Seconds, about as long as a write takes."""

    def __init__(self, database: Any) -> None:
        self.database = database
        self.seed = int(os.environ.get("FENCING_SEED") or random.randrange(2**32))
        self.chance = random.Random(self.seed)
        self.ids = count(1)
        self.fence = Fence("orders:1", 1, "a" * 22)
        database.beside.claim(self.fence)
        self.expected: dict[int, bool] = {}
        self.seen: Counter[Any] = Counter()

    @abstractmethod
    def adding(self, id_: int) -> tuple[Any, Any]:
        """A statement that leaves a trace in ``database.done``, and its parameters."""

    @abstractmethod
    def kill(self) -> None:
        """End the sessions of the guard at the server."""

    def clear(self) -> None:
        """Take back whatever fault is still armed."""
        if self._timer is not None:
            self._timer.join()
        if self.database.proxy is not None:
            self.database.proxy.restore()

    @property
    def has_seen_all(self) -> bool:
        return self.seen[True] >= 5 and self.seen[False] >= 5 and self.seen[None] >= 1

    def work(self) -> None:
        """Until each answer has come, and for ``SECONDS`` at least; then compare."""
        deadline = time.monotonic() + SECONDS
        try:
            while time.monotonic() < deadline or (not self.has_seen_all and time.monotonic() < deadline + MORE_SECONDS):
                self._blow()
            done = self.database.done
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
        self.database.beside.write(self.fence, *self.adding(id_))
        self.expected[id_] = True

    def _write_under_a_fault(self, fence: Fence, id_: int, claim: bool) -> OutcomeUnknown | None:
        fault, delay = self._arrange()
        try:
            if self.database.side.asynchronous:
                self.database.side.call(self._write_async, fence, id_, claim, delay if fault == "cancel" else None)
            else:
                self.database.guard.write(fence, *self.adding(id_), claim=claim)
            self.expected[id_] = True
        except OutcomeUnknown as error:
            return error
        except (FencingError, self.ERRORS):
            self.expected[id_] = False
        except _Cancelled as cancelled:
            assert cancelled.__cause__ is not None
            if isinstance(cancelled.__cause__.__cause__, OutcomeUnknown):
                return cancelled.__cause__.__cause__
        finally:
            self.clear()
        return None

    async def _write_async(self, fence: Fence, id_: int, claim: bool, cancel_after: float | None) -> None:
        task = asyncio.ensure_future(self.database.guard.write(fence, *self.adding(id_), claim=claim))
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
        delay = self.chance.random() * self.LONGEST_DELAY
        proxy = self.database.proxy
        self._timer: threading.Timer | None = None
        if fault in ("reply", "request"):
            self.database.lose(fault)
        elif proxy is not None and fault in ("cut", "kill"):
            self._timer = threading.Timer(delay, proxy.cut if fault == "cut" else self.kill)
            self._timer.start()
        return fault, delay


class _Cancelled(Exception):
    """A CancelledError, seen from the thread that waits for it: there it would mean that waiting was cancelled."""

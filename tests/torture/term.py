"""A leader's term: what it writes, and what is noted of it; and a replica, which campaigns and looks who leads."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fencing import Leader
from tests.torture.log import Log
from tests.torture.steps import run, run_async
from tests.torture.turn import EXPECTED, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

__all__ = ["LED", "Replica", "Term"]

LED = "led "
"""Before the name of a counter, to which a leader has just written: a line of a worker's standard output."""

LONGEST_PAUSE = 0.1
OBSERVE_SECONDS = 0.1


class Term(Turn):
    """A turn of a leader, which writes for a while."""

    _until = 0.0
    _is_heedless = False

    def campaign(self) -> None:
        """Note that it is waited for. That has no bound."""
        self._acquiring = self._begin_acquire()
        self._until = self.chance.choice([0.0, 0.2, 1.0, 3.0])
        self._is_heedless = self.chance.random() < 0.3  # it goes on when the term is lost: the guard must refuse it
        self._pauses[0] = self.chance.choice([0.01, LONGEST_PAUSE])

    def _allowed_to_wait(self) -> float | None:
        return None

    def lead(self, lease: Any, stopped: Callable[[], bool]) -> None:
        """Write, sync, until its time is over, the lease is lost, or the election stops."""
        self._granted(self._acquiring, lease)
        until = time.monotonic() + self._until
        while True:
            self._pause(self._pauses[0])
            try:
                self._perform()
            except EXPECTED as error:
                self._failed(error)
                raise
            if time.monotonic() > until or stopped() or (lease.lost.is_set() and not self._is_heedless):
                return

    async def lead_async(self, lease: Any) -> None:
        """Write, async, until its time is over. It is cancelled when the lease is lost, or the election stops."""
        self._granted(self._acquiring, lease)
        until = time.monotonic() + self._until
        while True:
            try:
                await self._pause(self._pauses[0])
                await self._perform_async()
            except EXPECTED as error:
                self._failed(error)
                raise
            if time.monotonic() > until:
                return

    def _acknowledged(self) -> None:
        super()._acknowledged()
        os.write(1, f"{LED}{self.counter}\n".encode())


class Replica:
    """Campaigns in one election, and observes it.

    Args:
        election: sync or async.
        chances: the source of all choices of each term; it ends when the worker rests.
        new_term: makes a term.
        log: where what is observed goes.
    """

    def __init__(
        self, election: Any, counter: str, chances: Iterator[Random], new_term: Callable[[Random], Term], log: Log
    ) -> None:
        self.election, self._counter, self._chances, self._new_term, self._log = (
            election,
            counter,
            chances,
            new_term,
            log,
        )
        self._term: Term | None = None
        self._over: list[Term] = []

    def _next(self) -> bool:
        """Begin to wait for another term. Return False if the worker rests."""
        if (chance := next(self._chances, None)) is None:
            return False
        if self._term is not None:
            self._over.append(self._term)
        self._term = self._new_term(chance)
        self._term.campaign()
        return True

    def _failed(self) -> None:
        self._log.add("error", text=traceback.format_exc()[-3000:])

    def _ended(self) -> None:
        if not self.election.stopped:
            self._log.add("error", text="a campaign is over, although nobody has stopped the election")

    def _saw(self, leader: Leader | None) -> None:
        values = {} if leader is None else {"number": leader.number or 0, "text": leader.value}
        self._log.add("seen", counter=self._counter, **values)

    # Threads

    def start(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=target) for target in (self._run, self._observe)]
        for thread in threads:
            thread.start()
        return threads

    def _run(self) -> None:
        while self._next():
            try:
                self.election.run(self._lead)
                self._ended()
            except EXPECTED:
                pass  # noted by the term, or before there was one
            except Exception:  # noqa: BLE001 - noted
                self._failed()
            self._settle()

    def _lead(self, lease: Any) -> None:
        self._settle()
        assert self._term is not None
        try:
            self._term.lead(lease, lambda: self.election.stopped)
        finally:
            self._next()

    def _settle(self) -> None:
        """Ask what became of the writes of earlier terms."""
        while self._over:
            term = self._over.pop()
            while term.unknown:
                write, error = term.unknown.pop()
                run(term.ask(error, write))

    def _observe(self) -> None:
        try:
            for leader in self.election.observe(every=OBSERVE_SECONDS):
                self._saw(leader)
        except Exception:  # noqa: BLE001 - noted
            self._failed()

    # Tasks

    async def run_async(self) -> None:
        while self._next():
            try:
                await self.election.run(self._lead_async)
                self._ended()
            except EXPECTED:
                pass
            except Exception:  # noqa: BLE001 - noted
                self._failed()
            await self._settle_async()

    async def _lead_async(self, lease: Any) -> None:
        assert self._term is not None
        try:
            await self._settle_async()
            await self._term.lead_async(lease)
        finally:
            self._next()

    async def _settle_async(self) -> None:
        while self._over:
            term = self._over.pop()
            while term.unknown:
                write, error = term.unknown.pop()
                await run_async(term.ask(error, write))

    async def observe_async(self) -> None:
        try:
            async for leader in self.election.observe(every=OBSERVE_SECONDS):
                self._saw(leader)
        except Exception:  # noqa: BLE001 - noted
            self._failed()

"""Workers that add to a guarded balance while Redis fails over, and what must hold for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from fencing import CoordinatorUnavailable, LeaseLost, NotAcquired, OutcomeUnknown, StaleFence
from tests.support import wait_until
from tests.support.sides import Account, Side


class FailoverLoad:
    """Threads that each add one to the balance again and again, each with a coordinator of its own.

    Attributes:
        written: each acknowledged balance with the number of its fence.
        refused: how many writes the guard refused.
        longest: the longest time that one acquire took, in seconds.
        errors: what must not happen.
    """

    def __init__(self, side: Side, make_client: Callable[[], Any], account: Account, *, threads: int = 3) -> None:
        self.written: list[tuple[int, int]] = []
        self.refused = self.unknown = 0
        self.longest = 0.0
        self.errors: list[BaseException] = []
        self._side, self._account = side, account
        self._over = threading.Event()
        coordinators = [side.coordinator(make_client(), ttl=2, guards=[account.guard]) for _ in range(threads)]
        self._threads = [threading.Thread(target=self._work, args=(each,), daemon=True) for each in coordinators]
        for thread in self._threads:
            thread.start()

    def _work(self, coordinator: Any) -> None:
        try:
            while not self._over.wait(0.02):
                self._add(coordinator)
        except BaseException as error:  # noqa: BLE001 - the test reads it
            self.errors.append(error)

    def _add(self, coordinator: Any) -> None:
        call, account = self._side.call, self._account
        began = time.monotonic()
        lease = call(coordinator.acquire, "r", timeout=40)
        self.longest = max(self.longest, time.monotonic() - began)
        try:
            balance = account.balance + 1
            account.write(lease, balance)
            self.written.append((balance, lease.fence.number))
        except OutcomeUnknown:
            self.unknown += 1
        except (StaleFence, LeaseLost):
            self.refused += 1
        try:
            call(lease.release)
        except (CoordinatorUnavailable, NotAcquired):
            pass  # it is given back later

    def continues(self, count: int = 10) -> None:
        """Wait until so many more writes were acknowledged."""
        target = len(self.written) + count
        wait_until(lambda: self.errors or len(self.written) >= target)

    def check(self) -> None:
        """Stop, and check that no update was lost, and that numbers grew from write to write."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if self.errors:
            raise BaseExceptionGroup("workers failed", self.errors)
        lost = len(self.written) - self._account.balance
        assert -self.unknown <= lost <= 0, f"{lost} acknowledged updates are lost"
        numbers = [number for _, number in sorted(self.written)]
        assert numbers == sorted(set(numbers)), "a later write has a lower number"

"""Guards raced against each other: claims, writes, and increments whose fences repeat and run backwards."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from fencing.kernel.errors import GuardUnavailable, StaleFence
from fencing.kernel.fence import Fence, Mark
from fencing.testing.contract import Contract
from storage_guards.testing.base import GuardSuite, fence

WRITERS = 4
ATTEMPTS = 25
"""How often each racing writer tries. Most of its fences come too late, on purpose."""

MORE_ROUNDS = 4
"""The factor by which ATTEMPTS may grow until ENOUGH attempts of all writers were in time. On a slow storage newer
claims interrupt nearly every attempt."""

ENOUGH = 5

RACING_SECONDS = 0.6
"""How long a newer claim is raced against a write, again and again."""

_OUR_OWN = {__name__, GuardSuite.__module__, Contract.__module__, "inspect"}


class GuardRaces(GuardSuite):
    """Races: whatever happens at the same time, acknowledged writes are there, and refused ones are not."""

    def test_racing_claims_leave_the_newest(self) -> None:
        name = self._name()
        fences = [fence(name, number) for number in range(1, WRITERS + 1)]
        assert self._mark(name) is None
        verdicts = self.race([lambda one=one: self._admits(one) for one in fences])  # type: ignore[misc]
        assert verdicts[-1]
        assert self._mark(name) == Mark(WRITERS, fences[-1].token, 0)

    def test_one_fence_may_be_claimed_by_several_at_once(self) -> None:
        mine = fence(self._name(), 3)
        assert self._mark(mine.resource) is None
        assert self.race([lambda: self._admits(mine)] * WRITERS) == [True] * WRITERS

    def test_check_and_write_are_one(self) -> None:
        """A newer claim between A's check and A's commit waits for the commit, or A is refused."""
        self._needs("transactions")
        self._check_and_write_are_one(self)

    def test_check_and_write_are_one_for_two_guards(self) -> None:
        self._needs("several_guards", "transactions")
        self._check_and_write_are_one(self._second())

    def _check_and_write_are_one(self, other: GuardSuite) -> None:
        name = self._name()
        a, b = fence(name, 1), fence(name, 2)
        self._claim(a)
        seen_by_b: list[int] = []

        def claim_and_read() -> None:
            while not other._admits(b):
                pass
            seen_by_b.append(other.call(other.read, name))

        newer = threading.Thread(target=claim_and_read)

        def between() -> None:
            newer.start()
            newer.join(0.3)

        try:
            self.call(self.add, a, name, between)
            written = 1
        except (StaleFence, GuardUnavailable):
            written = 0
        newer.join(30)
        assert seen_by_b == [written], "A overwrote the value that B had read after its claim"
        assert self.call(self.read, name) == written

    def test_a_write_races_a_newer_claim(self) -> None:
        """The older write lands before the newer holder's claim, or never. So that holder's read is final."""
        name = self._name()
        other = self._second() if self.several_guards else self
        number = value = 0
        deadline = time.monotonic() + RACING_SECONDS
        pause = _LinePause()
        while time.monotonic() < deadline:
            old, newer = fence(name, number := number + 1), fence(name, number := number + 1)
            self._claim(old)

            def write(mine: Fence = old) -> bool:
                try:
                    pause.during(lambda: self._write(mine, mine.number))
                    return True
                except (StaleFence, GuardUnavailable):
                    return False

            def claim_and_read(mine: Fence = newer) -> int:
                time.sleep(0.001)
                assert other._admits(mine)
                return int(other.call(other.read, name))

            written, seen = self.race([write, claim_and_read])
            value = old.number if written else value
            assert seen == value, "the older write landed after the newer claim, or was refused and landed"
            assert self.call(self.read, name) == value

    # Increments, without a lock. Every acknowledged one must be there.

    def test_racing_writers_lose_nothing(self) -> None:
        def increment(test: GuardSuite, mine: Fence, pause: Callable[[], None]) -> None:
            test._claim(mine)
            value = test.call(test.read, mine.resource)
            pause()
            test._write(mine, value + 1)

        self._race_increments(increment)

    def test_racing_transactions_lose_nothing(self) -> None:
        self._needs("transactions")

        def increment(test: GuardSuite, mine: Fence, pause: Callable[[], None]) -> None:
            test._claim(mine)
            test.call(test.add, mine, mine.resource, pause)

        self._race_increments(increment)

    def test_racing_transactions_that_claim_lose_nothing(self) -> None:
        self._needs("transactions", "claim_and_write")
        self._race_increments(lambda test, mine, pause: test.call(test.add, mine, mine.resource, pause, claim=True))

    def test_without_the_guard_the_same_race_loses_updates(self) -> None:
        """The control: if this fails, the tests above prove nothing."""
        name = self._name()
        everyone_has_read = threading.Barrier(WRITERS)

        def increment() -> None:
            value = self.call(self.read, name)
            everyone_has_read.wait(30)
            self.call(self.write_unguarded, name, value + 1)

        self.race([increment] * WRITERS)
        assert self.call(self.read, name) < WRITERS

    def _race_increments(self, increment: Callable[[GuardSuite, Fence, Callable[[], None]], Any]) -> None:
        name = self._name()
        tests = [self, self._second() if self.several_guards else self]
        assert self._mark(name) is None
        seed = int(os.environ.get("FENCING_SEED") or random.randrange(2**32))

        by: list[int] = []

        def writer(index: int) -> None:
            chance = random.Random(f"{seed}:{index}")  # threads still interleave as they please
            for attempt in range(ATTEMPTS * MORE_ROUNDS):
                if attempt >= ATTEMPTS and len(by) >= ENOUGH:
                    break
                time.sleep(chance.random() / 100)  # otherwise newer claims would interrupt nearly every attempt
                mark = self._mark(name)
                number = max(1, (mark.number if mark else 0) + chance.randint(-2, 2))
                mine = Fence(name, number, f"{chance.getrandbits(128):032x}")
                try:
                    increment(tests[index % 2], mine, lambda: time.sleep(chance.random() / 500))
                    by.append(index)
                except (StaleFence, GuardUnavailable):
                    pass

        self.race([lambda index=index: writer(index) for index in range(WRITERS)])  # type: ignore[misc]
        acknowledged = len(by)
        final = self.call(self.read, name)
        assert final == acknowledged, f"{acknowledged} increments acknowledged, {final} there; FENCING_SEED={seed}"
        assert acknowledged >= ENOUGH, f"only {acknowledged} acknowledged: that proves little; FENCING_SEED={seed}"


class _LinePause:
    """A pause of a thread inside a call: at each use one line later, so that it hits every gap between two lines."""

    def __init__(self) -> None:
        self._line = 0

    def during(self, function: Callable[[], Any]) -> None:
        passed = 0

        def trace(frame: Any, kind: str, _: Any) -> Any:
            nonlocal passed
            if frame.f_globals.get("__name__") in _OUR_OWN:
                return trace
            passed += kind == "line"
            if kind == "line" and passed == self._line:
                time.sleep(0.003)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
            self._line = 1 if self._line >= passed else self._line + 1

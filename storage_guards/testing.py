"""The contract of guards, as tests that a new guard runs in about ten lines::

    class TestMyGuard(GuardContract):
        def make(self):
            return MyGuard(connect())

        def read(self, resource):
            return my_storage.get(resource, 0)

        def write(self, fence, resource, value, **options):
            self.guard.write(fence, resource, value, **options)

        def write_unguarded(self, resource, value):
            my_storage.put(resource, value)

        def add(self, fence, resource, between, **options):
            with self.guard.begin(fence, **options) as transaction:
                value = transaction.get(resource, 0)
                between()
                transaction.put(resource, value + 1)

Each method may be ``async def``; then ``add`` awaits ``asyncio.to_thread(between)``, since ``between`` may block. Needs
pytest, or anything else that collects ``test_`` methods and makes a new instance for each.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import threading
import time
import unittest
import uuid
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

from fencing.kernel.errors import GuardUnavailable, LeaseLost, OutcomeUnknown, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER, MAX_RESOURCE_BYTES, Fence, Mark
from fencing.testing.contract import Contract

__all__ = ["GuardContract"]

WRITERS = 4
ATTEMPTS = 25
"""How often each racing writer tries. Most of its fences come too late, on purpose; ENOUGH of all must not, or all go
on, up to so many times as often: on a slow storage nearly every attempt is cut short by a newer claim."""
MORE_ROUNDS = 4

ENOUGH = 5

RACING_SECONDS = 0.6
"""How long a newer claim is raced against a write, again and again."""

AWKWARD_ENDS = (
    "",
    " ",
    "  ",
    "\t",
    "A",
    "a",
    "ä",
    "a\u0308",
    "'",
    '"',
    "\\",
    "%s",
    ":n",
    "\n",
    "ß",
    "ss",
    "\U0001f512",
)
TOKENS = ("a" * 22, "A" * 22, "a" * 23, "a" * 21 + "-", "a" * 21 + "_", "0" * 22)


def fence(resource: str, number: int, token: str | None = None) -> Fence:
    """A fence as a coordinator would have minted it, with a token of its own unless one is given."""
    return Fence(resource, number, token or uuid.uuid4().hex)


_OUR_OWN = {__name__, Contract.__module__, "inspect"}


class GuardContract(Contract):
    """Every guard passes these. Each test uses resources of its own, so the storage need not be empty."""

    transactions: ClassVar[bool] = True
    """Whether ``add`` exists."""

    claim_and_write: ClassVar[bool] = True
    """Whether ``write`` and ``add`` take ``claim=True``."""

    several_guards: ClassVar[bool] = True
    """Whether a second ``make()`` gives a guard on the same storage; False where the storage is the guard object."""

    # What a subclass supplies

    def make(self) -> Any:
        """A new guard on the storage under test; called again in one test, on the same storage."""
        raise AssertionError("override make()")

    def read(self, resource: str) -> Any:
        """The int stored under that name; 0 where there is none. Reads what is committed, on the primary."""
        raise AssertionError("override read()")

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        """Store the int through the guard; ``options`` is ``claim=True`` or empty."""
        raise AssertionError("override write()")

    def write_unguarded(self, resource: str, value: int) -> Any:
        """Store the int past the guard: the control."""
        raise AssertionError("override write_unguarded()")

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        """In one transaction of the guard: read the int, call ``between()``, store one more."""
        raise AssertionError("override add(), or set transactions = False")

    @cached_property
    def guard(self) -> Any:
        """The guard of this test, made when it is first asked for."""
        return self.call(self.make)

    # Claims

    def test_a_claim_raises_the_mark(self) -> None:
        name = self._name()
        assert self._mark(name) is None
        for number in (1, 2, 10, MAX_NUMBER):
            claimed = fence(name, number)
            self._claim(claimed)
            assert self._mark(name) == Mark(number, claimed.token, 0)

    def test_a_claim_may_be_repeated_and_keeps_the_seq(self) -> None:
        mine = fence(self._name(), 5)
        self._claim(mine)
        self._write(mine, 1)
        before = self._mark(mine.resource)
        self.call(self.guard.claim, mine, mine, timeout=5.0)
        assert self._mark(mine.resource) == before

    def test_an_older_claim_is_stale(self) -> None:
        name = self._name()
        newer, older = fence(name, 5), fence(name, 4)
        self._claim(newer)
        refused = self.expect(StaleFence, self.guard.claim, older)
        assert (refused.fence, refused.mark) == (older, Mark(5, newer.token, 0))
        assert self._mark(name) == Mark(5, newer.token, 0)

    def test_an_equal_number_with_another_token_is_stale(self) -> None:
        for first, second in pairwise(TOKENS):
            name = self._name()
            mine, other = fence(name, 5, first), fence(name, 5, second)
            self._claim(mine)
            self.expect(StaleFence, self.guard.claim, other)
            self._refused(other, 2)
            self._write(mine, 1)
            assert self.call(self.read, name) == 1

    def test_several_claims_are_all_or_none(self) -> None:
        first, second = self._name(), self._name()
        for good, bad in ((first, second), (second, first)):
            claimed = fence(bad, 5)
            self._claim(claimed)
            before = self._mark(good)
            self.expect(StaleFence, self.guard.claim, fence(good, 7), fence(bad, 4))
            assert self._mark(good) == before
            assert self._mark(bad) == Mark(5, claimed.token, 0)
        both = fence(first, 8), fence(second, 8)
        self.call(self.guard.claim, *both)
        assert [self._mark(one.resource) for one in both] == [Mark(8, one.token, 0) for one in both]

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

    def test_names_are_exact(self) -> None:
        prefix = self._name()
        fences = [fence(prefix + end, number) for number, end in enumerate(AWKWARD_ENDS, 1)]
        for number, one in enumerate(fences, 1):
            self._claim(one)
            self._write(one, number)
        for number, one in enumerate(fences, 1):
            assert self._mark(one.resource) == Mark(number, one.token, 1)
            assert self.call(self.read, one.resource) == number

    def test_the_longest_names_are_exact(self) -> None:
        prefix = self._name().ljust(MAX_RESOURCE_BYTES - 1, "x")
        fences = [fence(prefix + end, number) for number, end in ((2, "a"), (1, "b"))]
        for one in fences:
            self._claim(one)
            self._write(one, 10 * one.number)
        for one in fences:
            assert self._mark(one.resource) == Mark(one.number, one.token, 1)
            assert self.call(self.read, one.resource) == 10 * one.number

    def test_a_superseded_fence_stays_stale(self) -> None:
        """Also for a guard that has admitted it before."""
        name = self._name()
        old, newer = fence(name, 4), fence(name, 5)
        self._claim(old)
        self._write(old, 1)
        self._claim(newer)
        self.expect(StaleFence, self.guard.claim, old)
        self._refused(old, 2)
        if self.claim_and_write:
            self._refused(old, 2, claim=True)
        if self.transactions:
            self.expect(StaleFence, self.add, old, name, _interrupt)
        if self.transactions and self.claim_and_write:
            self.expect(StaleFence, self.add, old, name, _interrupt, claim=True)
        assert self._mark(name) == Mark(5, newer.token, 0)
        assert self.call(self.read, name) == 1

    # Several guards on one storage, as in several processes: the marks are the storage's

    def test_a_second_guard_has_the_same_marks(self) -> None:
        self._needs("several_guards")
        name = self._name()
        mine = fence(name, 5)
        self._claim(mine)
        self._write(mine, 1)
        second = self._second()
        assert second._mark(name) == Mark(5, mine.token, 1)
        second.expect(StaleFence, second.guard.claim, fence(name, 4))
        second._refused(fence(name, 4), 2)
        second._write(mine, 2)
        assert self._mark(name) == Mark(5, mine.token, 2)

    def test_the_textbook_trace_through_two_guards(self) -> None:
        self._needs("several_guards")
        self._textbook_trace(self._second())

    def test_check_and_write_are_one_for_two_guards(self) -> None:
        self._needs("several_guards", "transactions")
        self._check_and_write_are_one(self._second())

    def test_what_is_no_fence_is_refused(self) -> None:
        mine = fence(self._name(), 5)
        self.expect(TypeError, self.guard.claim)
        self.expect(TypeError, self.guard.claim, str(mine))
        self.expect(ValueError, self.guard.claim, mine, fence(mine.resource, 6))
        self.expect(TypeError, self.guard.claim, mine, timeout="5")
        self.expect(ValueError, self.guard.claim, mine, timeout=float("nan"))
        self.expect(LeaseLost, self.guard.claim, _Lease(mine, ended="released"))
        assert self._mark(mine.resource) is None

    # Writes

    def test_each_write_is_counted(self) -> None:
        mine = fence(self._name(), 5)
        self._claim(mine)
        for count in (1, 2, 3):
            self._write(_Lease(mine), 10 * count)
            assert self._mark(mine.resource) == Mark(5, mine.token, count)
            assert self.call(self.read, mine.resource) == 10 * count
        self._claim(newer := fence(mine.resource, 6))
        assert self._mark(mine.resource) == Mark(6, newer.token, 0)

    def test_a_write_without_a_claim_is_refused(self) -> None:
        name = self._name()
        assert self.expect(UnclaimedFence, self.write, fence(name, 5), name, 1).mark is None
        claimed = fence(name, 5)
        self._claim(claimed)
        self.expect(UnclaimedFence, self.write, fence(name, 6), name, 1)
        self.expect(UnclaimedFence, self.write, fence(name, 6, claimed.token), name, 1)
        assert self._mark(name) == Mark(5, claimed.token, 0)
        assert self.call(self.read, name) == 0

    def test_the_textbook_trace(self) -> None:
        """A reads, B (newer) reads before A writes: nothing newer has written yet, and still A must not."""
        self._textbook_trace(self)

    def _textbook_trace(self, other: GuardContract) -> None:
        name = self._name()
        a, b = fence(name, 1), fence(name, 2)
        self._claim(a)
        read_by_a = self.call(self.read, name)
        other._claim(b)
        read_by_b = other.call(other.read, name)
        assert self._refused(a, read_by_a + 1).mark == Mark(2, b.token, 0)
        other._write(b, read_by_b + 1)
        assert self.call(self.read, name) == 1

    def test_resources_are_independent(self) -> None:
        old, new = fence(self._name(), 1), fence(self._name(), 9)
        self._claim(new)
        self._claim(old)
        self._write(new, 9)
        self._write(old, 1)
        assert (self.call(self.read, old.resource), self.call(self.read, new.resource)) == (1, 9)

    def test_of_a_write_that_is_not_its_own_it_knows_nothing(self) -> None:
        mine, absent = fence(self._name(), 5), fence(self._name(), 5)
        self._claim(mine)
        self._write(mine, 1)
        before = self._mark(mine.resource)
        for one in (mine, absent):
            for recent_writes in ("", "x" * 12, "x" * 12 + " " + "y" * 12):
                unknown = OutcomeUnknown(fence=one, seq=1, transaction="1", recent_writes=recent_writes)
                assert self.call(self.guard.landed, unknown) is None
        assert (self._mark(mine.resource), self._mark(absent.resource)) == (before, None)
        self.expect(TypeError, self.guard.landed, StaleFence(fence=mine, mark=None))
        self.expect(TypeError, self.guard.landed, mine)

    def test_claim_and_write_at_once(self) -> None:
        self._needs("claim_and_write")
        name = self._name()
        mine = fence(name, 5)
        self.call(self.write, mine, name, 1, claim=True)
        assert self._mark(name) == Mark(5, mine.token, 1)
        self._refused(fence(name, 4), 2, claim=True)
        self._refused(fence(name, 5), 2, claim=True)
        assert self.call(self.read, name) == 1

    # Transactions

    def test_an_exception_undoes_a_transaction(self) -> None:
        self._needs("transactions")
        mine = fence(self._name(), 5)
        self._claim(mine)
        self.call(self.add, mine, mine.resource, lambda: None)
        self.expect(_Interrupted, self.add, mine, mine.resource, _interrupt)
        assert self.call(self.read, mine.resource) == 1
        assert self._mark(mine.resource) == Mark(5, mine.token, 1)

    def test_a_transaction_is_checked_before_its_block(self) -> None:
        self._needs("transactions")
        name = self._name()
        self._claim(fence(name, 5))
        self.expect(StaleFence, self.add, fence(name, 4), name, _interrupt)
        self.expect(StaleFence, self.add, fence(name, 5), name, _interrupt)
        self.expect(UnclaimedFence, self.add, fence(name, 6), name, _interrupt)

    def test_check_and_write_are_one(self) -> None:
        """A newer claim that comes between A's check and A's commit waits for it, or A is refused."""
        self._needs("transactions")
        self._check_and_write_are_one(self)

    def _check_and_write_are_one(self, other: GuardContract) -> None:
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
        assert seen_by_b == [written], "B read, after its claim, what A then overwrote"
        assert self.call(self.read, name) == written

    def test_a_write_races_a_newer_claim(self) -> None:
        """What the newer one reads after its claim is final: the older write came before that, or never comes."""
        name = self._name()
        other = self._second() if self.several_guards else self
        number = value = 0
        deadline = time.monotonic() + RACING_SECONDS
        pause = _PauseAtALine()
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

    # Races: no lock at all, and fences that repeat and run backwards. What was acknowledged must be there.

    def test_racing_writers_lose_nothing(self) -> None:
        def increment(test: GuardContract, mine: Fence, pause: Callable[[], None]) -> None:
            test._claim(mine)
            value = test.call(test.read, mine.resource)
            pause()
            test._write(mine, value + 1)

        self._race_increments(increment)

    def test_racing_transactions_lose_nothing(self) -> None:
        self._needs("transactions")

        def increment(test: GuardContract, mine: Fence, pause: Callable[[], None]) -> None:
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

    def _race_increments(self, increment: Callable[[GuardContract, Fence, Callable[[], None]], Any]) -> None:
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
                time.sleep(chance.random() / 100)  # or newer claims would cut short nearly every attempt
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

    # Short forms

    def _name(self) -> str:
        """A resource of the test's own. Makes the guard first, so that an async ``write`` finds it made."""
        assert self.guard is not None
        return f"contract:{uuid.uuid4().hex}"

    def _claim(self, mine: Fence) -> None:
        self.call(self.guard.claim, mine)

    def _mark(self, resource: str) -> Mark | None:
        mark: Mark | None = self.call(self.guard.mark, resource)
        return mark

    def _write(self, mine: Any, value: int) -> None:
        self.call(self.write, mine, getattr(mine, "fence", mine).resource, value)

    def _refused(self, mine: Fence, value: int, **options: Any) -> StaleFence:
        """The StaleFence of a write that must not have happened."""
        before = self.call(self.read, mine.resource)
        refused = self.expect(StaleFence, self.write, mine, mine.resource, value, **options)
        assert self.call(self.read, mine.resource) == before, "refused, and written all the same"
        return refused

    def _second(self) -> GuardContract:
        """This test, with a guard of its own on the same storage."""
        assert self.guard is not None
        second = copy.copy(self)
        vars(second)["guard"] = second.call(second.make)
        return second

    def _admits(self, mine: Fence) -> bool:
        """Whether a claim is admitted; retried while the storage is too busy to say."""
        for _ in range(100):
            try:
                self._claim(mine)
                return True
            except StaleFence:
                return False
            except GuardUnavailable:
                time.sleep(0.01)
        raise AssertionError("the storage stayed unavailable")

    def _needs(self, *abilities: str) -> None:
        for ability in abilities:
            if not getattr(self, ability):
                raise unittest.SkipTest(f"{type(self).__name__}.{ability} is False")


class _PauseAtALine:
    """Pauses a thread inside what it calls: at each use one line later, so that no gap is too narrow to be hit."""

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


class _Lease:
    """As much of a lease as a guard may use."""

    def __init__(self, mine: Fence, ended: str | None = None) -> None:
        self.fence = mine
        self.ended = ended

    def remaining(self) -> float:
        return 5.0


class _Interrupted(Exception):
    pass


def _interrupt() -> None:
    raise _Interrupted

"""The rules of guards, one by one: which claims and writes are admitted, and the marks that they leave."""

from __future__ import annotations

from itertools import pairwise

from fencing.kernel.errors import LeaseLost, OutcomeUnknown, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_RESOURCE_BYTES, Fence, Mark
from storage_guards.testing.base import GuardSuite, fence

AWKWARD_ENDS = (
    "", " ", "  ", "\t", "A", "a", "ä", "a\u0308", "'", '"', "\\", "%s", ":n", "\n", "ß", "ss", "\U0001f512",
)  # fmt: skip
TOKENS = ("a" * 22, "A" * 22, "a" * 23, "a" * 21 + "-", "a" * 21 + "_", "0" * 22)


class GuardRules(GuardSuite):
    """Claims, writes and transactions, one after the other."""

    # Claims

    def test_a_claim_raises_the_mark(self) -> None:
        name = self._name()
        assert self._mark(name) is None
        for number in (1, 2, 10, self.highest_number):
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

    # Several guards on one storage, as in several processes: the marks belong to the storage

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
        """A reads, and B (newer) reads before A writes. B has not written yet, but A must not write any more."""
        self._textbook_trace(self)

    def _textbook_trace(self, other: GuardSuite) -> None:
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


class _Lease:
    """The part of a lease that a guard may use."""

    def __init__(self, mine: Fence, ended: str | None = None) -> None:
        self.fence = mine
        self._ended = ended

    def remaining(self) -> float:
        return 5.0


class _Interrupted(Exception):
    pass


def _interrupt() -> None:
    raise _Interrupted

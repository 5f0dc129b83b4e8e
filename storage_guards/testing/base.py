"""The base of the guards' suites: the methods that a subclass supplies, and short forms for the tests."""

from __future__ import annotations

import copy
import time
import unittest
import uuid
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

from fencing.kernel.errors import GuardUnavailable, StaleFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from fencing.testing.contract import Contract


def fence(resource: str, number: int, token: str | None = None) -> Fence:
    """Return a fence as a coordinator would have minted it, with a new token unless one is given."""
    return Fence(resource, number, token or uuid.uuid4().hex)


class GuardSuite(Contract):
    """The base of the suites of guards."""

    transactions: ClassVar[bool] = True
    """True if ``add`` exists."""

    claim_and_write: ClassVar[bool] = True
    """True if ``write`` and ``add`` take ``claim=True``."""

    several_guards: ClassVar[bool] = True
    """True if a second ``make()`` gives a guard on the same storage; False where the storage is the guard object."""

    highest_number: ClassVar[int] = MAX_NUMBER
    """The highest number that a claim may have. It is lower where numbers far ahead of the clock are refused."""

    # The methods of a subclass

    def make(self) -> Any:
        """Return a new guard on the storage under test. One test may call it again, for the same storage."""
        raise AssertionError("override make()")

    def read(self, resource: str) -> Any:
        """Return the int stored under that name; 0 where there is none. Read committed data, on the primary."""
        raise AssertionError("override read()")

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        """Store the int through the guard. ``options`` is ``claim=True`` or empty."""
        raise AssertionError("override write()")

    def write_unguarded(self, resource: str, value: int) -> Any:
        """Store the int without the guard, for the control test."""
        raise AssertionError("override write_unguarded()")

    def add(self, fence: Fence, resource: str, between: Callable[[], Any], **options: Any) -> Any:
        """Read the int, call ``between()`` and store one more, in one transaction of the guard."""
        raise AssertionError("override add(), or set transactions = False")

    @cached_property
    def guard(self) -> Any:
        """The guard of this test, made when it is first asked for."""
        return self.call(self.make)

    # Short forms

    def _name(self) -> str:
        """Return a resource for this test alone. The guard is made first, so that an async ``write`` finds it."""
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
        """Expect a StaleFence of the write, which must not have happened."""
        before = self.call(self.read, mine.resource)
        refused = self.expect(StaleFence, self.write, mine, mine.resource, value, **options)
        assert self.call(self.read, mine.resource) == before, "refused, and written all the same"
        return refused

    def _second(self) -> GuardSuite:
        """Return this test with a second guard on the same storage."""
        assert self.guard is not None
        second = copy.copy(self)
        vars(second)["guard"] = second.call(second.make)
        return second

    def _admits(self, mine: Fence) -> bool:
        """Claim, again while the storage is too busy, and return whether the claim was admitted."""
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

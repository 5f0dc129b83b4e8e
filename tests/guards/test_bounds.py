"""How long a guard may wait."""

from __future__ import annotations

import pytest

from fencing.kernel.fence import Fence
from fencing.kernel.retry import LEAST_SECONDS
from storage_guards.bounds import LEAST_LEASE_SECONDS, MOST_SECONDS, check_timeout, wait_seconds

FENCE = Fence("orders:1", 5, "a" * 22)


class Lease:
    fence = FENCE

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def remaining(self) -> float:
        return self.seconds


def test_a_bare_fence_leaves_the_guards_own_bound() -> None:
    assert wait_seconds([FENCE], 10.0) == 10.0


def test_the_lease_that_ends_first_counts() -> None:
    assert wait_seconds([Lease(7.0), FENCE, Lease(3.0)], 10.0) == 3.0


def test_a_lease_never_lengthens_the_bound() -> None:
    assert wait_seconds([Lease(70.0)], 10.0) == 10.0


def test_a_lease_at_its_end_may_still_try() -> None:
    assert wait_seconds([Lease(-5.0)], 10.0) == LEAST_LEASE_SECONDS
    assert wait_seconds([Lease(-5.0)], 0.2) == 0.2


def test_a_callers_timeout_goes_before_the_lease() -> None:
    assert wait_seconds([Lease(3.0)], 10.0, 0.25) == 0.25
    assert wait_seconds([Lease(3.0)], 10.0, 99) == 10.0


def test_a_timeout_that_has_run_out_still_asks_once() -> None:
    assert wait_seconds([FENCE], 10.0, 0) == LEAST_SECONDS
    assert wait_seconds([FENCE], 10.0, -3.5) == LEAST_SECONDS


def test_a_bound_fits_into_32_bits_of_milliseconds() -> None:
    assert check_timeout(MOST_SECONDS) == MOST_SECONDS == 2147483.647
    for timeout in (MOST_SECONDS + 0.001, 3e6):
        with pytest.raises(ValueError, match=r"at most 2147483\.647 seconds"):
            check_timeout(timeout)
    assert wait_seconds([FENCE], MOST_SECONDS, 1e300) == MOST_SECONDS

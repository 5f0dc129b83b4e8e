"""The pauses between attempts to change a pointer."""

from __future__ import annotations

import random

import pytest

from storage_guards.objects.changes import pause
from storage_guards.objects.requests import Deadline


@pytest.mark.parametrize("least", [0.0, 0.5])
@pytest.mark.parametrize("left", [60.0, 0.1, -1.0])
def test_pauses_double_up_to_half_a_second_or_the_deadline(
    monkeypatch: pytest.MonkeyPatch, least: float, left: float
) -> None:
    deadline = Deadline(left, clock=lambda: 0.0)
    limits = [min(0.005 * 2**attempt, 0.5, max(left, 0.001)) for attempt in range(12)]
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    assert [pause(attempt, deadline, least).seconds for attempt in range(12)] == limits
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    shortest = [pause(attempt, deadline, least).seconds for attempt in range(12)]
    assert shortest == [least * limit for limit in limits]

"""The clock that a test moves by hand."""

from __future__ import annotations

import pytest

from fencing.testing import ManualClock


def always() -> bool:
    return True


def test_each_call_is_made_at_its_moment() -> None:
    clock = ManualClock(100)
    calls: list[tuple[str, float]] = []
    for name, when in [("third", 103.0), ("first", 101.0), ("never", 102.0), ("late", 110.0)]:
        clock.call_at(when, lambda name=name: calls.append((name, clock())), lambda name=name: name != "never")  # type: ignore[misc]
    clock.advance(5)
    assert calls == [("first", 101.0), ("third", 103.0)]
    assert clock() == 105
    clock.advance(5)
    assert calls[2:] == [("late", 110.0)]


def test_a_call_for_a_moment_that_is_over_is_made_at_once() -> None:
    clock = ManualClock(100)
    calls: list[float] = []
    clock.call_at(100, lambda: calls.append(clock()), always)
    assert calls == [100]


def test_a_call_that_another_thread_adds_while_the_clock_moves_is_made() -> None:
    calls: list[str] = []

    class Overtaken(ManualClock):
        """Another thread adds a call as the clock has just found that no other one is due."""

        added = False

        def _next(self, until: float) -> object:  # type: ignore[override]
            due = super()._next(until)
            if due is None and not self.added:
                self.added = True
                self.call_at(until - 0.5, lambda: calls.append("made"), always)
            return due

    Overtaken().advance(1)
    assert calls == ["made"]


def test_time_does_not_run_backwards() -> None:
    with pytest.raises(ValueError):  # a negative step
        ManualClock().advance(-1)

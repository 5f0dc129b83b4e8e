"""The timer of threads. It follows the real clock, so these tests wait for it."""

from __future__ import annotations

from functools import partial

import pytest

from fencing.kernel import process
from fencing.kernel import timer as timer_module
from tests.support import wait_until


def test_a_failing_call_does_not_end_the_timer(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    now = process.now()
    timer_module.timer().call_at(now, fail, lambda: True)
    timer_module.timer().call_at(now + 0.01, lambda: called.append(1), lambda: True)
    wait_until(lambda: called)
    assert "ZeroDivisionError" in caplog.text


def test_calls_come_in_order_and_early_once_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_module, "LINGER_SECONDS", 0.05)
    called: list[int] = []
    wanted = [True]
    timer = timer_module.Timer()
    now = process.now()
    for number in (3, 1, 2, 360_000):
        timer.call_at(now + number / 100, partial(called.append, number), lambda: wanted[0])
    wait_until(lambda: len(called) == 3)
    assert called == [1, 2, 3]
    wanted[0] = False
    wait_until(lambda: not timer._worker.is_running)
    assert called == [1, 2, 3, 360_000]

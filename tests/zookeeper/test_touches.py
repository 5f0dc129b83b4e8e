"""Until when a session is believed to last: only what has certainly reached the leader counts."""

from __future__ import annotations

import pytest

from fencing.zookeeper.touches import APART, Touches


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_handshake_counts_at_once(clock: Clock) -> None:
    touches = Touches(clock, 10.0)
    touches.connected(clock.now)
    assert touches.proved_by(clock.now + 1) == clock.now


def test_what_was_just_sent_does_not_count_yet(clock: Clock) -> None:
    """It may have come through a follower, which tells the leader of its clients a moment later."""
    touches = Touches(clock, 10.0)
    touches.connected(clock.now)
    for clock.now in (101.0, 102.0, 103.0, 104.0):
        touches.sent()
    assert touches.proved_by(104.0) == 101.0
    assert touches.proved_by(102.0 + 10 * APART) == 102.0
    assert touches.proved_by(120.0) == 104.0


def test_a_new_connection_forgets_what_another_one_has_sent(clock: Clock) -> None:
    """It may never have arrived."""
    touches = Touches(clock, 10.0)
    touches.connected(clock.now)
    clock.now = 105.0
    touches.sent()
    touches.connected(104.0)
    assert touches.proved_by(109.0) == 104.0


def test_few_moments_are_kept(clock: Clock) -> None:
    touches = Touches(clock, 10.0)
    touches.connected(clock.now)
    for _ in range(10_000):
        clock.now += 0.01
        touches.sent()
    assert len(touches._sent) <= 66
    assert touches.proved_by(clock.now) > clock.now - 10 * APART - 0.2

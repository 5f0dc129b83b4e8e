"""fencing.pauses finds pauses of this very process, in bounded memory; and a ttl follows from them."""

from __future__ import annotations

import ctypes
import gc
import math
import random
import threading
import time
from pathlib import Path

import pytest

from fencing import pauses
from fencing.pauses import Durations, derive_ttl, record


def wait_until_recording(recorded: pauses.Pauses) -> None:
    before, deadline = recorded.wakes.count, time.monotonic() + 30
    while recorded.wakes.count == before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_call_that_keeps_pythons_lock_is_a_pause() -> None:
    before = time.time()
    with record() as recorded:
        wait_until_recording(recorded)
        ctypes.PyDLL(None).usleep(60_000)  # it does not give up the GIL
        wait_until_recording(recorded)
    longest = recorded.longest[0]
    assert longest.seconds == recorded.wakes.longest
    assert longest.seconds > 0.06 - pauses.INTERVAL
    assert before < longest.at < time.time()


def test_garbage_collections_are_counted_during_the_recording_alone() -> None:
    gc.collect()
    with record() as recorded:
        gc.collect()
    counted = recorded.collections.count
    assert counted >= 1
    assert recorded.collections.total >= recorded.collections.longest > 0
    gc.collect()
    assert recorded.collections.count == counted
    assert "fencing-pauses" not in [thread.name for thread in threading.enumerate()]


def test_memory_is_bounded_and_the_longest_are_kept() -> None:
    durations = Durations()
    sizes = len(durations._counts)
    for milliseconds in range(1, 1001):
        durations.add(milliseconds / 1000)
    durations.add(1e9)
    assert len(durations._counts) == sizes
    assert durations.longest == 1e9
    for share in (0.1, 0.5, 0.99):
        assert share <= durations.quantile(share) <= share * 1.1
    assert Durations().quantile(0.5) == 0.0
    durations = Durations()
    durations.add(0.0)
    assert durations.quantile(1) == 0.0


def test_ten_of_the_longest_are_kept() -> None:
    recorded = pauses.Pauses()
    for late in random.Random(1).sample(range(1000), 1000):
        recorded._add(late)
    assert [pause.seconds for pause in recorded.longest] == list(range(999, 999 - pauses.LONGEST_KEPT, -1))
    assert len(recorded._longest) == pauses.LONGEST_KEPT


@pytest.mark.parametrize(
    ("pause", "options", "ttl"),
    [
        (0.0, {}, 1.0),  # never less
        (0.1, {}, 1.7),
        (1.0, {}, 17.0),
        (1.0, {"margin": 1}, 5.4),
        (0.1, {"outage": 2.5}, 7.5),
        (100.0, {}, 1700.0),
    ],
)
def test_a_ttl_follows(pause: float, options: dict[str, float], ttl: float) -> None:
    assert derive_ttl(pause, **options) == ttl


@pytest.mark.parametrize("wrong", [{"pause": -1.0}, {"pause": 0.0, "outage": -1.0}, {"pause": 0.0, "margin": -1.0}])
def test_what_is_no_number_of_seconds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        derive_ttl(**wrong)


def test_steal_is_a_share_where_the_system_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pauses, "_STAT", str(tmp_path / "stat"))
    assert pauses.Pauses().steal() is None  # as on macOS
    (tmp_path / "stat").write_text("cpu  10 0 10 80 0 0 0 0 7 7\ncpu0 1\n")
    recorded = pauses.Pauses()
    assert recorded.steal() == 0.0
    (tmp_path / "stat").write_text("cpu  20 0 20 130 0 0 0 30 9 9\ncpu0 1\n")
    assert recorded.steal() == 0.3  # guest time is part of the first fields


def test_the_command_prints_a_ttl_and_its_sum(capsys: pytest.CaptureFixture[str]) -> None:
    pauses.main(["--seconds", "0.02", "--margin", "0", "--outage", "2", "--block", "12"])
    printed = capsys.readouterr().out
    assert "  ttl=6\n" in printed
    assert printed.endswith("  ttl=13\n")
    assert "or less, in 99.9% of the cases" in printed
    shares = [float(line.split("%")[0].strip("- ")) for line in printed.splitlines() if line.startswith("    - ")]
    assert 100 - sum(shares) == pytest.approx(pauses.PAUSE_SHARE * 100, abs=0.1)


@pytest.mark.parametrize(
    "said", ["--seconds=-1", "--seconds=inf", "--seconds=ten", "--outage=nan", "--block=-1", "--margin=-1"]
)
def test_a_wrong_argument_is_told_before_anything_is_measured(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pauses.main([said])
    printed = capsys.readouterr()
    assert said.split("=")[0] in printed.err
    assert not printed.out


@pytest.mark.parametrize("wrong", [{"block": -1.0}, {"block": math.nan}, {"outage": math.inf}, {"margin": True}])
def test_a_report_with_a_wrong_number_is_refused_and_can_be_asked_for_again(wrong: dict[str, float]) -> None:
    recorded = pauses.Pauses()
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        recorded.report(**wrong)
    assert "ttl=1" in recorded.report()

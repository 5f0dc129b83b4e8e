"""Exceptions that signal handlers raise, at any step of the code: no lock stays taken, and nothing hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.servers import RedisServer
from fencing.kernel import quirks

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.skipif(
    quirks.SKIPS_EXIT, reason="an interrupted start of a thread leaves a lock of Python's own threading taken on 3.14"
)


def storm(url: str, seconds: float, names: str = "") -> int:
    command = [sys.executable, "-m", "tests.support.signal_storm", names, str(seconds), url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return int(done.stdout)


@pytest.mark.thorough
def test_every_lock_survives_interruptions(any_redis: RedisServer) -> None:
    assert storm(any_redis.url, 0.25) > 100


@pytest.mark.deep
def test_every_lock_survives_many_interruptions(any_redis: RedisServer) -> None:
    assert storm(any_redis.url, 4) > 5000

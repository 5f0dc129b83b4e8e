"""An interruption at any line of a write to Redis or to files: what it says of the write is so, and no lock stays."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import Fence, OutcomeUnknown
from storage_guards import FileGuard, RedisGuard
from tests.support.interrupted_lines import raise_at_line

WHERE = (
    "storage_guards/redis/",
    "storage_guards/files/",
    "storage_guards/continuity.py",
    "fencing/kernel/effects.py",
    "fencing/kernel/retry.py",
)
STRIDE = 3  # and another start for each kind of exception, so that all lines are hit


class SoftTimeLimitExceeded(Exception):
    """As Celery raises it, in a signal handler."""


def fence(number: int, letter: str) -> Fence:
    return Fence("orders:1", number, letter * 22)


def interrupt_each_line(
    guard: Any, write: Callable[[Any, Fence, bytes], Any], read: Callable[[], bytes | None], kind: type[BaseException]
) -> int:
    """Interrupt a write at its lines, each time under a newer fence. Return how many were interrupted."""
    first = 1 if kind is KeyboardInterrupt else 2
    landed = 0
    for step in count():
        mine = fence(step + 1, "a")
        guard.claim(mine)
        before, new = read(), b"%d" % step
        try:
            _, raised = raise_at_line(first + step * STRIDE, kind(), WHERE, lambda: write(guard, mine, new))  # noqa: B023
        except (kind, OutcomeUnknown) as error:
            unknown = error if isinstance(error, OutcomeUnknown) else error.__cause__
            error.__traceback__ = None
        else:
            if not raised:
                assert landed, "no interruption came after the write"
                return step
            assert read() == new
            continue
        gc.collect()
        if isinstance(unknown, OutcomeUnknown):
            assert guard.landed(unknown) is (read() == new)
            landed += read() == new
        else:
            assert read() == before, "it has happened, and the error does not say so"
    raise AssertionError


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["write", "publish", "begin"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SoftTimeLimitExceeded])
def test_files(tmp_path: Path, kind: type[BaseException], way: str) -> None:
    guard = FileGuard(tmp_path, timeout=0.5)

    def write(guard: FileGuard, mine: Fence, new: bytes) -> None:
        if way == "publish":
            guard.publish(mine, {"x": new})
        elif way == "write":
            guard.write(mine, new)
        else:
            with guard.begin(mine) as file:
                file.data = new

    def read() -> bytes | None:
        folder = guard.path("orders:1")
        return guard.read("orders:1") if folder is None else (folder / "x").read_bytes()

    assert interrupt_each_line(guard, write, read, kind) > 40


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [SoftTimeLimitExceeded, KeyboardInterrupt])
@pytest.mark.parametrize("way", ["write", "begin"])
def test_redis(any_redis: RedisServer, kind: type[BaseException], way: str) -> None:
    guard, direct = RedisGuard(any_redis.client(), timeout=2), any_redis.client()

    def write(guard: RedisGuard, mine: Fence, new: bytes) -> None:
        if way == "write":
            guard.write(mine, ("SET", "data", new))
        else:
            with guard.begin(mine) as transaction:
                transaction.write("SET", "data", new)

    def read() -> bytes | None:
        found = direct.get("data")
        assert found is None or isinstance(found, bytes)
        return found

    assert interrupt_each_line(guard, write, read, kind) > 20

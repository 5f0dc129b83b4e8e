"""Leases where no thread can be started: at the end of the interpreter (Python 3.12 on), or in a full process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencing import LeaseLost
from fencing.kernel import quirks
from tests.support.memory_side import MemorySide

ROOT = Path(__file__).resolve().parents[2]
TTL = 10.0
STEP = 4.0

AT_EXIT = """
import asyncio, atexit
from fencing import AsyncMemoryCoordinator, MemoryCoordinator

def at_exit():
    with MemoryCoordinator() as coordinator, coordinator.hold("r") as lease:
        print(lease.held)
    asyncio.run(at_exit_async())

async def at_exit_async():
    async with AsyncMemoryCoordinator() as coordinator, coordinator.hold("r") as lease:
        print(lease.held)

atexit.register(at_exit)
"""


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the start of each thread says; while it is empty, threads start."""
    says: list[str] = []
    start = threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if says and thread.name.startswith("fencing-") and thread.name != "fencing-contract-loop":
            raise RuntimeError(says[0])
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    yield says
    says.clear()


def loss_of(side: MemorySide, lease: Any) -> str | None:
    return side.expect(LeaseLost, lease.ensure_held).cause


def test_a_lease_that_is_held_as_the_interpreter_ends(
    side: MemorySide, refused: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    lease = side.call(side.coordinator(ttl=TTL).acquire, "r")
    refused.append(quirks.SHUTDOWN)
    side.clock.advance(STEP)  # its renewal is due
    assert lease.held
    side.clock.advance(TTL)
    assert loss_of(side, lease) == f"no thread could be started to renew it: {quirks.SHUTDOWN}"
    assert not caplog.records


def test_a_lease_that_is_taken_as_the_interpreter_ends(side: MemorySide) -> None:
    def no_timer(*_: object) -> None:
        raise RuntimeError(quirks.SHUTDOWN)

    coordinator = side.coordinator(ttl=TTL)
    coordinator._renewal._own_timer = no_timer
    first = side.call(coordinator.acquire, "r")
    assert side.call(first.release) is True
    lease = side.call(coordinator.acquire, "r")
    assert lease.held
    side.clock.advance(TTL)
    cause = side.expect(LeaseLost, lease.ensure_held).cause
    assert cause == f"no thread could be started to renew it: {quirks.SHUTDOWN}"
    side.call(lease.release)


def test_a_process_with_too_many_threads(side: MemorySide, refused: list[str]) -> None:
    lease = side.call(side.coordinator(ttl=TTL).acquire, "r")
    refused.append("can't start new thread")
    while lease.held:
        try:
            side.clock.advance(1)
        except RuntimeError as error:  # the library's own timer logs it
            assert str(error) == refused[0]
    assert loss_of(side, lease) == "no thread could be started to renew it: can't start new thread"


def test_threads_are_tried_again(side: MemorySide, refused: list[str]) -> None:
    lease = side.call(side.coordinator(ttl=TTL).acquire, "r")
    refused.append(quirks.SHUTDOWN)
    side.clock.advance(STEP)
    refused.clear()
    side.clock.advance(1)
    side.wait_until(lambda: lease.remaining() > TTL - STEP)
    assert lease._holding.hindrance is None
    assert side.call(lease.release) is True


def test_a_process_without_file_descriptors(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """asyncio: the loop that renews needs some. They are free again in time."""
    side = MemorySide(True)
    lease = side.call(side.coordinator(ttl=TTL).acquire, "r")
    causes: list[str] = []

    def failing() -> Any:
        raise OSError(24, "Too many open files")

    def is_tried() -> bool:
        hindrance = lease._holding.hindrance
        causes.extend([hindrance()] if hindrance is not None else [])
        return bool(causes)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "SelectorEventLoop", failing)
        side.clock.advance(STEP)
        side.wait_until(is_tried)
    assert causes[0] == "no event loop could be made to renew it: [Errno 24] Too many open files"
    assert "renewing 1 leases failed; they are retried" in caplog.text
    side.clock.advance(1)
    side.wait_until(lambda: lease.remaining() > TTL - STEP)
    assert side.call(lease.release) is True


@pytest.mark.thorough
def test_functions_that_run_at_exit_take_locks() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", AT_EXIT], cwd=ROOT, capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stdout == "True\nTrue\n"
    assert done.stderr == ""

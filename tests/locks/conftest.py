"""Locks are tested in memory, under a clock that each test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencing.locks import callbacks
from fencing.locks.reentrant import blocks
from tests.support import wait_until
from tests.support.memory_side import MemorySide


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest) -> MemorySide:
    return MemorySide(request.param == "async")


@pytest.fixture(autouse=True)
def _no_block_of_another_test() -> None:
    """A test of an interrupted block leaves a note of it in the context that the tests of a thread share."""
    blocks.set(())


@pytest.fixture(autouse=True)
def _no_log_of_another_test() -> Iterator[None]:
    """A busy machine is late with what a thread of ours logs: the next test would find it in its own log."""
    yield
    wait_until(lambda: not callbacks._worker.is_running)

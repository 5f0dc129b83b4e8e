"""Locks are tested in memory, under a clock that each test moves."""

from __future__ import annotations

import pytest

from fencing.locks.reentrant import blocks
from tests.support.memory_side import MemorySide


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest) -> MemorySide:
    return MemorySide(request.param == "async")


@pytest.fixture(autouse=True)
def _no_block_of_another_test() -> None:
    """A test of an interrupted block leaves a note of it in the context that the tests of a thread share."""
    blocks.set(())

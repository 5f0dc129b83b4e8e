"""Elections are tested in memory, under a clock that each test moves."""

from __future__ import annotations

import pytest

from tests.support.memory_side import MemorySide


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest) -> MemorySide:
    return MemorySide(request.param == "async")

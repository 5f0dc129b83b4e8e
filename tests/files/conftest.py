"""File guards, sync and async."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_guards import AsyncFileGuard, FileGuard
from tests.support.sides import Side


@pytest.fixture
def new_guard(side: Side, tmp_path: Path) -> Callable[..., Any]:
    """Makes a guard of the test's folder."""
    return lambda **options: (AsyncFileGuard if side.asynchronous else FileGuard)(tmp_path, **options)

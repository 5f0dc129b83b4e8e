"""docs/coordinators/your-own.md: the backend built there passes the contract, by the page's own code alone."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fencing import CoordinatorUnavailable

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coordinators" / "your-own.md"


def module_of_the_page() -> Any:
    """All its Python, one block after the other, as one module."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    module = ModuleType("your_own_coordinator")
    sys.modules[module.__name__] = module
    exec(compile("\n\n".join(blocks), str(PAGE), "exec"), vars(module))
    return module


_module = module_of_the_page()


class _InAFileOfItsOwn:
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "locks.sqlite")


class TestFileCoordinator(_InAFileOfItsOwn, _module.TestFileCoordinator):  # type: ignore[misc, name-defined]
    pass


class TestAsyncFileCoordinator(_InAFileOfItsOwn, _module.TestAsyncFileCoordinator):  # type: ignore[misc, name-defined]
    pass


def test_what_is_missing_is_told_when_the_coordinator_is_made(tmp_path: Path) -> None:
    class Half(_module.FilePlans, _module.Coordinator):  # type: ignore[misc, name-defined]
        plan_renew = None

        def perform(self, effect: Any) -> Any:
            raise AssertionError("never asked")

    class Empty(_module.Coordinator):  # type: ignore[misc, name-defined]
        def perform(self, effect: Any) -> Any:
            raise AssertionError("never asked")

    with pytest.raises(TypeError, match="plan_acquire"):
        Empty()
    with pytest.raises(TypeError, match="Half cannot renew leases; give renew=False"):
        Half()
    assert Half(renew=False).settings.renew is False


def test_a_busy_file_is_no_answer(tmp_path: Path) -> None:
    path = str(tmp_path / "locks.sqlite")
    coordinator = _module.FileCoordinator(path, ttl=0.5)
    blocking = sqlite3.connect(path, isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    with pytest.raises(CoordinatorUnavailable, match=r"no answer from the lock file at .*\.sqlite for 'r'") as caught:
        coordinator.acquire("r", timeout=0.2)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    blocking.execute("ROLLBACK")
    blocking.close()
    with coordinator.hold("r", timeout=5) as lease:
        assert lease.held

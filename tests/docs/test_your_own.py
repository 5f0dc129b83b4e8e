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
from fencing.kernel.retry import NoReply
from tests.support import wait_until

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


TestFileCoordinator = _module.TestFileCoordinator
TestAsyncFileCoordinator = _module.TestAsyncFileCoordinator


def test_what_is_missing_is_told_when_the_coordinator_is_made() -> None:
    class Backend(_module.FilePlans):  # type: ignore[misc, name-defined]
        plan_renew = None

        def perform(self, effect: Any) -> Any:
            raise AssertionError("never asked")

    class Half(_module.Coordinator):  # type: ignore[misc, name-defined]
        def __init__(self, **options: Any) -> None:
            super().__init__(Backend(), **options)

    class Empty(_module.Backend):  # type: ignore[misc, name-defined]
        def perform(self, effect: Any) -> Any:
            raise AssertionError("never asked")

    with pytest.raises(TypeError, match="plan_acquire"):
        Empty()
    with pytest.raises(TypeError, match="Half cannot renew leases; pass renew=False"):
        Half()
    assert Half(renew=False)._backend.settings.renew is False


def test_a_backend_that_does_not_fit_its_coordinator_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "locks.sqlite")
    backend = _module.FileBackend(path)
    made = _module.Coordinator(backend, ttl=5)
    assert repr(made) == f"<Coordinator at {path}, ttl 5 s>"
    for kind, given, says in (
        (_module.Coordinator, path, "Coordinator takes a backend, not str"),
        (
            _module.Coordinator,
            _module.AsyncFileBackend(path),
            "needs a backend with `def perform`; add it to AsyncFile",
        ),
        (
            _module.AsyncCoordinator,
            _module.FileBackend(path),
            "needs a backend with `async def perform`; add it to File",
        ),
        (_module.Coordinator, backend, "this FileBackend has a coordinator already; make a backend for each"),
    ):
        with pytest.raises(TypeError, match=says):
            kind(given)


def test_a_busy_file_is_no_answer(tmp_path: Path) -> None:
    path = str(tmp_path / "locks.sqlite")
    coordinator = _module.FileCoordinator(path, ttl=5)
    blocking = sqlite3.connect(path, isolation_level=None)
    blocking.execute("BEGIN IMMEDIATE")
    with pytest.raises(CoordinatorUnavailable, match=r"no answer from the lock file at .*\.sqlite for 'r'") as caught:
        coordinator.acquire("r", timeout=0.2)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    blocking.execute("ROLLBACK")
    blocking.close()
    with coordinator.hold("r", timeout=5) as lease:
        assert lease.held


class Losing:
    """Does what is asked of the file, and loses the reply as often as it is told to."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.loses = 0
        self.asked: list[str] = []

    def ask(self, request: Any) -> Any:
        self.asked.append(request.operation)
        reply = self._file.ask(request)
        if self.loses:
            self.loses -= 1
            raise NoReply(ConnectionError("cut"), may_have_run=True)
        return reply


def test_a_lost_reply_is_asked_for_again(tmp_path: Path) -> None:
    coordinator = _module.FileCoordinator(str(tmp_path / "locks.sqlite"))
    backend: Any = coordinator._backend
    backend.file = losing = Losing(backend.file)
    losing.loses = 1
    lease = coordinator.acquire("r", timeout=5)
    assert losing.asked == ["acquire", "acquire"]
    assert coordinator.holder("r").number == lease.fence.number
    losing.loses = 1
    assert lease.release() is True
    assert coordinator.holder("r") is None


def test_what_no_answer_told_of_is_given_back(tmp_path: Path) -> None:
    coordinator = _module.FileCoordinator(str(tmp_path / "locks.sqlite"), ttl=30)
    backend: Any = coordinator._backend
    backend.file = losing = Losing(backend.file)
    losing.loses = 1000
    with pytest.raises(CoordinatorUnavailable, match="cut"):
        coordinator.acquire("r", timeout=0.1)
    losing.loses = 0
    wait_until(lambda: coordinator.holder("r") is None)
    assert "release" in losing.asked
    coordinator.close()

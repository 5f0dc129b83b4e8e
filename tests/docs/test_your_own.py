"""docs/coordinators/your-own.md: the backend built there passes the contract, by the page's own code alone."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fencing import CoordinatorUnavailable, NotAcquired
from fencing.kernel.effects import run, run_async
from fencing.kernel.fence import new_token
from fencing.kernel.retry import NoReply
from fencing.locks import registry
from fencing.testing import Contract
from tests.support import wait_until
from tests.support.forks import in_child

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "coordinators" / "your-own.md"
ARCHITECTURE = DOCS / "internals" / "architecture.md"


def module_of_the_page() -> Any:
    """All its Python, one block after the other, as one module."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    module = ModuleType("your_own_coordinator")
    sys.modules[module.__name__] = module
    with pytest.MonkeyPatch.context() as patch:  # what the page registers is there while its code runs
        patch.setattr(registry, "_clients", {first: dict(names) for first, names in registry._clients.items()})
        patch.setattr(registry, "_schemes", dict(registry._schemes))
        exec(compile("\n\n".join(blocks), str(PAGE), "exec"), vars(module))
        assert "theirs" in registry._schemes
    return module


_module = module_of_the_page()


TestFileCoordinator = _module.TestFileCoordinator
TestAsyncFileCoordinator = _module.TestAsyncFileCoordinator


TestQueueCoordinator = pytest.mark.thorough(_module.TestQueueCoordinator)
TestAsyncQueueCoordinator = pytest.mark.thorough(_module.TestAsyncQueueCoordinator)


def test_what_the_page_imports_is_public() -> None:
    imported = set(re.findall(r"^from (fencing\.[\w.]+) import", PAGE.read_text("utf-8"), re.MULTILINE))
    imported |= set(re.findall(r"`(fencing\.[a-z_]+\.[a-z_]+)[.`]", PAGE.read_text("utf-8")))
    assert "fencing.locks.backend" in imported
    listed = set(
        re.findall(r"`(fencing\.[\w.]+)`", ARCHITECTURE.read_text("utf-8").partition("names are public")[2][:1000])
    )
    assert {each for each in imported if not any(f"{each}.".startswith(f"{name}.") for name in listed)} == set()


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


def asked(backend: Any, operation: str, token: str, place: Any = None) -> Any:
    """Ask the queue once, under a token."""
    settings, deadline = backend.settings, backend.clock() + 60
    if operation == "acquire":
        plan = backend.plan_acquire("r", token, settings, floor=0, deadline=deadline)
    else:
        plan = backend.plan_queue("r", token, settings, floor=0, deadline=deadline, place=place)
    return run(plan, backend.perform)


def test_the_queue_is_in_the_order_of_asking(tmp_path: Path) -> None:
    coordinator = _module.QueueCoordinator(str(tmp_path / "locks.sqlite"), owner="me")
    backend = coordinator._backend
    lease = coordinator.acquire("r", timeout=5)
    first, second = new_token(), new_token()
    places = [asked(backend, "queue", token).place for token in (first, second)]
    lease.release()
    later = asked(backend, "queue", second, places[1])
    assert (later.kept_by, later.owner) == ("waiter", "me")
    with pytest.raises(NotAcquired, match="'r' goes to an earlier waiter first, me;"):
        coordinator.acquire("r", timeout=0)
    run(places[0].plan_leave(deadline=backend.clock() + 60), backend.perform)
    assert asked(backend, "queue", second, places[1]).token == second
    assert coordinator.holder("r").number is not None
    coordinator.close()


def test_a_dead_waiter_holds_up_nobody_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_module, "WAITER_SECONDS", -1.0)  # since its last request
    coordinator = _module.QueueCoordinator(str(tmp_path / "locks.sqlite"))
    lease = coordinator.acquire("r", timeout=5)
    assert asked(coordinator._backend, "queue", new_token()).place is not None
    lease.release()
    assert coordinator.try_acquire("r").release()
    coordinator.close()


def test_after_the_closing_nothing_but_a_release_is_sent(tmp_path: Path) -> None:
    path = str(tmp_path / "locks.sqlite")
    other = _module.QueueCoordinator(path)
    for asynchronous in (False, True):
        made = (_module.AsyncQueueCoordinator if asynchronous else _module.QueueCoordinator)(path)
        grant = asked(other._backend, "acquire", new_token())
        suite = Contract()
        suite.call(made.close)
        for refused in (partial(made.acquire, "r"), partial(made.holder, "r")):
            assert "make a new one" in str(suite.expect(RuntimeError, refused))
        backend = made._backend
        plan = backend.plan_release(grant, backend.settings, deadline=backend.clock() + 60)
        assert suite.call(run_async if asynchronous else run, plan, backend.perform) is True
        if not asynchronous:
            assert [each.database for each in backend.connections.made()] == [None]
    other.close()


def test_a_forked_child_has_connections_of_its_own(tmp_path: Path) -> None:
    coordinator = _module.QueueCoordinator(str(tmp_path / "locks.sqlite"))
    pool = coordinator._backend.connections
    lease = coordinator.acquire("r", timeout=5)
    inherited = pool.made()

    def child() -> None:
        assert pool.made() == []
        assert coordinator.try_acquire("r") is None
        assert coordinator.acquire("s", timeout=30).release()
        assert pool.made() not in ([], inherited)

    in_child(child)
    assert pool.made() == inherited
    assert lease.release() is True
    coordinator.close()


def test_each_event_loop_has_a_connection(tmp_path: Path) -> None:
    coordinator = _module.AsyncQueueCoordinator(str(tmp_path / "locks.sqlite"))
    connections = coordinator._backend.connections
    seen = []

    async def use(close: bool) -> None:
        assert await (await coordinator.acquire("r", timeout=30)).release()
        seen.append(connections[asyncio.get_running_loop()])
        if close:
            await coordinator.close()

    for close in (False, True):
        asyncio.run(use(close))
    assert seen[0] is not seen[1]
    assert [each.database for each in seen] == [None, None], "one was dropped with its loop, one was closed"
    assert not connections


def test_what_ends_with_a_session(tmp_path: Path) -> None:
    coordinator = _module.FileCoordinator(str(tmp_path / "locks.sqlite"))
    one, two = (coordinator.acquire(name, timeout=5) for name in "ab")
    one._holding.kept = "session"
    _module.end_leases(coordinator._backend, "session")
    assert [one.held, two.held] == [False, True]
    coordinator.close()

"""Forked children, coordinators that are dropped, and threads that begin together: who has which session."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.servers import ZooKeeperServer
from fencing.kernel.fence import new_token
from fencing.zookeeper import sessions
from fencing.zookeeper.session import Session
from tests.support import wait_until
from tests.support.forks import in_child
from tests.support.zookeeper import ZooKeeperSide, client_id_of, end_session_of, loops

ROOT = Path(__file__).resolve().parents[2]


def name() -> str:
    return f"forks/{new_token()}"


@pytest.fixture
def parent(zookeeper_server: ZooKeeperServer) -> Any:
    side = ZooKeeperSide(False, zookeeper_server.hosts)
    yield side
    side.close()


def _uses(coordinator: Any, resource: str) -> None:
    assert coordinator.try_acquire(resource) is None
    with coordinator.hold(name(), timeout=30) as own:
        own.renew()


def _closes(coordinator: Any, resource: str) -> None:
    coordinator.close()


def _uses_and_closes(coordinator: Any, resource: str) -> None:
    _uses(coordinator, resource)
    coordinator.close()


def _drops(coordinator: Any, resource: str) -> None:
    _uses(coordinator, resource)


@pytest.mark.thorough
@pytest.mark.parametrize("act", [_uses, _closes, _uses_and_closes, _drops])
def test_a_child_does_not_disturb_the_session_of_its_parent(
    parent: ZooKeeperSide, act: Callable[[Any, str], None]
) -> None:
    resource = name()
    coordinators = [parent.coordinator(ttl=4)]
    lease = coordinators[0].acquire(resource, timeout=30)
    session = coordinators[0]._backend._client.current()._session_id

    def check() -> None:
        assert lease.release() is False, "it is the parent's"
        coordinator = coordinators.pop()
        parent.made.clear()
        act(coordinator, resource)
        own = coordinator._backend._client._session
        assert own is None or own._session_id != session
        del coordinator
        gc.collect()

    in_child(check)
    lease.renew()
    assert coordinators[0]._backend._client.current()._session_id == session
    assert len(parent.queue(resource)) == 1
    assert lease.release()


@pytest.mark.thorough
def test_the_holder_in_a_child_is_another_one(parent: ZooKeeperSide) -> None:
    resource, coordinator = name(), parent.coordinator(ttl=60)
    coordinator.acquire(name(), timeout=30).release()
    reader, writer = os.pipe()
    kept: list[Any] = []

    def check() -> None:
        kept.append(coordinator.try_acquire(resource))  # dropped, it would be freed; its session outlives the child
        assert kept[0] is not None
        session, password = client_id_of(coordinator)
        os.write(writer, b"%d %s" % (session, password))

    in_child(check)
    assert coordinator.try_acquire(resource) is None
    session, _, password = os.read(reader, 100).partition(b" ")
    assert int(session) != client_id_of(coordinator)[0]
    end_session_of(parent.hosts, (int(session), password))
    coordinator.acquire(resource, timeout=60).release()
    for end in (reader, writer):
        os.close(end)


_EXITS = """
import os, sys, time
from kazoo.client import KazooClient
from fencing import ZooKeeperCoordinator

coordinator = ZooKeeperCoordinator(KazooClient(sys.argv[1]), ttl=20)
lease = coordinator.acquire(sys.argv[2], timeout=30)
for uses in (False, True):
    began, child = time.monotonic(), os.fork()
    if child == 0:
        if uses:
            coordinator.acquire(sys.argv[2] + "/child", timeout=30).release()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(time.monotonic() - began)
    lease.renew()
assert lease.release()
"""


@pytest.mark.thorough
def test_a_child_exits_at_once_and_the_session_of_its_parent_lives_on(parent: ZooKeeperSide) -> None:
    """kazoo has functions that Python calls at the exit, also in a child, which has none of the threads."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _EXITS, parent.hosts, name()],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert not run.stderr, run.stderr
    assert max(map(float, run.stdout.split())) < 8


def test_a_coordinator_that_is_dropped_ends_its_session(side: ZooKeeperSide) -> None:
    """Its locks are free long before their ttl, and no thread stays."""
    resource, before = name(), set(threading.enumerate())
    coordinator = side.coordinator(ttl=60)
    lease = side.call(coordinator.acquire, resource, timeout=30)
    side.call(lease.detach)
    side.made.clear()
    del lease, coordinator
    began = time.monotonic()

    def is_free() -> bool:
        gc.collect()
        return not side.queue(resource)

    side.wait_until(is_free)
    assert time.monotonic() - began < 30
    mine = {each for each in threading.enumerate() if "_thread_worker" in each.name or "zk_loop" in each.name}
    others = 3  # of the client that looks
    side.wait_until(lambda: len([each for each in mine - before if each.is_alive()]) <= others)


def test_a_coordinator_that_is_dropped_ends_its_session_where_no_thread_can_be_started(
    side: ZooKeeperSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would: its locks would stay for as long as the process lives."""

    class NoThread:
        def __init__(self, *_: object) -> None: ...

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    resource, coordinator = name(), side.coordinator(ttl=60)
    lease = side.call(coordinator.acquire, resource, timeout=30)
    side.call(lease.detach)
    assert side.queue(resource)
    side.made.clear()
    monkeypatch.setattr(sessions, "DaemonThread", NoThread)
    del lease, coordinator
    gc.collect()
    side.wait_until(lambda: not side.queue(resource), seconds=30)


def test_a_session_that_begins_while_its_coordinator_is_closed_ends(
    parent: ZooKeeperSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, before = parent.coordinator(), loops()

    def make(*args: Any) -> Session:
        closing = threading.Thread(target=coordinator.close)
        closing.start()
        closing.join(30)
        return Session(*args)

    monkeypatch.setattr(sessions, "Session", make)
    with pytest.raises(RuntimeError, match="make a new one"):
        coordinator.acquire(name(), timeout=30)
    parent.wait_until(lambda: not loops() - before, seconds=30)


def test_threads_that_begin_together_have_one_session(parent: ZooKeeperSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would make the leases of one of them look lost."""
    made: list[Session] = []
    barrier = threading.Barrier(8)

    def make(*args: Any) -> Session:
        time.sleep(0.05)  # others come meanwhile
        made.append(Session(*args))
        return made[-1]

    monkeypatch.setattr(sessions, "Session", make)
    coordinator, leases = parent.coordinator(), list[Any]()

    def take() -> None:
        barrier.wait(30)
        leases.append(coordinator.acquire(name(), timeout=30))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1
    assert len(leases) == 8
    for lease in leases:
        lease.renew()
        assert lease.release()
    wait_until(lambda: not coordinator._renewal.held())

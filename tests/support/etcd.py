"""Coordinators on etcd, sync or async, that count or lose requests."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from fencing.etcd.calls import Call, Key, Reply, body_of, read_newest, transaction
from fencing.etcd.coordinator import EtcdCoordinator
from fencing.etcd.coordinator_async import AsyncEtcdCoordinator
from fencing.etcd.endpoints import Endpoint
from fencing.etcd.layout import queue_of
from fencing.etcd.waiters import Wait
from fencing.kernel.effects import Plan, run, run_async
from fencing.kernel.retry import NoReply
from fencing.testing.contract import Contract
from tests.support.fixtures import missing

Lost = Callable[[Call], str | None]
"""Says what becomes of a request: None: nothing, "request" or "reply": that is lost."""


class Faults:
    """What was requested, and what is lost."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lost: Lost = lambda _: None
        self.answers: dict[str, list[Callable[[Reply], Reply]]] = {}
        """What changes the next replies to a path."""
        self.late: list[Call] = []
        """The requests that were lost: a test may make them later."""
        self.waits: list[tuple[Endpoint, Endpoint | None]] = []
        """Of each wait the member that was in use, and the one at which its stream was left; None: it had ended."""

    def note(self, effect: Any, endpoint: Endpoint) -> None:
        """Note where a wait was."""
        if isinstance(effect, Wait):
            stream = effect.waiter.stream
            self.waits.append((endpoint, stream and stream.connection.endpoint))

    @property
    def paths(self) -> list[str]:
        return [each.path for each in self.calls]

    def lose(self, what: str, first: int, count: int) -> None:
        """Lose so many requests, or their replies, from the first-th one on that comes from now on."""
        at = len(self.calls) + first

        def lost(_: Call) -> str | None:
            return what if at <= len(self.calls) - 1 < at + count else None

        self.lost = lost

    def answer(self, effect: Any, reply: Any) -> Any:
        """Return what comes instead of a reply."""
        changes = self.answers.get(effect.path) if isinstance(effect, Call) else None
        return changes.pop()(reply) if changes else reply


def _fault(faults: Faults, effect: Any) -> str | None:
    if not isinstance(effect, Call):
        return None
    faults.calls.append(effect)
    what = faults.lost(effect)
    if what is not None:
        faults.late.append(effect)
    return what


def _lost() -> NoReply:
    return NoReply(ConnectionError("lost by the test"), may_have_run=True)


def with_faults(coordinator: Any) -> Faults:
    """Count and lose requests of a coordinator."""
    backend, faults = coordinator._backend, Faults()
    perform, endpoints = backend.perform, backend._connections._endpoints

    def perform_sync(effect: Any) -> Any:
        what, endpoint = _fault(faults, effect), endpoints.current
        if what != "request":
            result = perform(effect)
        faults.note(effect, endpoint)
        if what:
            raise _lost()
        return faults.answer(effect, result)

    async def perform_async(effect: Any) -> Any:
        what, endpoint = _fault(faults, effect), endpoints.current
        if what != "request":
            result = await perform(effect)
        faults.note(effect, endpoint)
        if what:
            raise _lost()
        return faults.answer(effect, result)

    backend.perform = perform_async if backend.asynchronous else perform_sync
    return faults


class EtcdSide(Contract):
    """Makes coordinators, all sync or all async; ``call`` runs their methods."""

    def __init__(self, asynchronous: bool, urls: Sequence[str]) -> None:
        self.asynchronous, self.urls = asynchronous, list(urls)
        self.made: list[Any] = []

    def coordinator(self, *, urls: Sequence[str] | None = None, **options: Any) -> Any:
        kind = AsyncEtcdCoordinator if self.asynchronous else EtcdCoordinator
        made: Any = kind(self.urls if urls is None else urls, **options)
        self.made.append(made)
        return made

    def plan(self, coordinator: Any, plan: Plan[Any]) -> Any:
        return self.call(run_async if self.asynchronous else run, plan, coordinator._backend.perform)

    def keys(self, coordinator: Any, name: str) -> list[Key]:
        """Return the keys of a lock's queue, the newest first."""
        backend, steps = coordinator._backend, body_of(transaction([], [read_newest(queue_of(name), 100)], []))

        def plan() -> Plan[list[Key]]:
            deadline = backend.clock() + 30
            answer = yield from backend.plan_request("kv/txn", steps, name, backend.settings, deadline)
            return list(answer.value.keys(0))

        found: list[Key] = self.plan(coordinator, plan())
        return found

    def arrive(self, coordinator: Any, call: Call) -> None:
        """Make a request that was lost before."""

        def plan() -> Plan[None]:
            with suppress(NoReply):
                yield call

        self.plan(coordinator, plan())

    def close(self) -> None:
        for each in self.made:
            self.call(each.close)


class Etcdctl:
    """A process of ``etcdctl lock``, which holds the lock until it is ended."""

    def __init__(self, url: str, resource: str) -> None:
        binary = shutil.which("etcdctl")
        if binary is None:
            missing("etcdctl", "found no etcdctl on PATH")
        self._process = subprocess.Popen(
            [binary, "--endpoints", url, "lock", "--ttl", "10", f"fencing/1/lock/{quote(resource, safe=':')}"],
            env={**os.environ, "ETCDCTL_API": "3"},
            stdout=subprocess.PIPE,
        )
        self.holds = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline():  # the name of its key
            self.holds.set()

    def end(self) -> None:
        """End it in order: it gives the lock back."""
        self._process.terminate()
        self._process.wait(60)
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

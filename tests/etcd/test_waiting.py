"""Waiting: the order, who is woken, how many streams there are, and waiters that die."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from examples.servers import EtcdServer
from fencing.etcd import waiters
from fencing.etcd.calls import Reply, put, transaction
from fencing.etcd.client import Stream
from fencing.etcd.layout import WAITING, queue_of
from fencing.kernel.fence import new_token
from fencing.kernel.retry import NoReply
from fencing.locks import plans
from fencing.locks.backend import Taken
from tests.support.etcd import EtcdSide, with_faults
from tests.support.every_step import at_every_step
from tests.support.refusals import refused_as_held


def name() -> str:
    return f"waiting/{new_token()}"


class Crowd:
    """Waiters for a lock that is held, which came one after the other."""

    def __init__(self, etcd: EtcdSide, resource: str, coordinators: list[Any]) -> None:
        self._etcd, self._resource = etcd, resource
        self.order: list[int] = []
        self._threads = []
        for i, coordinator in enumerate(coordinators):
            thread = threading.Thread(target=self._wait, args=(i, coordinator), daemon=True)
            thread.start()
            self._threads.append(thread)
            etcd.wait_until(partial(self._has_come, coordinators[0], i))

    def _has_come(self, reader: Any, i: int) -> bool:
        return len(self._etcd.keys(reader, self._resource)) == i + 2

    def _wait(self, i: int, coordinator: Any) -> None:
        lease = self._etcd.call(coordinator.acquire, self._resource, timeout=120)
        self.order.append(i)
        self._etcd.call(lease.release)

    def join(self) -> list[int]:
        """Return the order in which they got the lock."""
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()
        return self.order


def enlist(etcd: EtcdSide, coordinator: Any, resource: str) -> None:
    """Take a place in the queue, and do no more: as a waiter that died, or is frozen."""
    backend = coordinator._backend
    plan = backend.plan_queue(resource, new_token(), backend.settings, floor=0, deadline=backend.clock() + 30)
    outcome = etcd.plan(coordinator, plan)
    assert isinstance(outcome, Taken)
    etcd.__dict__.setdefault("dead", []).append(outcome.place)  # it is not collected


def test_waiters_get_the_lock_in_order_and_one_is_woken_each_time(etcd: EtcdSide) -> None:
    resource, holder = name(), etcd.coordinator()
    coordinators = [etcd.coordinator() for _ in range(3)]
    lease = etcd.call(holder.acquire, resource)
    faults = [with_faults(each) for each in coordinators]
    crowd = Crowd(etcd, resource, coordinators)
    for each in faults:
        each.calls.clear()
    assert etcd.call(lease.release)
    assert crowd.join() == [0, 1, 2]
    for each in faults:  # nothing but its own turn: it takes the lock, and gives it back
        assert each.paths == ["kv/txn", "kv/txn"]


@pytest.mark.parametrize("renew", [True, False])
def test_a_waiter_that_has_waited_takes_the_lock_with_one_request(etcd: EtcdSide, renew: bool) -> None:
    """A lock that renews itself does so soon. Another one gets nearly all of its ttl: its lease is kept alive first."""
    resource, holder = name(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)
    coordinator = etcd.coordinator(renew=renew, ttl=600)
    faults = with_faults(coordinator)
    crowd = Crowd(etcd, resource, [coordinator])
    etcd.wait_until(lambda: coordinator._backend.is_waited_for(resource))
    place = coordinator._backend._places[resource]
    place.lease.alive_at -= 0.25 * place.lease.ttl
    faults.calls.clear()
    assert etcd.call(lease.release)
    assert crowd.join() == [0]
    assert ("lease/keepalive" in faults.paths) is not renew
    if renew:
        assert faults.paths == ["kv/txn", "kv/txn"]


def test_a_lock_that_nobody_else_wants_is_taken_without_the_steps_that_queue(etcd: EtcdSide) -> None:
    resource, coordinator = name(), etcd.coordinator()
    assert not coordinator._backend.is_waited_for(resource)
    faults = with_faults(coordinator)
    etcd.call(etcd.call(coordinator.acquire, resource, timeout=30).release)
    assert not any(b"request_txn" in each.body for each in faults.calls)
    lease = etcd.call(etcd.coordinator().acquire, resource)
    crowd = Crowd(etcd, resource, [coordinator])
    etcd.wait_until(lambda: coordinator._backend.is_waited_for(resource))
    etcd.call(lease.release)
    assert crowd.join() == [0]


def test_a_waiter_that_is_woken_in_vain_keeps_its_place(etcd: EtcdSide) -> None:
    """The waiter before it has given up, and the lock is still held."""
    resource, holder = name(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)
    enlist(etcd, etcd.coordinator(), resource)
    coordinator = etcd.coordinator()
    faults = with_faults(coordinator)
    take = lambda: etcd.call(etcd.call(coordinator.acquire, resource, timeout=60).release)  # noqa: E731
    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    etcd.wait_until(lambda: len(etcd.keys(holder, resource)) == 3)
    before = len(faults.calls)
    gives_up = etcd.__dict__["dead"][-1].plan_leave(deadline=holder._backend.clock() + 30)
    etcd.plan(holder, gives_up)
    etcd.wait_until(lambda: len(faults.calls) == before + 2)
    assert len(etcd.keys(holder, resource)) == 2
    assert etcd.call(lease.release)
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.thorough
def test_a_waiter_that_gives_up_leaves_no_key(etcd: EtcdSide) -> None:
    resource, coordinator = name(), etcd.coordinator()
    lease = etcd.call(etcd.coordinator().acquire, resource)
    refused_as_held(lambda: etcd.call(coordinator.acquire, resource, timeout=0.4))
    assert len(etcd.keys(coordinator, resource)) == 1
    assert etcd.call(lease.release)


@pytest.mark.thorough
def test_more_waiters_than_streams_ask_again_by_themselves(etcd: EtcdSide, monkeypatch: pytest.MonkeyPatch) -> None:
    lent: set[Any] = set()
    monkeypatch.setattr(waiters, "_lent", lent)
    monkeypatch.setattr(waiters, "MOST_STREAMS", 1)
    resource, holder = name(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)
    crowd = Crowd(etcd, resource, [etcd.coordinator() for _ in range(3)])
    etcd.wait_until(lambda: lent)
    assert etcd.call(lease.release)
    assert crowd.join() == [0, 1, 2]
    etcd.wait_until(lambda: not lent)


def test_the_end_of_a_stream_gives_its_permission_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while something still refers to it, such as the traceback of an error."""
    monkeypatch.setattr(waiters, "_lent", set())
    monkeypatch.setattr(waiters, "MOST_STREAMS", 1)
    waiter, permitted = waiters.Waiter(), waiters.permit()
    assert permitted is not None
    assert waiters.permit() is None
    stream = waiter.stream = Stream("key", permitted)
    waiters.end_stream(waiter)
    assert waiters.permit() is not None
    assert waiters.permit() is not None  # what is collected is given back, too
    stream.permit.give_back()
    assert not waiters._lent


def test_an_interruption_loses_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was taken, and had no object yet, was lost for ever."""
    monkeypatch.setattr(waiters, "_lent", set())

    def work() -> None:
        permitted = waiters.permit()
        assert permitted is not None
        permitted.give_back()

    def check() -> None:
        gc.collect()
        assert not waiters._lent

    assert at_every_step(work, check) > 3


class Interrupted(Exception):
    """What a signal handler raises."""


@pytest.mark.parametrize("leaving", [False, True], ids=["waiting", "leaving"])
def test_a_waiter_that_is_interrupted_leaves_its_place(
    etcd: EtcdSide, monkeypatch: pytest.MonkeyPatch, leaving: bool
) -> None:
    """As it notes its place, or begins to leave it: the place was nobody's, and held up the others for its ttl."""
    resource, holder, coordinator = name(), etcd.coordinator(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)

    def interrupted(*_: object) -> None:
        raise Interrupted

    monkeypatch.setattr(plans._Known, "note", interrupted)
    if leaving:
        monkeypatch.setattr(plans, "Shielded", interrupted)
    with pytest.raises(Interrupted):
        etcd.call(coordinator.acquire, resource, timeout=30)
    etcd.wait_until(lambda: len(etcd.keys(holder, resource)) == 1)
    assert etcd.call(lease.release)


@pytest.mark.thorough
def test_there_are_64_streams_of_a_process_at_most(etcd: EtcdSide) -> None:
    resource, holder, coordinator = name(), etcd.coordinator(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)
    crowd = Crowd(etcd, resource, [coordinator] * 70)
    etcd.wait_until(lambda: len(waiters._lent) == waiters.MOST_STREAMS)
    assert etcd.call(lease.release)
    assert sorted(crowd.join()) == list(range(70))
    etcd.wait_until(lambda: not waiters._lent)


@pytest.mark.thorough
def test_a_waiter_keeps_its_place_for_many_ttls(etcd: EtcdSide) -> None:
    resource, holder = name(), etcd.coordinator(ttl=1)
    lease = etcd.call(holder.acquire, resource)
    crowd = Crowd(etcd, resource, [etcd.coordinator(ttl=1)])
    place = etcd.keys(holder, resource)[0]
    until = time.monotonic() + 4
    etcd.wait_until(lambda: time.monotonic() > until)
    assert etcd.keys(holder, resource)[0] == place
    assert etcd.call(lease.release)
    assert crowd.join() == [0]


@pytest.mark.thorough
def test_a_dead_waiter_holds_up_nobody_beyond_its_lease(etcd: EtcdSide) -> None:
    resource, holder = name(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)
    enlist(etcd, etcd.coordinator(ttl=1), resource)
    coordinator = etcd.coordinator()
    assert etcd.call(lease.release)
    lease = etcd.call(coordinator.acquire, resource, timeout=60)
    assert etcd.call(lease.release)


@pytest.mark.thorough
def test_a_waiter_that_has_lost_its_place_takes_another(etcd: EtcdSide, etcd_server: Any) -> None:
    resource, holder = name(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)
    crowd = Crowd(etcd, resource, [etcd.coordinator(ttl=2)])
    place = etcd.keys(holder, resource)[0]
    etcd_server.call("lease/revoke", {"ID": str(place.lease)})
    etcd.wait_until(lambda: len(etcd.keys(holder, resource)) == 2)
    assert etcd.call(lease.release)
    assert crowd.join() == [0]


@pytest.mark.thorough
def test_a_cancelled_waiter_leaves_no_key(etcd: EtcdSide) -> None:
    if not etcd.asynchronous:
        pytest.skip("a thread is not cancelled")
    resource, holder = name(), etcd.coordinator()
    lease = etcd.call(holder.acquire, resource)
    coordinator = etcd.coordinator()

    async def cancelled(enlisted: Callable[[], bool]) -> None:
        task = asyncio.create_task(coordinator.acquire(resource, timeout=60))
        while not await asyncio.to_thread(enlisted):
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    other = EtcdSide(False, etcd.urls)
    reader = other.coordinator()
    etcd.call(cancelled, lambda: len(other.keys(reader, resource)) == 2)
    assert len(other.keys(reader, resource)) == 1
    other.close()
    assert etcd.call(lease.release)


def test_a_waiter_whose_place_got_no_answer_does_not_wait_for_one_behind_it(
    etcd: EtcdSide, etcd_server: EtcdServer
) -> None:
    """Another one had queued before the repetition, which took it for its predecessor. Each waited for the other."""
    resource, holder, coordinator = name(), etcd.coordinator(), etcd.coordinator()
    held = etcd.call(holder.acquire, resource)
    faults, behind = with_faults(coordinator), int(etcd_server.call("lease/grant", {"TTL": "60", "ID": "0"})["ID"])

    def lose(reply: Reply) -> Reply:
        if not any("response_txn" in each for each in reply.message.get("responses", ())):
            faults.answers["kv/txn"].append(lose)
            return reply
        later = put(f"{queue_of(resource)}behind", WAITING, behind)
        etcd_server.call("kv/txn", json.loads(transaction([], [later], [])))
        raise NoReply(ConnectionError("lost by the test"), may_have_run=True)

    faults.answers["kv/txn"] = [lose]
    got: list[bool] = []

    def wait() -> None:
        lease = etcd.call(coordinator.acquire, resource, timeout=20)
        got.append(etcd.call(lease.release))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    etcd.wait_until(lambda: len(etcd.keys(holder, resource)) == 3)
    assert etcd.call(held.release)
    thread.join(60)
    assert got == [True]
    etcd_server.call("lease/revoke", {"ID": str(behind)})

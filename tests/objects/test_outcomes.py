"""The outcome of a publication after lost replies, false refusals, late requests and cancellations."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
import time
from typing import Any

import pytest
from obstore.exceptions import PreconditionError

from fencing import Fence, FencingError, GuardUnavailable, OutcomeUnknown, StaleFence, UnclaimedFence
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects import loop as object_loop
from tests.support import wait_until
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import Desk, probed
from tests.support.sides import Side

R = "orders:1"
MINE, NEWER = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)


class Shop(Desk):
    """A guard on a faulty store, and another one beside it that sees the store without faults."""

    def __init__(self, side: Side, timeout: float = 0.5) -> None:
        super().__init__(side, FaultyStore(), timeout=timeout)

    def publish(self, value: str, fence: Fence = MINE, **options: Any) -> Any:
        return self.call(self.guard.publish, fence, {"value": value.encode()}, **options)

    def unknown(self, value: str, fault: str, fence: Fence = MINE, **options: Any) -> OutcomeUnknown:
        """A publication whose outcome stays unknown."""
        self.store.faults.append(fault)
        self.store.deaf_after_fault = True
        error = self.side.expect(OutcomeUnknown, lambda: self.publish(value, fence, **options))
        self.store.deaf = self.store.deaf_after_fault = False
        copy = pickle.loads(pickle.dumps(error))
        assert isinstance(copy, OutcomeUnknown)
        return copy

    def landed(self, error: OutcomeUnknown) -> bool | None:
        answer: bool | None = self.call(self.guard.landed, error)
        return answer

    def land(self) -> list[bool]:
        """Late requests arrive."""
        landed: list[bool] = self.side.call(self.store.land)
        return landed

    @property
    def current(self) -> str | None:
        current = self.beside.read(R)
        return None if current is None else current.read("value").decode()


@pytest.fixture
def shop(side: Side) -> Shop:
    return Shop(side)


@pytest.fixture
def patient(side: Side) -> Shop:
    """A shop with time to try again after a silence, on a busy machine too."""
    return Shop(side, timeout=2.0)


@pytest.mark.parametrize(
    ("fault", "times"),
    [
        *((fault, times) for fault in ("request lost", "reply lost", "refused though done") for times in (1, 2)),
        ("taken for a read", 2),
        ("silent", 1),
        ("silent though done", 1),
        pytest.param("silent", 2, marks=pytest.mark.thorough),
        pytest.param("silent though done", 2, marks=pytest.mark.thorough),
    ],
)
def test_one_lost_reply_is_found_out(patient: Shop, fault: str, times: int) -> None:
    shop = patient
    shop.call(shop.guard.claim, MINE)
    shop.store.faults.extend([fault] * times)
    shop.publish("new")
    assert shop.current == "new"
    mark = shop.beside.mark(R)
    assert mark is not None
    assert (mark.number, mark.seq) == (1, 1), "it happened once"
    shop.store.faults.append(fault)
    shop.call(shop.guard.delete, MINE)
    assert shop.current is None


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "refused though done", "late", "silent"])
def test_a_claim_with_a_lost_reply_is_repeated(patient: Shop, fault: str) -> None:
    shop = patient
    shop.store.faults.append(fault)
    shop.call(shop.guard.claim, MINE)
    mark = shop.beside.mark(R)
    assert mark is not None
    assert mark.is_of(MINE)
    assert shop.land() in ([], [False])


@pytest.mark.thorough
def test_a_claim_without_an_answer_may_be_repeated(shop: Shop) -> None:
    shop.store.faults.append("late")
    shop.store.deaf_after_fault = True
    error = shop.side.expect(GuardUnavailable, shop.guard.claim, MINE)
    assert error.resource == R
    shop.store.deaf = False
    assert shop.land() == [True]
    shop.call(shop.guard.claim, MINE)


@pytest.mark.thorough
@pytest.mark.parametrize("claim", [False, True])
@pytest.mark.parametrize("fault", ["reply lost", "refused though done", "silent though done"])
def test_it_landed(shop: Shop, fault: str, claim: bool) -> None:
    if not claim:
        shop.call(shop.guard.claim, MINE)
    error = shop.unknown("new", fault, claim=claim)
    assert error.fence == MINE
    assert error.seq == 1
    assert shop.landed(error) is True
    shop.beside.claim(NEWER)
    shop.beside.publish(NEWER, {"value": b"newer"})
    assert shop.landed(error) is True


@pytest.mark.parametrize("before", ["claimed", "published", "older mark", "absent"])
def test_a_write_that_did_not_land_never_will(shop: Shop, before: str) -> None:
    if before == "older mark":
        shop.beside.publish(MINE, {"value": b"old"}, claim=True)
    elif before != "absent":
        shop.beside.claim(NEWER)
    if before == "published":
        shop.beside.publish(NEWER, {"value": b"old"})
    was = shop.current
    error = shop.unknown("new", "late", NEWER, claim=before in ("older mark", "absent"))
    assert shop.landed(error) is False
    assert shop.landed(error) is False
    assert shop.land() == [False], "landed said it never would"
    assert shop.current == was
    shop.publish("again", NEWER)
    assert shop.current == "again"
    assert shop.landed(error) is False


@pytest.mark.thorough
def test_it_lands_before_it_is_asked_for(shop: Shop) -> None:
    shop.beside.claim(MINE)
    error = shop.unknown("new", "late")
    assert shop.land() == [True]
    assert shop.landed(error) is True


@pytest.mark.thorough
def test_a_newer_claim_comes_between(shop: Shop) -> None:
    shop.beside.claim(MINE)
    error = shop.unknown("new", "late")
    shop.beside.claim(NEWER)
    mark = shop.beside.mark(R)
    assert shop.landed(error) is False
    assert shop.beside.mark(R) == mark, "the newer claim has shut it out already"
    assert shop.land() == [False]


@pytest.mark.thorough
def test_landed_is_unknown_after_too_many_writes(shop: Shop) -> None:
    shop.beside.claim(MINE)
    shop.beside.publish(MINE, {"value": b"0"})
    for landed in (True, False):
        error = shop.unknown("new", "reply lost" if landed else "request lost")
        for number in range(15):
            shop.beside.publish(MINE, {"value": b"%d" % number})
        assert shop.landed(error) is landed
        shop.beside.publish(MINE, {"value": b"one more"})
        assert shop.landed(error) is None


@pytest.mark.parametrize("happens", [True, False])
def test_too_many_writes_before_the_recheck(side: Side, happens: bool) -> None:
    """Then it does not know itself whether it happened, and does not do it again."""

    class Busy(FaultyStore):
        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            if not (armed and path.endswith("pointer.json")):
                return await super().put_async(path, file, **options)
            armed.clear()
            if happens:
                await super().put_async(path, file, **options)
            others = probed(AsyncObjectStoreGuard(self.inner))
            for number in range(17):
                await others.publish(MINE, {"value": b"%d" % number})
            raise PreconditionError("after all that")

    armed: list[bool] = []
    store = Busy()
    desk = Desk(side, store)
    guard, beside = desk.guard, desk.beside
    for _ in range(2):
        side.call(guard.publish, MINE, {"value": b"old"}, claim=True)
    armed.append(True)
    error = side.expect(OutcomeUnknown, lambda: side.call(guard.publish, MINE, {"value": b"new"}))
    assert side.call(guard.landed, error) is None
    current = beside.read(R)
    assert current is not None
    assert current.read("value") == b"16"


@pytest.mark.thorough
def test_another_store_knows_nothing(shop: Shop) -> None:
    shop.beside.claim(MINE)
    error = shop.unknown("new", "request lost")
    other = Shop(shop.side)
    assert other.landed(error) is None
    other.publish("theirs", MINE, claim=True)
    mark = other.beside.mark(R)
    assert other.landed(error) is None
    assert other.beside.mark(R) == mark


@pytest.mark.thorough
def test_landed_fails_while_the_store_does_not_answer(shop: Shop) -> None:
    shop.beside.claim(MINE)
    error = shop.unknown("new", "late")
    shop.store.deaf = True
    assert "ask again" in str(shop.side.expect(GuardUnavailable, shop.guard.landed, error))
    shop.store.deaf = False
    shop.store.faults.append("late")
    shop.store.deaf_after_fault = True
    shop.side.expect(GuardUnavailable, shop.guard.landed, error, timeout=0.1)
    shop.store.deaf = shop.store.deaf_after_fault = False
    assert shop.landed(error) is False
    assert True not in shop.land()[:1]
    assert shop.current is None


def test_a_superseded_holder_is_refused(shop: Shop) -> None:
    """Its put is refused, for the pointer has changed: by a newer claim, so it must stop."""
    shop.beside.claim(MINE)

    def overtaken(*_: Any) -> None:
        shop.beside.claim(NEWER)

    shop.side.expect(StaleFence, lambda: shop.publish("late", progress=overtaken))
    assert shop.current is None
    shop.side.expect(StaleFence, lambda: shop.publish("late", claim=True))
    shop.side.expect(UnclaimedFence, lambda: shop.publish("early", Fence(R, 3, "c" * 22)))


def test_a_store_that_does_not_answer_is_unavailable_and_nothing_is_published(shop: Shop) -> None:
    shop.beside.claim(MINE)
    shop.store.deaf = True
    methods: list[Any] = [shop.guard.read, shop.guard.mark]
    for method in methods:
        assert shop.side.expect(GuardUnavailable, method, R).resource == R
    shop.side.expect(GuardUnavailable, lambda: shop.publish("new"))
    shop.store.deaf = False
    assert shop.current is None


@pytest.mark.thorough
def test_it_is_bounded_when_the_store_falls_silent(shop: Shop) -> None:
    shop.beside.claim(MINE)
    shop.store.faults.extend(["silent"] * 1000)
    error = shop.side.expect(OutcomeUnknown, lambda: shop.publish("new"))
    wait_until(lambda: shop.store.in_flight == 0)  # and no request is left behind
    shop.store.faults.clear()
    assert shop.landed(error) is False


@pytest.mark.thorough
def test_a_process_that_stood_still_learns_that_the_outcome_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of its put, for longer than all bounds: here only the thread of the requests is."""

    class Standstill(FaultyStore):
        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            result = await super().put_async(path, file, **options)
            if stop and path.endswith("pointer.json"):
                resumed.wait(30)
            return result

    stop, resumed = [], threading.Event()
    store = Standstill()
    guard = ObjectStoreGuard(store, timeout=1.0)
    guard.claim(MINE)
    monkeypatch.setattr(object_loop, "_GRACE", 0.05)
    stop.append(True)
    try:
        with pytest.raises(OutcomeUnknown) as caught:
            guard.publish(MINE, {"value": b"new"})
    finally:
        resumed.set()
    monkeypatch.undo()
    assert guard.landed(caught.value) is True


@pytest.mark.thorough
def test_a_read_that_shows_the_state_before_does_no_harm(shop: Shop) -> None:
    """Once, after a put whose reply was lost: as a store that is consistent only in the end."""
    pointer = "fencing/orders=3A1/pointer.json"
    shop.beside.claim(MINE)
    before = shop.store.inner.get(pointer)
    shop.store.faults.append("reply lost")
    shop.store.old_reads.append(before)
    shop.publish("new")
    assert shop.current == "new"
    mark = shop.beside.mark(R)
    assert mark is not None
    assert mark.seq == 1, "it happened once"
    before = shop.store.inner.get(pointer)
    error = shop.unknown("newer", "reply lost")
    shop.store.old_reads.append(before)
    assert shop.landed(error) is True
    assert not shop.store.old_reads


# Cancellation


async def cancelled_in(shop: Shop, times: int) -> BaseException | None:
    """The cause of the CancelledError of a publication that is cancelled in its put."""

    async def publish() -> BaseException | None:
        try:
            await shop.guard.publish(MINE, {"value": b"new"})
        except asyncio.CancelledError as error:
            return error.__cause__ or FencingError("no cause")
        return None

    task = asyncio.ensure_future(publish())
    await asyncio.to_thread(wait_until, lambda: shop.store.in_flight)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.002)  # so that each cancellation is delivered by itself
    return await task


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["async"], indirect=True)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", ["silent", "silent though done"])
def test_a_cancelled_publication_carries_its_put_to_an_answer(patient: Shop, fault: str, times: int) -> None:
    shop = patient
    shop.beside.claim(MINE)
    shop.store.faults.append(fault)
    cause = shop.call(cancelled_in, shop, times)
    assert isinstance(cause, OutcomeUnknown), "something was sent"
    assert shop.landed(cause) is True, "it was carried to its end"
    assert shop.current == "new"


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_cancelled_publication_without_an_answer_has_an_unknown_outcome(shop: Shop) -> None:
    shop.beside.claim(MINE)
    shop.store.faults.extend(["silent"] * 1000)
    cause = shop.call(cancelled_in, shop, 2)
    assert isinstance(cause, OutcomeUnknown)
    shop.store.faults.clear()
    assert shop.landed(cause) is False


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_cancelled_publication_that_was_superseded_is_stale(shop: Shop) -> None:
    shop.beside.claim(MINE)
    shop.store.faults.append("silent")

    async def overtaken() -> BaseException | None:
        task = asyncio.ensure_future(cancelled_in(shop, 1))
        await asyncio.to_thread(wait_until, lambda: shop.store.in_flight)
        await asyncio.to_thread(shop.beside.claim, NEWER)
        return await task

    assert isinstance(shop.call(overtaken), StaleFence)


@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_ctrl_c_interrupts_at_once_and_leaves_an_unknown_outcome(side: Side) -> None:
    shop = Shop(side, timeout=60.0)
    shop.beside.claim(MINE)
    shop.store.faults.append("silent")

    def interrupt() -> None:
        wait_until(lambda: shop.store.in_flight == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught:
        shop.publish("new")
    assert time.monotonic() - started < 50, "the guard itself would wait for a minute"
    thread.join()
    unknown = caught.value.__cause__
    assert isinstance(unknown, OutcomeUnknown)
    wait_until(lambda: shop.store.in_flight == 0)
    assert shop.landed(unknown) is False

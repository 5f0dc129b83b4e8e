"""The statuses 409 and 412: a refusal of the condition of a put, and no answer anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError

from examples.servers.objects import ObjectServer
from fencing import Fence, FencingError, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from storage_guards import AsyncObjectStoreGuard, ObjectStoreGuard
from storage_guards.objects.probe import ProbeReport
from storage_guards.objects.uploads import SMALL
from tests.support.object_faults import FaultyStore
from tests.support.servers.http_proxy import HttpProxy
from tests.support.servers.http_rules import Request
from tests.support.sides import Side

R, KEY = "orders:1", "reports/today.csv"
OLD, MINE = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
REPORT = ProbeReport("as given", versions_return=False, races=6, seconds=0.1)


class Aborting(FaultyStore):
    """Answers 409 or 412 to every request from number ``first`` on that is not a put under a condition."""

    error: type[Exception] = AlreadyExistsError
    first = 10**9
    asked = 0

    def _count(self) -> None:
        self.asked += 1
        if self.asked >= self.first:
            raise self.error("409 Conflict: OperationAborted")

    async def get_async(self, path: str, **options: Any) -> Any:
        self._count()
        found = await super().get_async(path, **options)
        return _Counting(found, self._count)

    async def put_async(self, path: str, file: Any, **options: Any) -> Any:
        if options.get("mode") == "overwrite" or options.get("use_multipart"):
            self._count()
        return await super().put_async(path, file, **options)

    async def delete_async(self, paths: Any) -> None:
        self._count()
        await super().delete_async(paths)

    def list(self, prefix: str | None = None, **options: Any) -> Any:
        async def pages() -> Any:
            self._count()
            async for page in self.inner.list(prefix, **options):
                yield page

        return pages()


class _Counting:
    def __init__(self, found: Any, count_: Callable[[], None]) -> None:
        self.meta, self.attributes = found.meta, found.attributes
        self._found, self._count = found, count_

    async def bytes_async(self) -> Any:
        self._count()
        return await self._found.bytes_async()

    def stream(self, **options: Any) -> Any:
        async def pieces() -> Any:
            async for piece in self._found.stream(**options):
                self._count()
                yield piece

        return pieces()


CALLS: dict[str, Callable[[Side, Any], Any]] = {
    "verify": lambda side, it: (it.__dict__.update(_report=None), side.call(it.verify)),
    "claim": lambda side, it: side.call(it.claim, MINE),
    "mark": lambda side, it: side.call(it.mark, R),
    "read": lambda side, it: side.call(side.call(it.read, R).read, "x"),
    "publish": lambda side, it: side.call(it.publish, MINE, {"x": b"new"}, claim=True),
    "a big one": lambda side, it: side.call(it.publish, MINE, {"x": bytes(SMALL + 1)}, claim=True),
    "delete": lambda side, it: side.call(it.delete, MINE, claim=True),
    "history": lambda side, it: side.call(it.history, R),
    "collect": lambda side, it: (side.call(it.claim, MINE), side.call(it.collect, MINE)),
    "write": lambda side, it: side.call(it.write, MINE, KEY, b"new", claim=True),
    "get": lambda side, it: side.call(it.get, KEY),
}


@pytest.mark.parametrize("error", [AlreadyExistsError, PreconditionError])
@pytest.mark.parametrize("call", CALLS)
def test_any_other_request_that_is_answered_so_got_no_answer(side: Side, call: str, error: type[Exception]) -> None:
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    for first in count(1):
        store = Aborting()
        guard = kind(store, timeout=0.02, upload_timeout=0.05)
        guard._report = REPORT
        beside = ObjectStoreGuard(store.inner)
        beside._report = REPORT
        beside.publish(OLD, {"x": b"older"}, claim=True)
        beside.publish(OLD, {"x": b"old"})
        store.error, store.asked, store.first = error, 0, first
        try:
            CALLS[call](side, guard)
        except GuardUnavailable:
            pass
        except FencingError as raised:
            assert isinstance(raised, OutcomeUnknown)
        if store.asked < first:
            break
    assert first > 1


@pytest.mark.parametrize("error", [AlreadyExistsError, PreconditionError])
@pytest.mark.parametrize("write", ["publish", "delete", "write"])
@pytest.mark.parametrize("happened", [True, False])
def test_behind_a_put_it_hides_no_unknown_outcome(
    side: Side, write: str, error: type[Exception], happened: bool
) -> None:
    """The put that counts gets no answer, and the question about it is answered 409 or 412."""

    class Broken(Aborting):
        async def put_async(self, path: str, file: Any, **options: Any) -> Any:
            try:
                return await super().put_async(path, file, **options)
            finally:
                if self.about in path and armed:
                    self.error, self.first = error, 0

    armed: list[bool] = []
    store = Broken()
    store.about = KEY if write == "write" else "pointer.json"
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    hurried, patient = kind(store, timeout=0.1), kind(store)
    hurried._report = patient._report = REPORT
    side.call(patient.publish, MINE, {"x": b"old"}, claim=True)
    side.call(patient.write, MINE, KEY, b"old")
    armed.append(True)
    store.faults.extend(["reply lost"] if happened else ["request lost"] * 1000)

    def unknown_outcome() -> OutcomeUnknown:
        for _ in range(50):
            try:
                return side.expect(OutcomeUnknown, lambda: CALLS[write](side, hurried))
            except GuardUnavailable:
                assert store.first, "the put was sent, and the error hides it"  # not sent: the machine was too busy
        raise AssertionError("the put is never sent")

    unknown = unknown_outcome()
    store.first = 10**9
    store.faults.clear()
    armed.clear()
    assert side.call(patient.landed, unknown) in ((True,) if happened else (False, None))


def test_a_blob_that_is_archived_is_told_so(side: Side) -> None:
    class Archived(FaultyStore):
        async def get_async(self, path: str, **options: Any) -> Any:
            raise AlreadyExistsError(f"{path} 409 BlobArchived: This operation is not permitted on an archived blob.")

    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    assert "rehydrate" in str(side.expect(GuardNotEnforceable, kind(Archived()).read, R))
    side.expect(GuardUnavailable, kind(Archived()).get, "BlobArchived.csv")  # a mere name says nothing


@pytest.mark.parametrize("status", [409, 412])
def test_a_real_read_that_is_answered_so(
    side: Side, s3_server: ObjectServer, http_proxy: Callable[[ObjectServer], HttpProxy], status: int
) -> None:
    proxy = http_proxy(s3_server)
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    guard = kind(s3_server.store(bucket=s3_server.new_bucket(), via=proxy))
    guard._report = REPORT

    def reads(request: Request) -> bool:
        return request.method == "GET"

    proxy.answer_when(reads, status, times=1)
    side.expect(GuardUnavailable, guard.read, R)
    assert side.call(guard.read, R) is None


Gateway = tuple[HttpProxy, Any]


@pytest.fixture
def behind_a_gateway(side: Side, s3_server: ObjectServer, http_proxy: Callable[[ObjectServer], HttpProxy]) -> Gateway:
    """A proxy, and a guard behind it, of a store whose client repeats nothing; an old holder has published there."""
    proxy = http_proxy(s3_server)
    kind: Any = AsyncObjectStoreGuard if side.asynchronous else ObjectStoreGuard
    store = s3_server.store(bucket=s3_server.new_bucket(), via=proxy, retry_config={"max_retries": 0})
    guard = kind(store, timeout=5.0)
    guard._report = REPORT
    side.call(guard.publish, OLD, {"x": b"old"}, claim=True)
    return proxy, guard


@pytest.mark.parametrize("status", [400, 403, 501])
@pytest.mark.parametrize("write", ["publish", "delete", "write", "claim"])
def test_a_refusal_of_the_answer_is_no_refusal_of_the_put(
    side: Side, behind_a_gateway: Gateway, write: str, status: int
) -> None:
    """A gateway passes the put on, and refuses its answer, or repeats it and is refused then."""
    proxy, guard = behind_a_gateway
    if write == "write":
        side.call(guard.claim, MINE)

    def puts(request: Request) -> bool:
        return request.method == "PUT" and request.conditional

    rule = proxy.answer_when(puts, status, carried_out=True)
    CALLS[write](side, guard)
    assert rule.fired == 1
    assert side.call(guard.mark, R).is_of(MINE)
    if write == "write":
        assert side.call(guard.get, KEY).data == b"new"
    elif write != "claim":
        current = side.call(guard.read, R)
        assert (current and side.call(current.read, "x")) == (b"new" if write == "publish" else None)
    proxy.answer_when(puts, status, times=None)
    side.expect(GuardNotEnforceable, guard.publish, MINE, {"x": b"newer"})


@pytest.mark.parametrize("status", [400, 403, 501])
@pytest.mark.parametrize("write", ["publish", "delete", "write"])
def test_a_refusal_after_which_nothing_can_be_read_is_an_unknown_outcome(
    side: Side, behind_a_gateway: Gateway, write: str, status: int
) -> None:
    proxy, guard = behind_a_gateway
    side.call(guard.claim, MINE)
    done: list[str] = []

    def puts(request: Request) -> bool:
        is_put = request.method == "PUT" and request.conditional
        done.extend(["put"] if is_put else [])
        return is_put

    proxy.answer_when(puts, status, carried_out=True)
    proxy.answer_when(lambda request: bool(done) and request.method in ("GET", "HEAD"), status, times=None)
    error = side.expect(OutcomeUnknown, lambda: CALLS[write](side, guard))
    proxy.restore()
    assert side.call(guard.landed, error) is True

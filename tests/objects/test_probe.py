"""A store that does not keep its conditions is refused, before anything is written to it."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from obstore.exceptions import GenericError, PreconditionError
from obstore.store import LocalStore, MemoryStore, S3Store

from examples.servers.objects import ObjectServer
from examples.servers.s3 import S3Server
from fencing import Fence, GuardNotEnforceable, GuardUnavailable
from storage_guards import ObjectStoreGuard
from storage_guards.objects.batch import AT_ONCE
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import Place, guard_on, probed
from tests.support.sides import Side

A = Fence("orders:1", 1, "a" * 22)


def keys_in(store: Any) -> list[str]:
    return [each["path"] for page in store.list() for each in page]


class Bent(FaultyStore):
    """Keeps its promises but for one."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    async def put_async(self, path: str, file: Any, *, mode: Any = None, **options: Any) -> Any:
        update = isinstance(mode, dict)
        exists = await self._exists(path)
        if self.how == "ignores creation" and mode == "create":
            mode = None
        if self.how == "ignores versions" and update:
            mode = None
        if self.how == "makes what is missing" and update and not exists:
            mode = None
        if self.how == "refuses and makes" and update and not exists:
            await self.inner.put_async(path, file, **options)
            raise PreconditionError(path)
        if self.how == "refuses every version" and update:
            raise PreconditionError(path)
        if self.how == "wants no quotes" and update:
            if '"' in mode["e_tag"]:
                raise PreconditionError(path)
            mode = {"e_tag": f'"{mode["e_tag"]}"'}
        if self.how == "checks, then writes" and (update or mode == "create"):
            await asyncio.sleep(0)
            now = self.inner.head(path)["e_tag"] if exists else None
            if now != (mode["e_tag"] if update else None):
                raise PreconditionError(path)
            await asyncio.sleep(0.005)
            mode = None
        if self.how == "loses replies" and (update or mode == "create") and "race" not in path:
            await self.inner.put_async(path, file, mode=mode, **options)
            raise PreconditionError("refused the second attempt")
        return await self.inner.put_async(path, file, mode=mode, **options)

    async def _exists(self, path: str) -> bool:
        try:
            self.inner.head(path)
            return True
        except FileNotFoundError:
            return False

    async def get_async(self, path: str, **options: Any) -> Any:
        found = await self.inner.get_async(path, **options)
        if self.how == "no versions":
            return _Without(found)
        if self.how == "shows what is old" and bytes(self.inner.get(path).bytes()) == b"third":
            raise FileNotFoundError(path)
        return found

    def list(self, prefix: str | None = None, **options: Any) -> Any:
        return self.inner.list("nowhere" if self.how == "lists what is old" else prefix, **options)


class _Without:
    def __init__(self, found: Any) -> None:
        self.meta = {**found.meta, "e_tag": None, "version": None}
        self.attributes = found.attributes
        self.bytes_async = found.bytes_async


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("ignores creation", "If-None-Match"),
        ("ignores versions", "ignores If-Match"),
        ("makes what is missing", "a version that is gone"),
        ("refuses and makes", "on a missing key"),
        ("refuses every version", "should accept"),
        ("checks, then writes", "at the same time"),
        ("no versions", "neither an ETag nor a version"),
        ("shows what is old", "something older"),
        ("lists what is old", "does not list"),
    ],
)
def test_a_store_that_breaks_one_promise_is_refused(side: Side, how: str, said: str) -> None:
    store = Bent(how)
    guard = guard_on(side, store)
    assert said in str(side.expect(GuardNotEnforceable, guard.verify))
    for method, *args in (
        (guard.claim, A),
        (guard.publish, A, {"x": b""}),
        (guard.delete, A),
        (guard.write, A, "k", b""),
    ):
        side.expect(GuardNotEnforceable, method, *args)
    assert keys_in(store.inner) == []


@pytest.mark.parametrize("how", ["wants no quotes", "loses replies", ""])
def test_an_odd_store_is_accepted(side: Side, how: str) -> None:
    store = Bent(how)
    guard = guard_on(side, store)
    report = side.call(guard.verify)
    assert report.etag_form == ("unquoted" if how == "wants no quotes" else "as given")
    assert keys_in(store.inner) == [], "its keys are deleted"
    store.how = "wants no quotes" if how == "wants no quotes" else ""
    side.call(guard.claim, A)
    side.call(guard.publish, A, {"x": b"1"})
    assert side.call(guard.verify) is report


def test_real_servers_pass(place: Place) -> None:
    store = place.server.store()
    report = place.side.call(guard_on(place.side, store).verify)
    assert report.races == 6
    assert report.versions_return == ("moto" in place.server.source)
    assert keys_in(store) == []


@pytest.mark.thorough
def test_an_s3_that_lets_races_pass_is_refused(side: Side, racy_s3_server: ObjectServer) -> None:
    error = side.expect(GuardNotEnforceable, guard_on(side, racy_s3_server.store()).claim, A)
    assert "at the same time" in str(error)


@pytest.mark.thorough
def test_an_s3_that_ignores_conditions_is_refused(side: Side, s3rver_server: ObjectServer) -> None:
    error = side.expect(GuardNotEnforceable, guard_on(side, s3rver_server.store()).claim, A)
    assert "If-None-Match" in str(error)


@pytest.mark.thorough
def test_a_bucket_with_versioning_compares_the_etag(s3_server: S3Server, side: Side) -> None:
    """Each put has an id of its own there, but the condition of a put is about the hash."""
    bucket = s3_server.new_bucket()
    enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    request = Request(f"{s3_server.url}/{bucket}?versioning=", enabled, {"Content-Type": "text/xml"}, method="PUT")
    build_opener(ProxyHandler({})).open(request, timeout=10).close()
    guard = guard_on(side, s3_server.store(bucket=bucket))
    assert side.call(guard.verify).versions_return
    first = side.call(guard.write, A, "key", b"idle", claim=True)
    assert first.version.version is not None
    side.expect(GuardNotEnforceable, guard.write, A, "key", b"idle", replacing=first)


def test_files_are_refused(side: Side, tmp_path: Path) -> None:
    error = side.expect(GuardNotEnforceable, guard_on(side, LocalStore(tmp_path)).claim, A)
    assert "cannot do it" in str(error)


def test_a_bucket_that_is_not_there(place: Place) -> None:
    guard = guard_on(place.side, place.server.store(bucket="no-such-bucket"))
    assert "bucket" in str(place.side.expect(GuardNotEnforceable, guard.claim, A))


def test_other_objects_than_stores_are_refused() -> None:
    for no_store in (None, "s3://bucket", MemoryStore, object()):
        with pytest.raises(TypeError, match="obstore store"):
            ObjectStoreGuard(no_store)
    with pytest.raises(ValueError, match="timeout"):
        ObjectStoreGuard(MemoryStore(), timeout=0)
    with pytest.raises(ValueError, match="upload_timeout"):
        ObjectStoreGuard(MemoryStore(), upload_timeout=float("inf"))


def test_concurrent_claims_share_one_probe(side: Side) -> None:
    store = FaultyStore()
    guard = guard_on(side, store)
    fences = [Fence(f"orders:{number}", 1, "a" * 22) for number in range(5)]
    side.race([lambda one=one: side.call(guard.claim, one) for one in fences])  # type: ignore[misc]
    assert len({key.split("/")[2] for key in store.puts if "=probe/" in key}) == 1


def test_a_probe_without_answer_is_repeated(side: Side) -> None:
    store = FaultyStore()
    guard = guard_on(side, store)
    store.deaf = True
    side.expect(GuardUnavailable, guard.claim, A)
    store.deaf = False
    side.call(guard.claim, A)


def test_reading_needs_no_probe(side: Side) -> None:
    """A reader may have no permission to write."""
    store = FaultyStore()
    probed(ObjectStoreGuard(store.inner)).publish(A, {"x": b"1"}, claim=True)
    guard = guard_on(side, store)
    assert side.call(side.call(guard.read, "orders:1").read, "x") == b"1"
    assert side.call(guard.mark, "orders:1").number == 1
    assert len(side.call(guard.history, "orders:1")) == 1
    assert store.puts == []


def test_a_store_that_ceases_to_give_versions_is_refused(side: Side) -> None:
    """A put under no condition would replace whatever is there."""
    store = Bent("")
    guard = guard_on(side, store)
    side.call(guard.publish, A, {"x": b"1"}, claim=True)
    side.call(guard.write, A, "key", b"1")
    store.how = "no versions"
    unsized = [b"2"]  # so that the pointer is read before it is uploaded
    for method, *args in ((guard.publish, A, {"x": unsized}), (guard.delete, A), (guard.write, A, "key", b"2")):
        assert "no longer gives" in str(side.expect(GuardNotEnforceable, method, *args))
    store.how = ""
    assert side.call(side.call(guard.read, "orders:1").read, "x") == b"1"


def test_the_timeout_of_a_claim_covers_all_its_fences(side: Side) -> None:
    class Slow(FaultyStore):
        async def get_async(self, path: str, **options: Any) -> Any:
            reads.append(path)
            await asyncio.sleep(0.12)
            return await super().get_async(path, **options)

    reads: list[str] = []
    guard = probed(guard_on(side, Slow(), timeout=30.0))
    fences = [Fence(f"orders:{number}", 1, "a" * 22) for number in range(20)]
    del reads[:]
    side.expect(GuardUnavailable, lambda: side.call(guard.claim, *fences, timeout=0.2))
    assert len(reads) <= AT_ONCE + 1, "it had no time for more"


def test_publishing_needs_no_permission_to_delete(side: Side) -> None:
    class Keeps(FaultyStore):
        async def delete_async(self, paths: Any) -> None:
            raise GenericError("not allowed")

    guard = guard_on(side, Keeps())
    side.call(guard.claim, A)
    side.call(guard.publish, A, {"x": b"1"})


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_cancelled_waiter_leaves_the_probe_to_the_others(side: Side) -> None:
    store = FaultyStore()
    store.about = "=probe/"
    store.faults.append("silent though done")
    guard = guard_on(side, store, timeout=30.0)

    async def two() -> None:
        tasks = [asyncio.ensure_future(guard.claim(Fence(f"orders:{n}", 1, "a" * 22))) for n in range(2)]
        await asyncio.sleep(0)
        while not store.in_flight:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert store.in_flight == 1
        assert not tasks[1].done()
        tasks[1].cancel()
        await asyncio.wait(tasks)
        guard._verifying[1].cancel()
        await asyncio.wait([guard._verifying[1]])

    side.call(two)
    side.call(guard.claim, A)


@pytest.mark.thorough
@pytest.mark.parametrize("side", ["sync"], indirect=True)
def test_waiting_for_the_probe_of_another_thread_is_bounded(side: Side) -> None:
    store = FaultyStore()
    store.about = "=probe/"
    store.faults.append("silent")
    guard = guard_on(side, store, timeout=2.0)
    first = threading.Thread(target=lambda: side.expect(GuardUnavailable, guard.claim, A))
    first.start()
    side.wait_until(lambda: store.in_flight)
    side.expect(GuardUnavailable, guard.claim, A, timeout=0.05)
    first.join(30)
    side.call(guard.claim, A)


@pytest.mark.parametrize("side", ["async"], indirect=True)
def test_a_probe_that_is_cancelled_does_not_cancel_those_that_wait_for_it(side: Side) -> None:
    store = FaultyStore()
    store.about = "=probe/"
    store.faults.append("silent")
    guard = guard_on(side, store)

    async def cancel() -> None:
        waiting = asyncio.ensure_future(guard.claim(A))
        while not store.in_flight:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        guard._verifying[1].cancel()
        with pytest.raises(GuardUnavailable, match="cancelled"):
            await waiting

    side.call(cancel)
    side.call(guard.claim, A)


@pytest.mark.parametrize("repeats", [False, True])
def test_a_store_that_refuses_connections_is_told(side: Side, repeats: bool) -> None:
    """And not that it gave no answer in the millisecond that was left for the last request."""
    pause = timedelta(seconds=1 if repeats else 0.001)
    retries: Any = {"max_retries": 10 if repeats else 1, "backoff": {"init_backoff": pause}}
    store = S3Store(
        "bucket",
        endpoint="http://127.0.0.1:1",
        access_key_id="id",
        secret_access_key="secret",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config=retries,
    )
    guard = guard_on(side, store, timeout=0.3 if repeats else 10.0)
    error = str(side.expect(GuardUnavailable, guard.claim, A))
    # What the read had before it is not the last request's any more: some milliseconds of 0.3 s.
    assert re.search(r"no answer within 0\.(3|2\d*) s" if repeats else "error sending request", error)
    assert "within 0.001 s" not in error

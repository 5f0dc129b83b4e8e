"""A refusal for good, which obstore repeats for minutes: the guard sees it all the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from obstore.exceptions import GenericError
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from examples.servers.objects import ObjectServer
from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from storage_guards import ObjectStoreGuard
from storage_guards.objects.io import ObjectIO, without_repetitions
from storage_guards.objects.requests import CREATE, Delete, Lost, Put, Unrepeated
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import Place, guard_on
from tests.support.request_counts import RequestCounts
from tests.support.servers.http_proxy import HttpProxy
from tests.support.servers.http_rules import Request
from tests.support.sides import Side

R = "orders:1"
A, B = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)
Proxies = Callable[[ObjectServer], HttpProxy]


def creates(request: Request) -> bool:
    headers = request.headers
    return headers.get("if-none-match") == "*" or headers.get("x-goog-if-generation-match") == "0"


def replaces(request: Request) -> bool:
    return request.conditional and not creates(request)


def lists(request: Request) -> bool:
    return request.method == "GET" and ("list-type" in request.path or "comp=list" in request.path)


def deletes(request: Request) -> bool:
    batch = request.method == "POST" and ("delete" in request.path or "comp=batch" in request.path)
    return batch or request.method == "DELETE"


@pytest.mark.thorough
def test_it_is_seen_at_once(place: Place, http_proxy: Proxies) -> None:
    """With obstore's own retries, as they are by default."""
    proxy = http_proxy(place.server)
    for refused in (creates, replaces, lists):
        guard = guard_on(place.side, place.server.store(via=proxy), timeout=30.0)
        rule = proxy.answer_when(refused, 501, times=None)
        started = time.monotonic()
        assert "501" in str(place.side.expect(GuardNotEnforceable, guard.claim, A))
        assert time.monotonic() - started < 15, "obstore would repeat it until the guard's time is over"
        assert rule.fired == 1
        proxy.restore()
        place.side.call(guard.claim, A)


@pytest.mark.thorough
def test_deleting_that_is_refused_does_not_take_the_time_of_the_probe(place: Place, http_proxy: Proxies) -> None:
    proxy = http_proxy(place.server)
    proxy.answer_when(deletes, 501, times=None)
    guard = guard_on(place.side, place.server.store(via=proxy), timeout=30.0)
    assert place.side.call(guard.verify).seconds < 15


@pytest.mark.thorough
@pytest.mark.parametrize("status", [429, 503])
def test_a_store_that_is_slow_for_a_moment_is_asked_again(place: Place, http_proxy: Proxies, status: int) -> None:
    proxy = http_proxy(place.server)
    for refused in (creates, replaces, lists, deletes):
        proxy.answer_when(refused, status, times=1)
    guard = guard_on(place.side, place.server.store(via=proxy), timeout=30.0)
    place.side.call(guard.claim, A)


@pytest.mark.thorough
def test_the_probe_costs_no_more_requests(side: Side, s3_server: ObjectServer, http_proxy: Proxies) -> None:
    counts = []
    choices: list[Any] = [{}, {"retry_config": {"max_retries": 0}}]  # with a second client, and without one
    for options in choices:
        proxy = http_proxy(s3_server)
        guard = guard_on(side, s3_server.store(via=proxy, **options))
        counts.append(RequestCounts(proxy).during(lambda guard=guard: side.call(guard.verify)))  # type: ignore[misc]
    assert counts[0] == counts[1]


def until_refused(side: Side, method: Any, *args: Any) -> str:
    """Call a method until it is refused, as its errors say. On a busy machine one more attempt may have no answer."""
    for _ in range(20):
        try:
            side.call(method, *args)
        except GuardNotEnforceable as error:
            return str(error)
        except (GuardUnavailable, OutcomeUnknown):
            pass
    raise AssertionError("it is refused, but the guard says to retry for ever")


class TestLater:
    """The store comes to refuse after the probe. The first request has no answer; the next one of its kind says why."""

    @pytest.mark.thorough
    def test_a_claim(self, place: Place, http_proxy: Proxies) -> None:
        proxy = http_proxy(place.server)
        guard = guard_on(place.side, place.server.store(via=proxy))
        place.side.call(guard.claim, A)
        guard._timeout = 0.5
        proxy.answer_when(replaces, 501, times=None)
        assert "501" in until_refused(place.side, guard.claim, B)
        proxy.restore()
        place.side.call(guard.claim, B)

    @pytest.mark.thorough
    def test_a_publication(self, place: Place, http_proxy: Proxies) -> None:
        """An earlier attempt may have been done, so its outcome is unknown. What comes after it is refused."""
        proxy = http_proxy(place.server)
        guard = guard_on(place.side, place.server.store(via=proxy))
        place.side.call(guard.publish, A, {"x": b"old"}, claim=True)
        guard._timeout = 0.5
        proxy.answer_when(replaces, 501, times=None)
        unknown = place.side.expect(OutcomeUnknown, guard.publish, A, {"x": b"new"})
        assert "501" in until_refused(place.side, guard.publish, A, {"x": b"new"})
        assert "501" in until_refused(place.side, guard.landed, unknown)
        proxy.restore()
        assert place.side.call(guard.landed, unknown) is False
        place.side.call(guard.publish, A, {"x": b"new"})

    @pytest.mark.thorough
    def test_a_collection(self, place: Place, http_proxy: Proxies) -> None:
        proxy = http_proxy(place.server)
        guard = guard_on(place.side, place.server.store(via=proxy))
        place.side.call(guard.publish, A, {"x": b"old"}, claim=True)
        place.side.call(guard.publish, B, {"x": b"new"}, claim=True)
        guard._timeout = 0.5
        proxy.answer_when(deletes, 501, times=None)
        place.side.expect(GuardUnavailable, guard.collect, B)
        assert "501" in until_refused(place.side, guard.collect, B)
        proxy.restore()
        assert len(place.side.call(guard.collect, B)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_store_without_a_copy_refuses_after_its_own_repetitions(side: Side, attempts: int) -> None:
    """The probe and a claim have no outcome that could be in doubt."""

    class Refusing(FaultyStore):
        refuses = True

        async def put_async(self, path: str, file: Any, *, mode: Any = None, **options: Any) -> Any:
            if self.refuses and mode != "overwrite":
                done = "retries: 0," if attempts == 1 else "after 1 retries, max_retries: 1"
                raise GenericError(f"Error performing PUT in 1ms, {done} - status code: 501 Not Implemented")
            return await super().put_async(path, file, mode=mode, **options)

    store = Refusing()
    guard = guard_on(side, store, timeout=1.0)
    assert "501" in str(side.expect(GuardNotEnforceable, guard.verify))
    store.refuses = False
    side.call(guard.verify)
    store.refuses = True
    assert "501" in str(side.expect(GuardNotEnforceable, guard.claim, A))
    store.refuses = False
    side.call(guard.claim, A)


def _provider() -> Any:
    return {"access_key_id": "a", "secret_access_key": "b", "token": None, "expires_at": None}


@pytest.mark.parametrize(
    "store",
    [
        S3Store("bucket", region="r", prefix="below/it", endpoint="http://127.0.0.1:1", credential_provider=_provider),
        S3Store.from_url("s3://bucket/some/prefix", virtual_hosted_style_request=True),
        GCSStore("bucket", client_options={"timeout": timedelta(seconds=3), "default_headers": {"x-mine": "1"}}),
        AzureStore("box", account_name="a", account_key="aaaa", client_options={"allow_http": True, "timeout": "5s"}),
        S3Store("bucket", retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=9)}),
    ],
)
def test_the_client_without_repetitions_has_all_else_of_the_store(store: Any) -> None:
    copy = without_repetitions(store)
    assert type(copy) is type(store)
    for name in ("config", "client_options", "prefix", "credential_provider"):
        assert getattr(copy, name) == getattr(store, name)
    assert copy.retry_config["max_retries"] == 0
    if store.retry_config:
        assert {**copy.retry_config, "max_retries": 3} == store.retry_config


def test_no_copy_is_made_where_it_may_differ(tmp_path: Any) -> None:
    class Mine(S3Store):
        pass

    changed: Any = S3Store("bucket")
    changed.put_async = None
    once = S3Store("bucket", retry_config={"max_retries": 0})
    for store in (MemoryStore(), LocalStore(tmp_path), FaultyStore(), Mine("bucket"), changed, once):
        assert without_repetitions(store) is None


@pytest.mark.thorough
def test_a_copy_of_another_store_is_not_used(
    s3_server: ObjectServer, http_proxy: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment has changed since the store was made, so that the copy goes elsewhere."""
    monkeypatch.setenv("AWS_ENDPOINT", s3_server.url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    bucket = s3_server.new_bucket()
    store = S3Store(bucket, region="us-east-1", access_key_id="a", secret_access_key="b")
    proxy = http_proxy(s3_server)
    proxy.answer_when(lambda _: True, 403, times=None)
    monkeypatch.setenv("AWS_ENDPOINT", proxy.url(s3_server.url))
    ObjectStoreGuard(store).verify()


def test_a_copy_that_writes_elsewhere_is_seen(s3_server: ObjectServer) -> None:
    io = ObjectIO(s3_server.store())
    io._without_repetitions = ObjectIO(s3_server.store())

    async def use() -> None:
        with pytest.raises(Lost, match="not of the same store"):
            await io.perform(Unrepeated(Put("key", b"x", CREATE, 10.0)))
        with pytest.raises(Lost, match="no client"):
            await io.perform(Unrepeated(Delete(["key"], 10.0)))

    asyncio.run(use())


@pytest.mark.thorough
def test_one_copy_for_threads(s3_server: ObjectServer) -> None:
    guard = ObjectStoreGuard(s3_server.store())
    threads = [threading.Thread(target=guard.claim, args=[Fence(f"r{n}", 1, "a" * 22)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(guard.mark(f"r{n}") for n in range(4))

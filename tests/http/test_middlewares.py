"""What both middlewares answer, by real servers, byte by byte."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from fencing import Fence, StaleFence
from fencing.testing import Contract
from storage_guards import AsyncMemoryGuard, FencingMiddleware, MemoryGuard, WSGIFencingMiddleware
from storage_guards.http import HEADER, asgi, header_of
from storage_guards.http.asgi import MOST_THREADS
from tests.support import wait_until
from tests.support.http_servers import RawAnswer, Service
from tests.support.loops import until

CLAIMS = "/fencing/claims"


def new_fence(number: int = 5, resource: str | None = None) -> Fence:
    return Fence(resource or f"r{uuid.uuid4().hex}", number, uuid.uuid4().hex)


def ask(service: Service, method: str, path: str, *headers: str, body: bytes = b"1") -> RawAnswer:
    """Send a request, each value of the header Fencing-Token in a line of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=120)
    try:
        connection.putrequest(method, path)
        for header in headers:
            connection.putheader(HEADER, header)
        sent = body if method in ("PUT", "POST") else b""
        connection.putheader("Content-Length", str(len(sent)))
        connection.endheaders(sent)
        response = connection.getresponse()
        text = response.read().decode()
        kind = response.headers.get("Content-Type", "")
        content: Any = json.loads(text) if "json" in kind else None
        if content and response.status >= 400:
            assert kind == "application/problem+json"
            assert response.headers["Cache-Control"] == "no-store"
        return RawAnswer(response.status, f"{response.headers}\n{text}", content)
    finally:
        connection.close()


def put(service: Service, fence: Fence, *headers: str, **parameters: str) -> RawAnswer:
    query = "&".join(f"{name}={value}" for name, value in {"resource": fence.resource, **parameters}.items())
    return ask(service, "PUT", f"/data?{query}", *(headers or (header_of(fence),)))


def test_a_claimed_fence_writes(service: Service) -> None:
    fence = new_fence()
    answered = ask(service, "POST", CLAIMS, header_of(fence))
    assert (answered.status, answered.json) == (200, {"version": 1, "claimed": {fence.resource: 5}})
    assert put(service, fence).status == 200
    assert service.value(fence.resource) == 1
    mark = service.mark(fence.resource)
    assert mark is not None
    assert mark.is_of(fence)
    answered = ask(service, "GET", f"{CLAIMS}?resource={fence.resource}")
    found = {"version": 1, "resource": fence.resource, "number": 5, "seq": 1, "readers": 0}
    assert (answered.status, answered.json) == (200, found)


def test_a_stale_fence_is_412_everywhere(service: Service) -> None:
    old, newer = new_fence(4), new_fence(5)
    old = Fence(newer.resource, 4, old.token)
    ask(service, "POST", CLAIMS, header_of(newer))
    for answered in (ask(service, "POST", CLAIMS, header_of(old)), put(service, old)):
        assert answered.status == 412
        assert answered.json["type"] == "urn:fencing:stale"
        assert {name: answered.json[name] for name in ("status", "resource", "number", "newest")} == {
            "status": 412,
            "resource": old.resource,
            "number": 4,
            "newest": 5,
        }
    assert service.value(old.resource) == 0


def test_an_unclaimed_fence_is_412(service: Service) -> None:
    fence = new_fence()
    answered = put(service, fence)
    assert (answered.status, answered.json["type"]) == (412, "urn:fencing:unclaimed")
    assert "newest" not in answered.json
    assert service.value(fence.resource) == 0


@pytest.mark.parametrize("headers", [["?"], [header_of(new_fence()) + ";a"], ["x" * 9000]], ids=["?", "param", "long"])
def test_a_malformed_header_is_400(service: Service, headers: list[str]) -> None:
    fence = new_fence()
    for answered in (put(service, fence, *headers), ask(service, "POST", CLAIMS, *headers)):
        assert (answered.status, answered.json["type"]) == (400, "urn:fencing:malformed")
    assert service.mark(fence.resource) is None


def test_a_fence_of_another_resource_is_428(service: Service) -> None:
    mine, another = new_fence(), new_fence()
    ask(service, "POST", CLAIMS, header_of(mine, another))
    answered = put(service, mine, header_of(another))
    assert (answered.status, answered.json["type"]) == (428, "urn:fencing:required")
    assert answered.json["resource"] == mine.resource
    assert put(service, mine, header_of(mine, another)).status == 200


def test_no_fence_is_428(service: Service) -> None:
    fence = new_fence()
    answered = ask(service, "PUT", f"/data?resource={fence.resource}")
    assert (answered.status, answered.json["type"]) == (428, "urn:fencing:required")
    answered = ask(service, "POST", CLAIMS)
    assert (answered.status, answered.json["type"]) == (428, "urn:fencing:required")
    assert ask(service, "GET", f"/data?resource={fence.resource}").text.endswith("0")


@pytest.mark.parametrize("kind", ["uvicorn", "waitress", "wsgiref"])
def test_a_header_sent_twice(services: Callable[[str], Service], kind: str) -> None:
    """Two lines are one list, whether the server joins them or not; two fences of one resource are refused."""
    service = services(kind)
    first, second = new_fence(), new_fence()
    assert ask(service, "POST", CLAIMS, header_of(first), header_of(second)).json == {
        "version": 1,
        "claimed": {first.resource: 5, second.resource: 5},
    }
    newer = Fence(first.resource, 6, "c" * 22)
    for twice in ((header_of(first), header_of(first)), (header_of(first), header_of(newer))):
        assert put(service, first, *twice).status == 400
        assert ask(service, "POST", CLAIMS, *twice).status == 400
    mark = service.mark(first.resource)
    assert mark is not None
    assert mark.is_of(first)


def test_several_claims_are_all_or_none(service: Service) -> None:
    held, other = new_fence(), new_fence()
    ask(service, "POST", CLAIMS, header_of(held))
    older = Fence(held.resource, 4, "a" * 22)
    assert ask(service, "POST", CLAIMS, header_of(other, older)).json["resource"] == held.resource
    assert service.mark(other.resource) is None


@pytest.mark.thorough
def test_a_busy_storage_is_503(service: Service) -> None:
    fence = new_fence()
    connection = service.engine.raw_connection()
    connection.cursor().execute("BEGIN IMMEDIATE")
    try:
        answered = ask(service, "POST", CLAIMS, header_of(fence))
    finally:
        connection.rollback()
        connection.close()
    assert (answered.status, answered.json["type"]) == (503, "urn:fencing:unavailable")
    assert "Retry-After: 1" in answered.text or "retry-after: 1" in answered.text
    assert "sqlite" not in answered.text.lower()


def test_errors_of_the_service_itself_are_no_problems(service: Service) -> None:
    """A stale fence that the request did not send, and an outcome that is unknown: they must not look like answers."""
    fence = new_fence()
    ask(service, "POST", CLAIMS, header_of(fence))
    for how in ("stale", "unknown"):
        answered = put(service, fence, fail=how)
        assert (answered.status, answered.json) == (500, None)


@pytest.mark.parametrize(
    "query", ["", "?resource=", "?resource=%FF", "?resource=a&resource=b", "?x=1", "?resource=fencing:x"]
)
def test_a_mark_without_a_resource_is_400(service: Service, query: str) -> None:
    assert ask(service, "GET", CLAIMS + query).status == 400


def test_other_methods_are_405(service: Service) -> None:
    answered = ask(service, "DELETE", CLAIMS, header_of(new_fence()))
    assert answered.status == 405
    assert "allow: get, post" in answered.text.lower()


def test_no_answer_has_a_token(service: Service) -> None:
    mine = new_fence()
    newer, unclaimed = Fence(mine.resource, 6, uuid.uuid4().hex), new_fence()
    answers = [
        ask(service, "POST", CLAIMS, header_of(mine)),
        ask(service, "POST", CLAIMS, header_of(newer)),
        ask(service, "POST", CLAIMS, header_of(mine)),
        ask(service, "GET", f"{CLAIMS}?resource={mine.resource}"),
        put(service, mine),
        put(service, newer),
        put(service, unclaimed),
        put(service, unclaimed, header_of(newer)),
        put(service, mine, header_of(mine) + "?"),
        put(service, mine, str(mine)),
    ]
    assert [answered.status for answered in answers] == [200, 200, 412, 200, 412, 200, 412, 428, 400, 400]
    for answered in answers:
        for fence in (mine, newer, unclaimed):
            assert fence.token not in answered.text


class _Storage:
    """A guard with a few connections. A claim of the resource that is kept waits, and has one of them."""

    CONNECTIONS = 4

    def __init__(self, is_async: bool) -> None:
        self.kept, self.waiting = "", 0
        self.claim = self._claim_async if is_async else self._claim
        self.mark = self._mark
        self._connections: Any = (asyncio if is_async else threading).Semaphore(self.CONNECTIONS)

    def _mark(self, resource: str) -> None: ...

    def _claim(self, fence: Fence) -> None:
        with self._connections:
            self.waiting += 1
            wait_until(lambda: self.kept != fence.resource)
            self.waiting -= 1

    async def _claim_async(self, fence: Fence) -> None:
        async with self._connections:
            self.waiting += 1
            await until(lambda: self.kept != fence.resource)
            self.waiting -= 1


class TestInMemory(Contract):
    """Set-up: no server is needed."""

    def test_wrong_arguments(self) -> None:
        for middleware in (FencingMiddleware, WSGIFencingMiddleware):
            for guard in (None, MemoryGuard, object()):
                self.expect(TypeError, middleware, None, guard)
            self.expect(ValueError, middleware, None, MemoryGuard(), claims_path="claims")
            self.expect(TypeError, middleware, None, MemoryGuard(), claims_path=b"/claims")
        self.expect(TypeError, WSGIFencingMiddleware, None, AsyncMemoryGuard())

    @pytest.mark.parametrize("guard", [MemoryGuard(), AsyncMemoryGuard()])
    def test_an_asgi_service_may_have_either_guard(self, guard: Any) -> None:
        """And without a claims_path, the path belongs to the application."""
        fence = new_fence()
        seen: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope.get("fencing.fences"))

        async def send(message: Any) -> None:
            seen.append(message.get("status", message.get("body")))

        headers = [(b"fencing-token", header_of(fence).encode())]
        scope = {"type": "http", "method": "POST", "path": CLAIMS, "query_string": b"", "headers": headers}
        self.call(FencingMiddleware(app, guard), scope, None, send)
        assert seen == [200, b'{"version": 1, "claimed": {"%s": 5}}' % fence.resource.encode()]
        assert self.call(guard.mark, fence.resource).is_of(fence)
        seen.clear()
        self.call(FencingMiddleware(app, guard, claims_path=None), scope, None, send)
        self.call(FencingMiddleware(app, guard), {"type": "websocket", "path": CLAIMS}, None, send)
        assert seen == [(fence,), None]
        assert "fencing.fences" not in scope

    @pytest.mark.parametrize("is_async", [False, True])
    def test_claims_of_one_resource_do_not_hold_up_those_of_others(
        self, is_async: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody keeps the mark of one, so that its claims wait. The guard serves a few claims at once."""
        guard, kept, goes_on = _Storage(is_async), new_fence(), new_fence()
        statuses: dict[str, list[int]] = {kept.resource: [], goes_on.resource: []}
        guard.kept = kept.resource

        async def claim(middleware: Any, fence: Fence) -> None:
            async def send(message: Any) -> None:
                if "status" in message:
                    statuses[fence.resource].append(message["status"])

            headers = [(b"fencing-token", header_of(fence).encode())]
            scope = {"type": "http", "method": "POST", "path": CLAIMS, "query_string": b"", "headers": headers}
            await middleware(scope, None, send)

        async def main() -> None:
            middleware = FencingMiddleware(None, guard)  # type: ignore[arg-type]
            waiting = [asyncio.ensure_future(claim(middleware, kept)) for _ in range(3 * MOST_THREADS)]
            await until(lambda: guard.waiting)
            waiting.pop().cancel()
            await asyncio.wait_for(claim(middleware, goes_on), 60)
            assert statuses == {kept.resource: [], goes_on.resource: [200]}
            assert guard.waiting == 1
            guard.kept = ""
            await asyncio.gather(*waiting)
            assert statuses[kept.resource] == [200] * len(waiting)

            guard.kept = kept.resource
            monkeypatch.setattr(asgi, "TURN_SECONDS", 0.05)
            first = asyncio.ensure_future(claim(middleware, kept))
            await until(lambda: guard.waiting == 1)
            await claim(middleware, kept)
            assert statuses[kept.resource][-1] == 503
            guard.kept = ""
            await first

        asyncio.run(main())

    def test_an_error_after_the_response_has_begun_propagates(self) -> None:
        """There is one response to a request. The server breaks it off, so that it is not taken for a whole one."""
        fence = new_fence()
        sent: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise StaleFence(fence=fence, mark=None, floor=5)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        headers = [(b"fencing-token", header_of(fence).encode())]
        scope = {"type": "http", "method": "PUT", "path": "/", "query_string": b"", "headers": headers}
        self.expect(StaleFence, FencingMiddleware(app, MemoryGuard()), scope, None, send)
        assert sent == ["http.response.start"]

"""Signed claims: only who has a key of the service can raise a mark."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx2
import pytest
import uvicorn

from fencing import Fence, GuardNotEnforceable, Mark, UnclaimedFence
from storage_guards import (
    AsyncMemoryGuard,
    FencingMiddleware,
    HTTPGuard,
    MemoryGuard,
    WSGIFencingMiddleware,
    fenced,
)
from storage_guards.http import HEADER, SignatureRequired, fence_for, fences, header_of, problem_of
from tests.support import wait_until
from tests.support.http_servers import HTTPSide, LocalService

CLAIMS = "/fencing/claims"
KEY, OTHER, THIRD = (letter * 32 for letter in (b"k", b"o", b"t"))


def new_fence(number: int = 5, resource: str | None = None) -> Fence:
    return Fence(resource or f"r{uuid.uuid4().hex}", number, uuid.uuid4().hex)


def post(side: HTTPSide, client: Any, value: str, path: str = CLAIMS) -> Any:
    return side.call(client.post, path, headers={HEADER: value})


def put(side: HTTPSide, client: Any, resource: str, *held: Any, **options: Any) -> Any:
    with fenced(client, *held, **options):
        return side.call(client.put, "/data", params={"resource": resource}, content=b"1")


def test_what_is_signed_is_the_fence_and_the_path() -> None:
    """Programs in other languages sign, too: this text does not change."""
    fence = Fence("orders:42", 7, "a" * 22)
    text = f"fencing-claim-1\n7.{'a' * 22}.orders:42\n/fencing/claims"
    signature = base64.b64encode(hmac.new(KEY, text.encode(), hashlib.sha256).digest()).decode()
    assert header_of(fence, key=KEY, path=CLAIMS) == f'"{fence}";sig=:{signature}:'
    two = header_of(Fence("a", 1, "b" * 22), fence, key=KEY, path=CLAIMS)
    assert two == f'{header_of(Fence("a", 1, "b" * 22), key=KEY, path=CLAIMS)}, "{fence}";sig=:{signature}:'


def test_a_claim_needs_a_signature(side: HTTPSide) -> None:
    service = LocalService(side, keys=[KEY])
    client, mine = service.client(), new_fence()
    refused = side.expect(GuardNotEnforceable, side.guard(CLAIMS, client).claim, mine)
    assert "the service takes signed claims only: pass one of its keys as key=" in str(refused)
    refused = side.expect(GuardNotEnforceable, side.guard(CLAIMS, client, key=OTHER).claim, mine)
    assert "the service does not have the key that signed the claim" in str(refused)
    assert service.mark(mine.resource) is None
    guard = side.guard(CLAIMS, client, key=KEY)
    for _ in range(2):
        side.call(guard.claim, mine)
    assert service.mark(mine.resource) == Mark(5, mine.token)
    assert side.call(side.guard(CLAIMS, client).mark, mine.resource).number == 5, "reading needs no signature"


def test_the_answer_says_what_to_do_and_shows_no_secret(side: HTTPSide) -> None:
    service = LocalService(side, keys=[KEY])
    client, mine = service.client(), new_fence()
    for value in (header_of(mine), header_of(mine, key=OTHER, path=CLAIMS)):
        answer = post(side, client, value)
        assert (answer.status_code, answer.headers["Content-Type"]) == (401, "application/problem+json")
        assert answer.headers["WWW-Authenticate"]
        said = answer.json()
        assert (said["type"], said["resource"], said["path"]) == ("urn:fencing:unsigned", mine.resource, CLAIMS)
        assert "sign it with a key of the service" in said["detail"]
        assert mine.token not in answer.text
        assert value.partition(";")[2] == "" or value.partition(";")[2] not in answer.text
    assert "k" * 16 not in repr(side.guard(CLAIMS, client, key=KEY)) + repr(vars(service.middleware))


def test_a_signature_is_of_one_fence_and_one_path(side: HTTPSide) -> None:
    service = LocalService(side, keys=[KEY])
    client, mine = service.client(), new_fence()
    higher = Fence(mine.resource, 6, mine.token)
    signature = header_of(mine, key=KEY, path=CLAIMS).partition(";")[2]
    assert post(side, client, f"{header_of(higher)};{signature}").status_code == 401
    assert post(side, client, header_of(mine, key=KEY, path="/fencing/claim")).status_code == 401
    both = f"{header_of(mine)};{signature}, {header_of(new_fence())}"
    assert post(side, client, both).status_code == 401, "one of two is unsigned"
    assert service.mark(mine.resource) is None
    assert post(side, client, f"{header_of(mine)}; {signature}").status_code == 200, "as RFC 9651 lets it be written"


def test_two_keys_at_a_time_rotate(side: HTTPSide) -> None:
    old, both, new = (LocalService(side, keys=keys) for keys in ([OTHER], (KEY, OTHER), [KEY]))
    for service, allowed in ((old, [OTHER]), (both, [KEY, OTHER]), (new, [KEY])):
        for key in (KEY, OTHER, THIRD):
            guard = side.guard(CLAIMS, service.client(), key=key)
            if key in allowed:
                side.call(guard.claim, new_fence())
            else:
                side.expect(GuardNotEnforceable, guard.claim, new_fence())


def test_a_service_begins_with_keys_step_by_step(side: HTTPSide) -> None:
    """A middleware with keys around the one without: each has a path."""
    service = LocalService(side)
    kind = FencingMiddleware if side.asynchronous else WSGIFencingMiddleware
    service.middleware = kind(service.middleware, service.storage, claims_path="/signed", keys=[KEY])
    client, old, new = service.client(), new_fence(), new_fence()
    service.work = lambda scope, resource: seen.append(fence_for(scope, resource))
    seen: list[Fence] = []
    side.call(side.guard(CLAIMS, client).claim, old)
    side.call(side.guard("/signed", client, key=KEY).claim, new)
    side.expect(GuardNotEnforceable, side.guard("/signed", client).claim, new_fence())
    for mine in (old, new):
        assert service.mark(mine.resource) == Mark(5, mine.token)
        assert put(side, client, mine.resource, mine).text == "done"
    assert seen == [old, new]
    service.work = lambda scope, resource: seen.append(fence_for(scope, resource, claim=True))
    with fenced(client, new, key=KEY):  # a handler that claims gets a signature that the outer one has checked
        assert side.call(client.put, "/data", params={"resource": new.resource}, content=b"1").text == "done"
    assert seen == [old, new, new]


def test_without_keys_a_signature_is_refused(side: HTTPSide) -> None:
    service = LocalService(side)
    client, mine = service.client(), new_fence()
    refused = side.expect(GuardNotEnforceable, side.guard(CLAIMS, client, key=KEY).claim, mine)
    assert "status 400" in str(refused)
    assert "signatures are taken only where the middleware has keys" in str(refused)
    assert "pass the URL" not in str(refused)
    assert service.mark(mine.resource) is None


@pytest.mark.parametrize("parameter", ["a=1", "sig", "sig=1", 'sig="a"', "sig=:YQ==:", "sig=::", f"sig=:{'a' * 44}:"])
def test_other_parameters_are_malformed(side: HTTPSide, parameter: str) -> None:
    for options in ({}, {"keys": [KEY]}):
        service = LocalService(side, **options)
        mine = new_fence()
        assert post(side, service.client(), f"{header_of(mine)};{parameter}").status_code == 400
        assert service.mark(mine.resource) is None


def test_an_ordinary_request_needs_no_signature_and_takes_no_wrong_one(side: HTTPSide) -> None:
    """It raises no mark: its handler compares the fence with the mark."""
    service = LocalService(side, keys=[KEY])
    client, mine = service.client(), new_fence()
    seen = []
    service.work = lambda scope, resource: seen.append(fence_for(scope, resource))
    assert put(side, client, mine.resource, mine).status_code == 200
    assert put(side, client, mine.resource, mine, key=KEY).status_code == 200
    assert seen == [mine, mine]
    refused = side.expect(GuardNotEnforceable, put, side, client, mine.resource, mine, key=OTHER)
    assert "does not have the key" in str(refused)
    assert len(seen) == 2


def test_a_handler_that_claims_asks_for_a_signature(side: HTTPSide) -> None:
    service = LocalService(side, keys=[KEY])
    client, mine = service.client(), new_fence()

    def claim(scope: Any, resource: str) -> Any:
        return service.storage.claim(fence_for(scope, resource, claim=True))

    service.work = claim
    refused = side.expect(GuardNotEnforceable, put, side, client, mine.resource, mine)
    assert "pass one of its keys as key= of HTTPGuard, fenced or header_of" in str(refused)
    assert service.mark(mine.resource) is None
    assert put(side, client, mine.resource, mine, key=KEY).text == "done"
    assert service.mark(mine.resource) == Mark(5, mine.token)
    open_one = LocalService(side)
    open_one.work = lambda scope, resource: open_one.storage.claim(fence_for(scope, resource, claim=True))
    assert put(side, open_one.client(), mine.resource, mine).text == "done", "without keys all are taken"


def test_a_refusal_of_a_signed_request_is_raised(side: HTTPSide) -> None:
    service = LocalService(side, keys=[KEY])
    mine = new_fence()

    def refuse(scope: Any, resource: str) -> Any:
        raise UnclaimedFence(fence=fence_for(scope, resource), mark=None)

    service.work = refuse
    assert side.expect(UnclaimedFence, put, side, service.client(), mine.resource, mine, key=KEY).fence == mine


def test_a_redirection_is_signed_anew(side: HTTPSide) -> None:
    sent: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.headers[HEADER])
        is_first = request.url.path == "/here"
        return httpx2.Response(307, headers={"Location": "/there?x=1"}) if is_first else httpx2.Response(200)

    client = side.client(transport=httpx2.MockTransport(answer), base_url="http://service", follow_redirects=True)
    mine = new_fence()
    with fenced(client, mine, key=KEY):
        side.call(client.get, "/here")
    assert sent == [header_of(mine, key=KEY, path="/here"), header_of(mine, key=KEY, path="/there")]


def test_a_lock_gives_way_to_no_wrong_set_up(side: HTTPSide) -> None:
    """It is the program's error: no retry, and the lock is free again."""
    service = LocalService(side, keys=[KEY])
    coordinator = side.coordinator(guards=[side.guard(CLAIMS, service.client())])
    name = new_fence().resource
    side.expect(GuardNotEnforceable, coordinator.acquire, name, timeout=5)
    assert side.call(coordinator.lock(name).holder) is None
    signing = side.coordinator(guards=[side.guard(CLAIMS, service.client(), key=KEY)])
    lease = side.call(signing.acquire, name, timeout=5)
    mark = service.mark(name)
    assert mark is not None
    assert mark.is_of(lease.fence)
    side.call(lease.release)


def test_a_proxy_that_changes_the_path_is_named(side: HTTPSide) -> None:
    service = LocalService(side, keys=[KEY])

    def strip(request: httpx2.Request) -> None:
        request.url = request.url.copy_with(path=request.url.path.removeprefix("/shop"))

    async def strip_async(request: httpx2.Request) -> None:
        strip(request)

    client = service.client(event_hooks={"request": [strip_async if side.asynchronous else strip]})
    guard = side.guard("/shop" + CLAIMS, client, key=KEY)
    refused = side.expect(GuardNotEnforceable, guard.claim, new_fence())
    assert "signed for the path '/shop/fencing/claims', and the service sees '/fencing/claims'" in str(refused)


def test_a_server_that_knows_its_prefix(side: HTTPSide) -> None:
    """ASGI has the whole path, and WSGI has it in two parts."""
    service = LocalService(side, keys=[KEY], claims_path="/shop/claims")
    mine = new_fence()
    side.call(side.guard("/shop/claims?tenant=1", service.client("/shop"), key=KEY).claim, mine)
    assert service.mark(mine.resource) == Mark(5, mine.token)


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(kind: str, guard: MemoryGuard, path: str, **options: Any) -> Iterator[str]:
    """Serve claims at that path by a real server, in a thread, and return its address. Uvicorn takes the options."""
    if kind == "wsgiref":
        app: Any = WSGIFencingMiddleware(None, guard, claims_path=path, keys=[KEY])  # type: ignore[arg-type]
        with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join(10)
        return
    app = FencingMiddleware(None, guard, claims_path=path, keys=[KEY])  # type: ignore[arg-type]
    asgi = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off", loop="asyncio", **options))
    thread = threading.Thread(target=lambda: asyncio.run(asgi.serve()))
    thread.start()
    try:
        wait_until(lambda: asgi.started)
        yield f"http://127.0.0.1:{asgi.servers[0].sockets[0].getsockname()[1]}"
    finally:
        asgi.should_exit = True
        thread.join(10)


@pytest.mark.parametrize("kind", ["wsgiref", "uvicorn"])
def test_the_path_is_the_same_text_on_both_sides(kind: str) -> None:
    """Servers decode it: WSGI as Latin-1, ASGI as UTF-8."""
    guard, path, mine = MemoryGuard(), "/ä b/50%/€:claims", new_fence()
    with serving(kind, guard, path) as url, httpx2.Client(base_url=url) as client:
        for sent in (
            "/ä b/50%25/€:claims",
            "/%C3%A4%20b/50%25/%E2%82%AC%3Aclaims?q=%2F",
            "/x/../%c3%a4 b%2F50%25/€:claims",
        ):
            HTTPGuard(sent, client, key=KEY).claim(mine)
    mark = guard.mark(mine.resource)
    assert mark is not None
    assert mark.is_of(mine)


def test_a_proxy_that_cuts_off_a_prefix_which_uvicorn_knows() -> None:
    def strip(request: httpx2.Request) -> None:
        request.url = request.url.copy_with(path=request.url.path.removeprefix("/shop"))

    guard, mine = MemoryGuard(), new_fence()
    with (
        serving("uvicorn", guard, "/shop/claims", root_path="/shop") as url,
        httpx2.Client(base_url=url, event_hooks={"request": [strip]}) as client,
    ):
        HTTPGuard("/shop/claims", client, key=KEY).claim(mine)
    assert guard.mark(mine.resource) == Mark(5, mine.token)


WRONG: list[tuple[type[Exception], Any]] = [
    (ValueError, []),
    (ValueError, [b"short"]),
    (ValueError, [KEY, OTHER, THIRD]),
    (TypeError, KEY),
    (TypeError, "k" * 32),
    (TypeError, ["k" * 32]),
    (TypeError, [None]),
    (TypeError, 7),
]


@pytest.mark.parametrize(("error", "keys"), WRONG)
def test_wrong_keys(error: type[Exception], keys: Any) -> None:
    makes: list[Callable[..., Any]] = [
        lambda: FencingMiddleware(None, AsyncMemoryGuard(), keys=keys),  # type: ignore[arg-type]
        lambda: WSGIFencingMiddleware(None, MemoryGuard(), keys=keys),  # type: ignore[arg-type]
    ]
    for make in makes:
        with pytest.raises(error) as raised:
            make()
        assert "kkkk" not in str(raised.value)


def test_a_wrong_key_of_a_client() -> None:
    mine = new_fence()
    with httpx2.Client(base_url="http://service") as client:
        for error, key in ((TypeError, "k" * 32), (TypeError, [KEY]), (ValueError, b"k" * 15)):
            for make in (
                lambda key=key: HTTPGuard(CLAIMS, client, key=key),
                lambda key=key: fenced(client, mine, key=key).__enter__(),
                lambda key=key: header_of(mine, key=key, path=CLAIMS),
            ):
                with pytest.raises(error) as raised:
                    make()
                assert "kkkk" not in str(raised.value)
        for options in ({"key": KEY}, {"path": CLAIMS}):
            with pytest.raises(TypeError, match="pass key= and path= together"):
                header_of(mine, **options)
    with pytest.raises(ValueError, match="parameters"):
        fences({HEADER: header_of(mine, key=KEY, path=CLAIMS)})


def test_a_missing_signature_is_an_error_that_frameworks_can_answer() -> None:
    """For Django and Flask, which turn exceptions into answers themselves."""
    error = SignatureRequired("r", "/p")
    answer = problem_of(error, {"fencing.fences": ()})
    assert answer is not None
    assert answer.status == 401
    assert (error.resource, error.path) == ("r", "/p")

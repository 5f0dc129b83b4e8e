"""HTTPGuard and its async twin: what each odd answer of a service means, and the bounds of all waits."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from fencing import (
    Fence,
    GuardNotEnforceable,
    GuardUnavailable,
    Mark,
    OutcomeUnknown,
    StaleFence,
    UnclaimedFence,
)
from storage_guards import AsyncHTTPGuard, HTTPGuard
from storage_guards.http import Problem, header_of, problem_of
from storage_guards.http.problems import UNKNOWN_TOKEN, error_of
from tests.support.forks import in_child
from tests.support.http_servers import HTTPSide, ScriptedService, Service
from tests.support.servers import Proxy

Scripted = Callable[..., ScriptedService]
MINE = Fence("r", 5, "a" * 22)


def reply(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def new_fence(number: int = 5) -> Fence:
    return Fence(f"r{uuid.uuid4().hex}", number, uuid.uuid4().hex)


@pytest.mark.thorough
def test_a_lock_claims_at_a_service(side: HTTPSide, service: Service) -> None:
    guard = side.guard(service.claims_url)
    coordinator = side.coordinator(guards=[guard])
    name = new_fence().resource
    lease = side.call(coordinator.acquire, name, timeout=5)
    mark = service.mark(name)
    assert mark is not None
    assert mark.is_of(lease.fence)
    assert side.call(guard.mark, name) == Mark(lease.fence.number, UNKNOWN_TOKEN, 0)
    assert side.call(guard.mark, name + "x") is None
    side.call(lease.release)


def test_a_lock_remints_above_the_mark_of_a_service(side: HTTPSide, service: Service) -> None:
    guard = side.guard(service.claims_url)
    ahead = time.time_ns() // 1000 + 10**9  # numbers follow the clock in microseconds
    name = new_fence().resource
    side.call(guard.claim, Fence(name, ahead, "a" * 22))
    lease = side.call(side.coordinator(guards=[guard]).acquire, name, timeout=5)
    assert lease.fence.number > ahead
    side.call(lease.release)


def test_a_lost_reply_is_asked_for_again(side: HTTPSide, service: Service) -> None:
    mine = new_fence()
    with Proxy("127.0.0.1", service.port) as network:
        guard = side.guard(f"http://127.0.0.1:{network.port}/fencing/claims", timeout=20)
        loss = network.drop_reply_when(lambda request: b"POST" in request)
        side.call(guard.claim, mine)
        assert loss.fired == 1
        mark = service.mark(mine.resource)
        assert mark is not None
        assert mark.is_of(mine)
        network.refuse()
        side.expect(GuardUnavailable, guard.claim, mine, timeout=0.2)
        network.restore()
        side.call(guard.claim, mine)


def test_a_reply_that_never_comes_leaves_time_for_another_attempt(side: HTTPSide, scripted: Scripted) -> None:
    server = scripted(reply("200 OK", b'{"claimed": {"r": 5}}'), silent=1)
    side.call(side.guard(server.url, timeout=3).claim, MINE)
    assert len(server.requests) == 2


def test_a_service_that_is_away(side: HTTPSide) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    guard = side.guard(f"http://127.0.0.1:{port}/claims", timeout=0.2)
    refused = side.expect(GuardUnavailable, guard.claim, MINE)
    assert refused.resource == "r"
    assert f"127.0.0.1:{port}/claims within 0.2 s" in str(refused)
    assert str(refused).endswith("; nothing was claimed; retry")
    side.expect(GuardUnavailable, guard.mark, "r")
    side.expect(GuardUnavailable, side.coordinator(guards=[guard]).acquire, "r", timeout=0.2)


@pytest.mark.thorough
def test_a_service_that_is_silent(side: HTTPSide, silent_service: socket.socket) -> None:
    guard = side.guard(f"http://127.0.0.1:{silent_service.getsockname()[1]}/claims", timeout=0.3)
    began = time.monotonic()
    assert "; a claim may have happened; retry" in str(side.expect(GuardUnavailable, guard.claim, MINE))
    side.expect(GuardUnavailable, guard.claim, MINE, timeout=0)
    assert time.monotonic() - began < 30


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.parametrize("parts", [[HEAD, *[b"x"] * 1000], [b"HTTP/1.1 200 OK\r\nX-", *[b"x"] * 1000]])
def test_a_reply_that_trickles_in(side: HTTPSide, scripted: Scripted, parts: list[bytes]) -> None:
    """Its head, too: no time-out of the client bounds that."""
    server = scripted(*parts, pause=0.02)
    began = time.monotonic()
    side.expect(GuardUnavailable, side.guard(server.url, timeout=0.3).claim, MINE)
    assert time.monotonic() - began < 15, "the whole reply takes 20 s"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_redirects_are_refused(side: HTTPSide, scripted: Scripted, service: Service, status: str) -> None:
    mine = new_fence()
    server = scripted(reply(status, b"", f"Location: {service.claims_url}"))
    guard = side.guard(server.url, side.client(follow_redirects=True))
    assert "redirects are refused" in str(side.expect(GuardNotEnforceable, guard.claim, mine))
    assert service.mark(mine.resource) is None
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        ("200 OK", b"<html>welcome</html>", GuardNotEnforceable),
        ("200 OK", b'{"claimed": {}}', GuardNotEnforceable),
        ("200 OK", b'{"claimed": {"r": 6}}', GuardNotEnforceable),
        ("200 OK", b'{"claimed": {"r": 5, "s": 5}}', GuardNotEnforceable),
        ("200 OK", b"[" * 60_000, GuardNotEnforceable),
        ("200 OK", b'{"claimed": {"r": 5}}' + b" " * 70_000, None),
        ("201 Created", b'{"claimed": {"r": 5}}', GuardNotEnforceable),
        ("404 Not Found", b"", GuardNotEnforceable),
        ("401 Unauthorized", b'{"detail": "log in"}', GuardNotEnforceable),
        ("412 Precondition Failed", b"another's", GuardNotEnforceable),
        ("500 Oops", b"", GuardUnavailable),
        ("503 Busy", b"", GuardUnavailable),
        ("429 Slowly", b"", GuardUnavailable),
    ],
    ids=range(13),
)
def test_answers_that_are_not_ours(side: HTTPSide, scripted: Scripted, status: str, body: bytes, error: Any) -> None:
    guard = side.guard(scripted(reply(status, body)).url, timeout=0.3 if error is GuardUnavailable else 20)
    if error is None:
        side.call(guard.claim, MINE)
    else:
        side.expect(error, guard.claim, MINE)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"resource": "r"}', b'{"resource": "r", "number": 0, "seq": 0}'])
def test_a_mark_that_is_not_one(side: HTTPSide, scripted: Scripted, body: bytes) -> None:
    side.expect(GuardNotEnforceable, side.guard(scripted(reply("200 OK", body)).url).mark, "r")


@pytest.mark.parametrize("body", [b"x" * 10_000_000, b"not gzip"], ids=["long", "gzip"])
def test_a_reply_is_not_read_without_a_bound(side: HTTPSide, scripted: Scripted, body: bytes) -> None:
    headers = ["Content-Encoding: gzip"] if body == b"not gzip" else []
    guard = side.guard(scripted(reply("200 OK", body, *headers)).url, timeout=1 if headers else 20)
    side.expect(GuardUnavailable if headers else GuardNotEnforceable, guard.claim, MINE)


def test_a_client_that_raises_for_status_by_itself(side: HTTPSide, scripted: Scripted) -> None:
    def raise_for_status(response: httpx2.Response) -> None:
        response.raise_for_status()

    async def raise_for_status_async(response: httpx2.Response) -> None:
        response.raise_for_status()

    client = side.client(event_hooks={"response": [raise_for_status_async if side.asynchronous else raise_for_status]})
    server = scripted(reply("404 Not Found"))
    side.expect(GuardNotEnforceable, side.guard(server.url, client).claim, MINE)


def test_wrong_arguments() -> None:
    with httpx2.Client() as client:
        for wrong in (None, httpx2, object(), httpx2.Client):
            with pytest.raises(TypeError, match=r"an httpx2\.Client is needed"):
                HTTPGuard("http://service/claims", wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="use HTTPGuard"):
            AsyncHTTPGuard("http://service/claims", client)  # type: ignore[arg-type]
        for url in ("/claims", "ftp://u:secret@service/claims", "service/claims", ""):
            with pytest.raises(ValueError, match="an http or https URL is needed") as refused:
                HTTPGuard(url, client)
            assert "secret" not in str(refused.value)
        for url in ("http://u:secret@service:port/claims", "http://service/\0", "http://service/" + "x" * 9000):
            with pytest.raises(ValueError, match="URL") as refused:
                HTTPGuard(url, client)
            assert "secret" not in str(refused.value)
        with pytest.raises(ValueError, match="bound"):
            HTTPGuard("http://service/claims", client, timeout=float("inf"))
        guard = HTTPGuard("https://worker:secret@service/claims?key=secret", client)
        assert repr(guard) == "<HTTPGuard on https://service/claims, timeout 10 s>"
        assert guard.landed(OutcomeUnknown(fence=MINE, seq=1)) is None
        with pytest.raises(ValueError, match="send fewer"):
            guard.claim(*(Fence(f"{number}{'x' * 500}", 1, "a" * 22) for number in range(20)))


def answer_to(error: Any) -> Problem:
    problem = problem_of(error, {"fencing.fences": (MINE,)})
    assert problem is not None
    return problem


@pytest.mark.parametrize(
    "error",
    [
        StaleFence(fence=MINE, mark=Mark(6, UNKNOWN_TOKEN)),
        StaleFence(fence=MINE, mark=Mark(5, UNKNOWN_TOKEN)),
        StaleFence(fence=MINE, mark=None, floor=9),
        UnclaimedFence(fence=MINE, mark=None),
        UnclaimedFence(fence=MINE, mark=Mark(4, UNKNOWN_TOKEN)),
        UnclaimedFence(fence=MINE, mark=Mark(5, UNKNOWN_TOKEN), acknowledged=3),
    ],
)
def test_a_refusal_survives_the_journey(error: Any) -> None:
    answer = answer_to(error)
    kind = dict(answer.headers)["Content-Type"]
    arrived = error_of(answer.status, kind, answer.body, [MINE])
    assert arrived is not None
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
    assert error_of(answer.status, kind, answer.body, [Fence("s", 5, "a" * 22)]) is None
    assert error_of(answer.status, "application/json", answer.body, [MINE]) is None
    assert error_of(409, kind, answer.body, [MINE]) is None


@pytest.mark.parametrize("newest", [b"4", b"0", b'"6"', b"6.0", b"true", b"null", b"9007199254740992"])
def test_a_refusal_that_makes_no_sense_is_not_believed(newest: bytes) -> None:
    answer = answer_to(StaleFence(fence=MINE, mark=Mark(6, UNKNOWN_TOKEN)))
    body = answer.body.replace(b'"newest": 6', b'"newest": ' + newest)
    assert body != answer.body
    assert error_of(412, "application/problem+json", body, [MINE]) is None
    assert header_of(MINE) not in body.decode()


@pytest.mark.parametrize("acknowledged", [b'"3"', b"3.0", b"true", b"[]"])
def test_an_acknowledged_write_without_a_number_is_not_believed(acknowledged: bytes) -> None:
    answer = answer_to(UnclaimedFence(fence=MINE, mark=None, acknowledged=3))
    body = answer.body.replace(b'"acknowledged": 3', b'"acknowledged": ' + acknowledged)
    assert body != answer.body
    assert error_of(412, "application/problem+json", body, [MINE]) is None


def test_a_client_that_was_used_before_a_fork_is_refused(scripted: Scripted) -> None:
    """Both processes would read the replies on one connection, and take each other's."""
    service = scripted(reply("200 OK", b'{"claimed": {"r": 5}}'))
    with httpx2.Client() as client:
        guard = HTTPGuard(service.url, client)
        guard.claim(MINE)

        def check() -> None:
            for each in (guard, HTTPGuard(service.url, client)):
                with pytest.raises(GuardNotEnforceable, match="in each process"):
                    each.claim(MINE)

        in_child(check)
        guard.claim(MINE)

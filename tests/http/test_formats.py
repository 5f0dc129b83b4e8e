"""The header, the answers and the problems have one form. An answer of a newer version is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fencing import (
    Fence,
    GuardNotEnforceable,
    GuardUnavailable,
    Mark,
    MarkImplausible,
    StaleFence,
    UnclaimedFence,
)
from fencing.kernel.effects import Plan, run
from storage_guards import HTTPGuard, MemoryGuard, WSGIFencingMiddleware
from storage_guards.http import FenceRequired, Problem, header_of, problem_of
from storage_guards.http.base import MOST_DETAIL, Reply
from storage_guards.http.header import SignatureRequired
from storage_guards.http.problems import MALFORMED, UNKNOWN_TOKEN, error_of
from tests.support.formats import unchanged

CLAIMS = "/fencing/claims"
MINE, OTHER = Fence("orders:42", 7, "m" * 22), Fence("ä b", 8, "o" * 22)
ASK = "resource=orders:42"


def test_the_header() -> None:
    plain = '"7.mmmmmmmmmmmmmmmmmmmmmm.orders:42", "8.oooooooooooooooooooooo.%C3%A4%20b"'
    unchanged("the header", header_of(OTHER, MINE), plain)
    signed = (
        '"7.mmmmmmmmmmmmmmmmmmmmmm.orders:42";sig=:nFsVOepTWyL8e17zFWe7YtdHvYpCkTIfBv+oDN0qqBQ=:, '
        '"8.oooooooooooooooooooooo.%C3%A4%20b";sig=:Xm17EjgaCEMFtRLojYWN4jMv+SJw7j7notyrOFDNUjU=:'
    )
    unchanged("the header, signed", header_of(OTHER, MINE, key=bytes(range(32)), path=CLAIMS), signed)


def asked(guard: MemoryGuard, method: str, query: str = "", header: str | None = None) -> tuple[str, Any, bytes]:
    """Return the answer of a middleware to a request at its claims path: its status, headers and body."""
    started: list[Any] = []
    environ = {"REQUEST_METHOD": method, "PATH_INFO": CLAIMS, "QUERY_STRING": query}
    if header is not None:
        environ["HTTP_FENCING_TOKEN"] = header
    middleware = WSGIFencingMiddleware(lambda *_: [b"the application"], guard)
    body = b"".join(middleware(environ, lambda *arguments: started.append(arguments)))
    [(status, headers)] = started
    return status, headers, body


def test_the_answers_to_claims() -> None:
    guard = MemoryGuard()

    def expected(body: bytes) -> tuple[str, Any, bytes]:
        length = str(len(body))
        return (
            "200 OK",
            [("Content-Type", "application/json"), ("Content-Length", length), ("Cache-Control", "no-store")],
            body,
        )

    claimed = expected(b'{"version": 1, "claimed": {"orders:42": 7, "\\u00e4 b": 8}}')
    unchanged("the answer to a claim", asked(guard, "POST", header=header_of(MINE, OTHER)), claimed)
    guard.write(MINE, "x", 1)
    found = expected(b'{"version": 1, "resource": "orders:42", "number": 7, "seq": 1, "readers": 0}')
    unchanged("the answer with a mark", asked(guard, "GET", ASK), found)
    guard._marks["orders:42"] = Mark(7, MINE.token, 1, 9)
    found = expected(b'{"version": 1, "resource": "orders:42", "number": 7, "seq": 1, "readers": 9}')
    unchanged("the answer with a mark and a reader", asked(guard, "GET", ASK), found)
    nothing = expected(b'{"version": 1, "resource": "orders:43", "number": null, "seq": null, "readers": 0}')
    unchanged("the answer without a mark", asked(guard, "GET", "resource=orders:43"), nothing)


def of_problem(problem: Problem | None) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Return the status, the headers and the content of a problem, without what is for people."""
    assert problem is not None
    headers, content = dict(problem.headers), json.loads(problem.body)
    assert headers.pop("Content-Length") == str(len(problem.body))
    assert headers.pop("Content-Type") == "application/problem+json"
    assert headers.pop("Cache-Control") == "no-store"
    assert content.pop("detail")
    assert content.pop("status") == problem.status
    return problem.status, headers, content


@pytest.mark.parametrize(
    ("error", "golden"),
    [
        (
            StaleFence(fence=MINE, mark=Mark(8, OTHER.token, 3)),
            (412, {}, {"type": "urn:fencing:stale", "title": "Stale fence", "resource": "orders:42", "number": 7,
                       "newest": 8}),
        ),
        (
            StaleFence(fence=MINE, mark=Mark(7, MINE.token, 3, 9)),
            (412, {}, {"type": "urn:fencing:stale", "title": "Stale fence", "resource": "orders:42", "number": 7,
                       "newest": 9}),
        ),
        (
            StaleFence(fence=MINE, mark=None, floor=9),
            (412, {}, {"type": "urn:fencing:stale", "title": "Stale fence", "resource": "orders:42", "number": 7,
                       "floor": 9}),
        ),
        (
            UnclaimedFence(fence=MINE, mark=Mark(5, OTHER.token)),
            (412, {}, {"type": "urn:fencing:unclaimed", "title": "Unclaimed fence", "resource": "orders:42",
                       "number": 7, "newest": 5}),
        ),
        (
            UnclaimedFence(fence=MINE, mark=Mark(7, MINE.token), acknowledged=3),
            (412, {}, {"type": "urn:fencing:unclaimed", "title": "Unclaimed fence", "resource": "orders:42",
                       "number": 7, "newest": 7, "acknowledged": 3}),
        ),
        (
            SignatureRequired("orders:42", CLAIMS),
            (401, {"WWW-Authenticate": "FencingSignature"},
             {"type": "urn:fencing:unsigned", "title": "Signature required", "resource": "orders:42", "path": CLAIMS}),
        ),
        (
            MarkImplausible(resource="orders:42", number=7, ceiling=6),
            (422, {}, {"type": "urn:fencing:implausible", "title": "Implausible number", "resource": "orders:42",
                       "number": 7, "ceiling": 6}),
        ),
        (
            FenceRequired("orders:42"),
            (428, {}, {"type": "urn:fencing:required", "title": "Fencing token required", "resource": "orders:42"}),
        ),
        (FenceRequired(), (428, {}, {"type": "urn:fencing:required", "title": "Fencing token required"})),
        (
            GuardUnavailable("away", resource="orders:42"),
            (503, {"Retry-After": "1"},
             {"type": "urn:fencing:unavailable", "title": "Storage unavailable", "resource": "orders:42"}),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_a_problem(error: Exception, golden: Any) -> None:
    unchanged(f"the problem {golden[2]['type']}", of_problem(problem_of(error, {"fencing.fences": (MINE,)})), golden)


def test_the_problem_of_a_malformed_header() -> None:
    golden: Any = 400, {}, {"type": "urn:fencing:malformed", "title": "Malformed fencing token"}
    unchanged("the problem urn:fencing:malformed", of_problem(MALFORMED), golden)


# Other versions


@pytest.mark.parametrize("item", ['"7.{}.r";v=2', '"7.{}.r";shared', '"7s.{}.r"', '"7.{}.r";sig=:AAAA:'])
def test_a_header_of_a_newer_client_is_refused_with_the_next_step(item: str) -> None:
    guard = MemoryGuard()
    status, _, body = asked(guard, "POST", header=item.format("m" * 22))
    assert status == "400 Bad Request"
    detail = json.loads(body)["detail"]
    assert detail.endswith("a newer client? upgrade the service")
    assert len(detail) <= MOST_DETAIL, "a client shows all of it"
    assert guard.mark("r") is None


@pytest.fixture(scope="module")
def guard() -> Iterator[HTTPGuard]:
    with httpx2.Client() as client:
        yield HTTPGuard("http://shop.internal/fencing/claims", client)


def answered(plan: Plan[Any], content: object) -> Any:
    """Perform a plan whose one request gets this answer."""
    calls: list[Any] = []

    def perform(call: Any) -> Reply:
        calls.append(call)
        return Reply(200, "application/json", json.dumps(content).encode())

    try:
        return run(plan, perform)
    finally:
        assert len(calls) == 1, "it is not asked again"


CLAIM, MARK = {"claimed": {"orders:42": 7}}, {"resource": "orders:42", "number": 7, "seq": 1, "readers": 9}
NO_HOLDER = {"resource": "orders:42", "number": None, "seq": None}


@pytest.mark.parametrize("version", [{}, {"version": 1}])
def test_an_answer_of_this_version_or_of_an_earlier_one(guard: HTTPGuard, version: dict[str, int]) -> None:
    answered(guard._plan_claim((MINE,), None), {**version, **CLAIM})
    for content, mark in (
        (MARK, Mark(7, UNKNOWN_TOKEN, 1, 9)),
        ({"resource": "orders:42", "number": 7, "seq": 1}, Mark(7, UNKNOWN_TOKEN, 1)),
        ({**NO_HOLDER, "readers": 9}, None),
        (NO_HOLDER, None),
    ):
        assert answered(guard._plan_mark("orders:42"), {**version, **content}) == mark


@pytest.mark.parametrize("content", [CLAIM, MARK, {"more": 1}])
def test_an_answer_of_a_newer_version_is_refused(guard: HTTPGuard, content: dict[str, Any]) -> None:
    for plan in (guard._plan_claim((MINE,), None), guard._plan_mark("orders:42")):
        with pytest.raises(GuardNotEnforceable) as refused:
            answered(plan, {"version": 2, **content})
        assert "answered in version 2 of claims, and this client knows 1: the service is newer" in str(refused.value)
        assert "a claim may have happened; upgrade this library here" in str(refused.value)


@pytest.mark.parametrize("version", [0, -1, "1", "2", 2.0, True, None, []])
def test_a_version_that_is_none(guard: HTTPGuard, version: Any) -> None:
    for plan in (guard._plan_claim((MINE,), None), guard._plan_mark("orders:42")):
        with pytest.raises(GuardNotEnforceable, match="no answer to a claim"):
            answered(plan, {"version": version, **CLAIM, **MARK})


@pytest.mark.parametrize("readers", [-1, 2**53, "9", True, None])
@pytest.mark.parametrize("content", [MARK, NO_HOLDER])
def test_readers_that_are_no_number(guard: HTTPGuard, content: Any, readers: Any) -> None:
    with pytest.raises(GuardNotEnforceable, match="no answer to a claim"):
        answered(guard._plan_mark("orders:42"), {**content, "readers": readers})


def test_a_refusal_by_a_newer_reader_survives_the_journey() -> None:
    answer = problem_of(StaleFence(fence=MINE, mark=Mark(7, MINE.token, 3, 9)), {"fencing.fences": (MINE,)})
    assert answer is not None
    arrived = error_of(answer.status, "application/problem+json", answer.body, [MINE])
    assert isinstance(arrived, StaleFence)
    assert arrived.mark == Mark(9, UNKNOWN_TOKEN)

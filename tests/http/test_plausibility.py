"""Numbers that no coordinator can have minted raise no mark of a service: it would be one that nothing can exceed."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from fencing import Fence, Mark, MarkImplausible
from fencing.kernel.admission import PLAUSIBLE_STEP
from fencing.locks import backend
from storage_guards import AsyncMemoryGuard, FencingMiddleware, MemoryGuard, WSGIFencingMiddleware, fenced
from storage_guards.http import HEADER, fence_for, header_of, problem_of, screening
from tests.support.http_servers import HTTPSide, LocalService

CLAIMS = "/fencing/claims"
NOW = 1_700_000_000_000_000
"""A clock in microseconds: November 2023."""


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's clock stands still."""

    class Clock:
        time_ns = staticmethod(lambda: NOW * 1000)

    monkeypatch.setattr(screening, "time", Clock)


def new_fence(number: int) -> Fence:
    return Fence(f"r{uuid.uuid4().hex}", number, uuid.uuid4().hex)


def test_a_claim_beyond_the_bound_is_implausible_and_never_stale(side: HTTPSide) -> None:
    service = LocalService(side)
    guard = side.guard(CLAIMS, service.client())
    for number in (NOW + 2**49 + 1, 2**53 - 1):
        wrong = new_fence(number)
        refused = side.expect(MarkImplausible, guard.claim, wrong)
        assert (refused.resource, refused.number, refused.ceiling) == (wrong.resource, number, NOW + 2**49)
        assert "an operator must find out where this number came from" in str(refused)
        assert service.mark(wrong.resource) is None
    right = new_fence(NOW + 2**49)
    side.call(guard.claim, right)
    assert service.mark(right.resource) == Mark(right.number, right.token)


def test_one_implausible_fence_of_several_claims_none(side: HTTPSide) -> None:
    service = LocalService(side, keys=[b"k" * 16])
    right, wrong = new_fence(5), new_fence(2**53 - 1)
    guard = side.guard(CLAIMS, service.client(), key=b"k" * 16)
    assert side.expect(MarkImplausible, guard.claim, right, wrong).resource == wrong.resource
    assert service.mark(right.resource) is None


def test_the_answer(side: HTTPSide) -> None:
    service, wrong = LocalService(side), new_fence(2**53 - 1)
    client = service.client()
    for method, path in ((client.post, CLAIMS), (client.put, "/data")):
        answer = side.call(method, path, headers={HEADER: header_of(wrong)})
        assert (answer.status_code, answer.headers["Content-Type"]) == (422, "application/problem+json")
        said = answer.json()
        assert said["type"] == "urn:fencing:implausible"
        assert (said["resource"], said["number"], said["ceiling"]) == (wrong.resource, wrong.number, NOW + 2**49)
        assert wrong.token not in answer.text


def test_who_has_no_key_learns_nothing_of_the_bound(side: HTTPSide) -> None:
    service = LocalService(side, keys=[b"k" * 16])
    answer = side.call(service.client().post, CLAIMS, headers={HEADER: header_of(new_fence(2**53 - 1))})
    assert answer.status_code == 401


def test_a_handler_that_claims_gets_no_implausible_fence(side: HTTPSide) -> None:
    service, wrong = LocalService(side), new_fence(NOW + 2**50)
    service.work = lambda scope, resource: service.storage.claim(fence_for(scope, resource))
    client = service.client()

    def put() -> Any:
        with fenced(client, wrong):
            return side.call(client.put, "/data", params={"resource": wrong.resource})

    assert side.expect(MarkImplausible, put).number == wrong.number
    assert service.mark(wrong.resource) is None


def test_a_new_fence_can_exceed_every_mark_that_a_claim_leaves(side: HTTPSide, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 * PLAUSIBLE_STEP == backend.PLAUSIBLE_STEP
    monkeypatch.undo()
    service, name = LocalService(side), new_fence(1).resource
    guard = side.guard(CLAIMS, service.client())
    highest = Fence(name, time.time_ns() // 1000 + 2**49, "a" * 22)
    side.call(guard.claim, highest)
    lease = side.call(side.coordinator(guards=[guard]).acquire, name, timeout=5)
    assert lease.fence.number > highest.number
    side.call(lease.release)


def test_a_coordinator_that_is_too_far_ahead_mints_nothing_above(side: HTTPSide) -> None:
    """Its counter is poisoned, or a clock is wrong: an operator's job. The lock is free again."""
    service, name = LocalService(side, max_ahead=3600), new_fence(1).resource
    guard = side.guard(CLAIMS, service.client())
    coordinator = side.coordinator(guards=[guard])
    refused = side.expect(MarkImplausible, coordinator.acquire, name, timeout=5)
    assert refused.ceiling == NOW + 3600 * 10**6
    assert side.call(coordinator.lock(name).holder) is None
    lease = side.call(side.coordinator().acquire, name, timeout=5)
    assert lease.fence.number < refused.number + 3600 * 10**6
    side.call(lease.release)


@pytest.mark.parametrize("seconds", [0.5, 86_400, 2**49 / 1e6])
def test_an_option_tightens_the_bound(side: HTTPSide, seconds: float) -> None:
    service = LocalService(side, max_ahead=seconds)
    guard = side.guard(CLAIMS, service.client())
    ceiling = NOW + int(seconds * 10**6)
    side.call(guard.claim, new_fence(ceiling))
    assert side.expect(MarkImplausible, guard.claim, new_fence(ceiling + 1)).ceiling == ceiling


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(ValueError, value) for value in (0, -1, 2**49 / 1e6 + 1, math.inf, math.nan)]
    + [(TypeError, value) for value in ("3600", True, b"1")],
)
def test_wrong_bounds(error: type[Exception], seconds: Any) -> None:
    makes: list[Callable[..., Any]] = [
        lambda: FencingMiddleware(None, AsyncMemoryGuard(), max_ahead=seconds),  # type: ignore[arg-type]
        lambda: WSGIFencingMiddleware(None, MemoryGuard(), max_ahead=seconds),  # type: ignore[arg-type]
    ]
    for make in makes:
        with pytest.raises(error, match="max_ahead"):
            make()


def test_an_implausible_mark_of_the_service_itself_is_no_answer() -> None:
    """Such as that of a lock which a handler takes: it is not about this request."""
    mine = new_fence(5)
    for other in (new_fence(6), Fence(mine.resource, 6, mine.token)):
        error = MarkImplausible(resource=other.resource, number=other.number, ceiling=1)
        assert problem_of(error, {"fencing.fences": (mine,)}) is None

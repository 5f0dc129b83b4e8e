"""Faults between a guard and a real object store, with obstore's own retries and time-outs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import unquote

import pytest

from examples.servers.objects import ObjectServer
from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from storage_guards import ObjectStoreGuard
from tests.support import wait_until
from tests.support.object_guards import Place, guard_on, probed
from tests.support.servers import Proxy
from tests.support.servers.http_proxy import HttpProxy
from tests.support.servers.http_rules import Request, Rule

R = "orders:1"
A, B = Fence(R, 1, "a" * 22), Fence(R, 2, "b" * 22)


def puts_a_pointer(request: Request) -> bool:
    return request.method == "PUT" and unquote(request.path).partition("?")[0].endswith("/pointer.json")


class Line:
    """A guard behind a proxy, and one beside it, on one bucket."""

    def __init__(self, place: Place, proxy: HttpProxy, timeout: float = 5.0, **options: Any) -> None:
        self.side, self.proxy = place.side, proxy
        server = place.server
        bucket = server.new_bucket()
        store = server.store(bucket=bucket, via=proxy, **options)
        self.guard = probed(guard_on(self.side, store, timeout=timeout), server)
        self.beside = probed(ObjectStoreGuard(server.store(bucket=bucket)), server)
        self.call(self.guard.claim, A)

    def call(self, method: Any, *args: Any, **options: Any) -> Any:
        return self.side.call(method, *args, **options)

    def give_up_soon(self) -> None:
        """From now on the guard waits less than a second."""
        self.guard._timeout = 0.6

    def publish(self) -> Any:
        return self.call(self.guard.publish, A, {"x": b"new"})

    @property
    def current(self) -> bytes | None:
        current = self.beside.read(R)
        return None if current is None else current.read("x")


@pytest.fixture
def line(place: Place, http_proxy: Callable[[ObjectServer], HttpProxy]) -> Line:
    return Line(place, http_proxy(place.server))


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["reply", "request", "412 though done", "409", "503", "503 though done", "late"])
def test_a_publication_survives_one_fault(line: Line, fault: str) -> None:
    if fault == "reply":
        rule = line.proxy.drop_reply_when(puts_a_pointer)
    elif fault == "request":
        rule = line.proxy.drop_request_when(puts_a_pointer)
    elif fault == "late":
        rule = line.proxy.hold_when(puts_a_pointer, times=1)
    else:
        rule = line.proxy.answer_when(puts_a_pointer, int(fault[:3]), carried_out="done" in fault)
    line.publish()
    assert rule.fired == 1
    assert line.current == b"new"
    mark = line.beside.mark(R)
    assert mark is not None
    assert mark.seq == 1, "it happened once"
    if fault == "late":
        line.beside.publish(A, {"x": b"later"})
        line.proxy.restore()
        assert rule.wait_landed(60)  # type: ignore[attr-defined]
        assert rule.statuses[0] >= 400  # type: ignore[attr-defined]
        assert line.current == b"later"


@pytest.mark.thorough
def test_a_late_put_never_lands_after_landed_returned_false(line: Line) -> None:
    line.give_up_soon()
    hold = line.proxy.hold_when(puts_a_pointer, times=None)
    error = line.side.expect(OutcomeUnknown, line.publish)
    assert line.beside.landed(error) is False
    line.proxy.restore()
    assert hold.wait_landed(60, times=hold.fired)
    assert all(status >= 400 for status in hold.statuses)
    assert line.current is None
    assert line.call(line.guard.landed, error) is False


def _is_quiet(hold: Rule) -> bool:
    """Whether no request comes for half a second. One that was sent before may still arrive."""
    asked = hold.fired
    time.sleep(0.5)
    return hold.fired == asked


@pytest.mark.thorough
def test_a_silent_store_times_out_and_gets_no_more_requests(line: Line) -> None:
    """obstore would go on for three minutes, by its defaults."""
    line.give_up_soon()
    hold = line.proxy.hold_when(lambda _: True, times=None)
    started = time.monotonic()
    line.side.expect(GuardUnavailable, line.guard.read, R)
    line.side.expect(GuardUnavailable, line.guard.claim, B, timeout=0.2)
    assert time.monotonic() - started < 90
    wait_until(partial(_is_quiet, hold))
    line.proxy.restore()
    assert line.current is None


@pytest.mark.thorough
def test_a_store_that_only_fails_is_unavailable(line: Line) -> None:
    line.give_up_soon()
    line.proxy.answer_when(lambda _: True, 503, times=None)
    started = time.monotonic()
    line.side.expect(GuardUnavailable, line.publish)
    assert time.monotonic() - started < 90, "obstore would go on for three minutes"


def test_a_missing_permission_is_an_error(line: Line) -> None:
    line.proxy.answer_when(lambda request: request.method == "PUT", 403, times=None)
    error = line.side.expect(GuardNotEnforceable, line.publish)
    assert "refused" in str(error)
    assert line.current is None


@pytest.mark.thorough
def test_a_refusal_after_a_lost_request_leaves_the_outcome_unknown(line: Line) -> None:
    """The credentials end between two attempts; of the first nothing is known."""
    line.give_up_soon()
    hold = line.proxy.hold_when(puts_a_pointer, times=1)
    line.proxy.answer_when(puts_a_pointer, 403, times=None)
    error = line.side.expect(OutcomeUnknown, line.publish)
    line.proxy.restore()
    assert hold.wait_landed(60)
    assert line.current == b"new"
    assert line.beside.landed(error) is True


@pytest.mark.parametrize("then", [401, 403])
def test_a_refused_retry_of_obstore_itself_is_no_refusal(line: Line, then: int) -> None:
    """The first attempt was carried out and answered 503; obstore repeated it, and that was refused."""
    line.proxy.answer_when(puts_a_pointer, 503, carried_out=True)
    line.proxy.answer_when(puts_a_pointer, then)
    line.publish()
    assert line.current == b"new"


def test_names_that_sound_like_errors(line: Line) -> None:
    """obstore's texts have the key in them."""
    for name in ("NoSuchBucket", "ContainerNotFound"):
        assert line.call(line.guard.get, f"{name}.csv") is None
        mine = Fence(name, 1, "a" * 22)
        line.call(line.guard.publish, mine, {name: b"1"}, claim=True)
        assert line.call(line.guard.read, name) is not None


def test_an_upload_that_breaks_off_publishes_nothing(line: Line) -> None:
    data = [bytes(2**20)] * 20
    line.proxy.answer_when(lambda request: len(request.body) > 2**20, 403, times=None)
    line.side.expect(GuardNotEnforceable, lambda: line.call(line.guard.publish, A, {"x": data}))
    assert line.current is None


@pytest.mark.thorough
def test_obstores_own_time_out_may_be_shorter(place: Place, http_proxy: Callable[[ObjectServer], HttpProxy]) -> None:
    line = Line(
        place,
        http_proxy(place.server),
        timeout=30.0,
        client_options={"timeout": timedelta(seconds=1)},
        retry_config={"max_retries": 0},
    )
    rule = line.proxy.hold_when(puts_a_pointer, times=1)
    line.publish()
    assert rule.fired == 1
    assert line.current == b"new"


@pytest.mark.thorough
def test_a_store_that_drips_costs_a_call_its_own_time(place: Place) -> None:
    """Each byte of its replies comes in time, and the whole never."""
    with Proxy("127.0.0.1", place.server.port) as network:
        guard = probed(guard_on(place.side, place.server.store(via=network), timeout=1.0), place.server)
        place.side.call(guard.claim, A, timeout=60)
        network.drip(replies=0.2)
        began = time.monotonic()
        place.side.expect(GuardUnavailable, guard.claim, B)
        assert time.monotonic() - began < 15, "the head of one reply alone takes longer"
        network.restore()
        place.side.call(guard.claim, B, timeout=60)

"""Numbers: the base that all locks share, floors, and what a repeated request gets."""

from __future__ import annotations

import inspect
import time
from typing import Any

import pytest

from fencing import MarkImplausible
from fencing.etcd import calls, keeping, plans, reading, requests
from fencing.etcd.calls import Refusal, reply_of
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import new_token
from fencing.kernel.retry import NoReply
from tests.support.etcd import EtcdSide, with_faults


def name() -> str:
    return f"numbers/{new_token()}"


def acquire(etcd: EtcdSide, coordinator: Any, resource: str, token: str, floor: int = 0) -> Any:
    backend = coordinator._backend
    deadline = backend.clock() + 30
    return etcd.plan(
        coordinator, backend.plan_acquire(resource, token, backend.settings, floor=floor, deadline=deadline)
    )


def release(etcd: EtcdSide, coordinator: Any, grant: Any) -> None:
    backend = coordinator._backend
    assert etcd.plan(coordinator, backend.plan_release(grant, backend.settings, deadline=backend.clock() + 30))


def test_a_floor_lifts_the_numbers_of_all_coordinators(etcd: EtcdSide) -> None:
    """The one that does not know of it yet reads the base again."""
    first, second, resource = etcd.coordinator(), etcd.coordinator(), name()
    grant = acquire(etcd, first, resource, new_token())
    release(etcd, first, grant)
    lifted = acquire(etcd, second, resource, new_token(), floor=grant.number + 1000)
    assert grant.number + 1000 < lifted.number < grant.number + 1500
    release(etcd, second, lifted)
    later = acquire(etcd, first, resource, new_token())
    assert lifted.number < later.number < lifted.number + 500
    release(etcd, first, later)


def test_a_repeated_request_gets_its_number_also_when_the_base_was_lifted(etcd: EtcdSide) -> None:
    """Also from another client, whose request takes nothing and keeps no lease."""
    first, second, resource, token = etcd.coordinator(), etcd.coordinator(), name(), new_token()
    grant = acquire(etcd, first, resource, token)
    other = acquire(etcd, second, name(), new_token(), floor=grant.number + 1000)
    assert acquire(etcd, first, resource, token).number == grant.number
    again = acquire(etcd, second, resource, token)
    assert again.number == grant.number
    release(etcd, second, again)
    release(etcd, second, other)
    assert etcd.keys(first, resource) == []


def test_a_waiter_whose_grant_got_no_answer_gets_the_same_number(etcd: EtcdSide) -> None:
    """Found by the exploration: its key was there before, so the repeated request could write the grant anew."""
    other, coordinator, resource = etcd.coordinator(), etcd.coordinator(), name()
    held = acquire(etcd, other, resource, new_token())
    backend, token = coordinator._backend, new_token()

    def queue(place: Any) -> Any:
        deadline = backend.clock() + 30
        plan = backend.plan_queue(resource, token, backend.settings, floor=0, deadline=deadline, place=place)
        return etcd.plan(coordinator, plan)

    place = queue(None).place
    release(etcd, other, held)
    faults = with_faults(coordinator)
    faults.lose("reply", 0, 1)
    grant = queue(place)
    assert len(faults.late) == 1
    assert etcd.call(other.holder, resource).number == grant.number
    [key] = etcd.keys(other, resource)
    assert key.modified - key.created == 2  # the release of the other, and one grant
    release(etcd, coordinator, grant)


@pytest.mark.thorough
def test_the_first_number_is_near_the_clock(fresh_etcd: Any) -> None:
    for asynchronous in (False, True):
        side = EtcdSide(asynchronous, [fresh_etcd().url])
        coordinator = side.coordinator()
        grant = acquire(side, coordinator, name(), new_token())
        assert abs(grant.number - time.time() * 1e6) < 600e6
        release(side, coordinator, grant)
        side.close()


def test_a_floor_that_is_implausible_lifts_nothing(etcd: EtcdSide) -> None:
    coordinator, resource = etcd.coordinator(), name()
    grant = acquire(etcd, coordinator, resource, new_token())
    release(etcd, coordinator, grant)
    with pytest.raises(MarkImplausible):
        acquire(etcd, coordinator, resource, new_token(), floor=2**52)
    after = acquire(etcd, coordinator, resource, new_token())
    assert grant.number < after.number < grant.number + 500
    release(etcd, coordinator, after)


def test_no_plan_reads_what_a_member_alone_knows() -> None:
    """A read that is serializable could be answered by an old leader behind a partition."""
    for module in (calls, keeping, plans, reading, requests):
        assert '"serializable"' not in inspect.getsource(module)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"header":{"revision":"7"}}\n', None),
        (200, b'{"result":{"ID":"1","TTL":"5"}}\n{"result":{"ID":"2"}}\n', None),
        (404, b'{"error":"requested lease not found","code":5}', Refusal("requested lease not found")),
        (
            401,
            b'{"error":"etcdserver: invalid auth token","code":16}',
            Refusal("etcdserver: invalid auth token", is_unauthenticated=True),
        ),
        (503, b'{"error":"etcdserver: no leader","code":14}', (True, False)),
        (503, b'{"error":"etcdserver: request timed out","code":14}', (True, True)),
        (429, b'{"error":"etcdserver: mvcc: database space exceeded","code":8}', (True, False)),
        (503, b'{"error":"etcdserver: rpc not supported for learner","code":14}', (True, False)),
        (502, b"bad gateway", (True, True)),
        (403, b'{"error":"etcdserver: permission denied","code":7}', "permission denied"),
        (
            400,
            b'{"error":"etcdserver: user name is empty","code":3}',
            Refusal("etcdserver: user name is empty", is_unauthenticated=True),
        ),
        (404, b"404 page not found\n", "no etcd of version 3.4"),
        (200, b"[]", "HTTP 200|\\[\\]"),
    ],
)
def test_what_an_answer_means(status: int, body: bytes, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(CoordinatorUnavailable, match=expected):
            reply_of(status, body, "http://a:2379")
    elif isinstance(expected, Refusal):
        assert reply_of(status, body, "http://a:2379").refused == expected
    elif expected is None:
        assert reply_of(status, body, "http://a:2379").refused is None
    else:
        with pytest.raises(NoReply) as raised:
            reply_of(status, body, "http://a:2379")
        assert (raised.value.is_answer, raised.value.may_have_run) == expected


@pytest.mark.parametrize("value", ["", "seven", "7 v2", "007", "9" * 5000, "-7", "7.0", "\u0667", str(2**53)])
def test_a_base_that_is_no_number_is_named(value: str) -> None:
    """It was a bare ValueError."""
    with pytest.raises(CoordinatorUnavailable, match="fencing/1/base at etcd holds no number of this version"):
        requests.base_in(calls.Key("fencing/1/base", value, 1, 1, 0))

"""Errors are outcomes with fields, and travel between processes."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

import fencing
from fencing import Fence, FencingError, Mark
from fencing.kernel.errors import (
    AlreadyDone,
    CoordinatorUnavailable,
    GuardNotEnforceable,
    GuardUnavailable,
    LeaseLost,
    LossReason,
    MarkImplausible,
    NotAcquired,
    OutcomeUnknown,
    StaleFence,
    StaleRead,
    TooOld,
    UnclaimedFence,
)

FENCE = Fence("orders:42", 7, "a" * 22)
NEWER = Mark(9, "b" * 22)

EVERY: list[FencingError] = [
    NotAcquired(resource="orders:42", reason="held", waited=1.5, owner="host:1"),
    NotAcquired(resource="orders:42", reason="superseded", waited=1.5),
    NotAcquired(resource="orders:42", reason="late", waited=1.5),
    NotAcquired(resource="orders:42", reason="full", waited=0.1, owner="host:1", waiters=100),
    NotAcquired(resource="orders:42", reason="held", waited=1.5, owner="host:1", kept_by="waiter"),
    NotAcquired(resource="orders:42", reason="full", waited=0.1, waiters=100, kept_by="foreign"),
    *(
        LeaseLost(fence=FENCE, reason=reason)
        for reason in ("released", "detached", "forked", "expired", "gone", "stale")
    ),
    StaleFence(fence=FENCE, mark=NEWER),
    StaleFence(fence=FENCE, mark=Mark(7, "b" * 22)),
    StaleFence(fence=FENCE, mark=None, floor=8),
    UnclaimedFence(fence=FENCE, mark=None),
    UnclaimedFence(fence=FENCE, mark=Mark(3, "b" * 22)),
    UnclaimedFence(fence=FENCE, mark=Mark(7, "a" * 22, 3), acknowledged=5),
    AlreadyDone(resource="orders:42", key="2026-11-23", number=7, at=datetime(2026, 11, 23, 7, 5, tzinfo=UTC)),
    AlreadyDone(resource="orders:42", key="x", number=7, at=datetime(2026, 11, 23, tzinfo=UTC), is_own=True),
    TooOld(resource="orders:42", key="2026-11-23", floor="2026-11-24"),
    StaleRead(resource="orders:42"),
    StaleRead(resource="orders:42", key="reports/today.csv"),
    OutcomeUnknown(fence=FENCE, seq=3, transaction="811"),
    OutcomeUnknown(fence=FENCE, seq=3, recent_writes="c" * 16, key="reports/today.csv"),
    CoordinatorUnavailable("no answer", resource="orders:42", address="localhost:6379"),
    GuardUnavailable("no answer", resource="orders:42"),
    GuardNotEnforceable("the engine is in autocommit"),
    MarkImplausible(resource="orders:42", number=2**53 - 1, ceiling=2**52),
]


def test_the_list_of_errors_is_complete() -> None:
    def below(cls: type[FencingError]) -> set[type[FencingError]]:
        found = {cls}.union(*map(below, cls.__subclasses__()))
        return {each for each in found if each.__module__ == "fencing"}  # compat mixes in redis-py's

    assert {type(error) for error in EVERY} == below(FencingError) - {FencingError}
    assert {cls.__name__ for cls in below(FencingError)} <= set(fencing.__all__)


@pytest.mark.parametrize("reason", ["expired", "gone", "stale"])
def test_the_error_of_a_completed_block_does_not_say_to_repeat_it(reason: LossReason) -> None:
    assert str(LeaseLost(fence=FENCE, reason=reason)).endswith("stop, and acquire again")
    completed = str(LeaseLost(fence=FENCE, reason=reason, completed=True))
    assert "acquire again" not in completed
    assert completed.endswith("the writes that guards acknowledged count, so do not repeat them")


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_fields(error: FencingError) -> None:
    error.resource_note = "added by the caller"  # type: ignore[attr-defined]
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_knows_no_backend_and_never_shows_a_token(error: FencingError) -> None:
    assert type(error).__mro__[1:] == (FencingError, Exception, BaseException, object)
    assert "a" * 22 not in str(error)
    assert "b" * 22 not in str(error)


@pytest.mark.parametrize("error", EVERY[:-5], ids=lambda error: type(error).__name__)
def test_an_error_names_the_resource(error: FencingError) -> None:
    assert "'orders:42'" in str(error)


@pytest.mark.parametrize(
    ("kept_by", "owner", "says"),
    [
        (None, "host:1", "'r' is held by host:1"),
        (None, None, "'r' is held by an unknown holder"),
        ("foreign", None, "'r' is held by an unknown holder (another library's lock, or other data under that name?)"),
        ("waiter", "host:1", "'r' goes to an earlier waiter first, host:1"),
        ("waiter", None, "'r' goes to an earlier waiter first"),
    ],
)
def test_a_refusal_says_who_keeps_the_caller_from_the_lock(kept_by: Any, owner: str | None, says: str) -> None:
    error = NotAcquired(resource="r", reason="held", waited=1.5, owner=owner, kept_by=kept_by)
    assert str(error).startswith(f"{says}; it was not acquired within 1.50 s; try later")
    assert ("force_release()" in str(error)) is (owner is None and kept_by != "waiter")
    full = NotAcquired(resource="r", reason="full", waited=0.1, owner=owner, waiters=3, kept_by=kept_by)
    state = says if owner or kept_by else "'r' is not free"
    assert str(full) == f"{state}, and 3 wait for it, as many as max_waiters allows; try later"

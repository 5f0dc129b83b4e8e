"""Errors are outcomes with fields, and travel between processes."""

from __future__ import annotations

import pickle

import pytest

import fencing
from fencing import Fence, FencingError, Mark
from fencing.kernel.errors import (
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
    UnclaimedFence,
)

FENCE = Fence("orders:42", 7, "a" * 22)
NEWER = Mark(9, "b" * 22)

EVERY: list[FencingError] = [
    NotAcquired(resource="orders:42", reason="held", waited=1.5, owner="host:1"),
    NotAcquired(resource="orders:42", reason="superseded", waited=1.5),
    NotAcquired(resource="orders:42", reason="late", waited=1.5),
    NotAcquired(resource="orders:42", reason="full", waited=0.1, owner="host:1", waiters=100),
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

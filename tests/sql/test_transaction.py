"""The state machine of a guarded transaction: what an error, or an interruption, means at each point, whatever the
driver."""

from __future__ import annotations

import asyncio

import pytest

from fencing import Fence, FencingError, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown
from storage_guards.sql.errors import ErrorContext
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.transaction import GuardedTransaction

MINE = Fence("orders:1", 5, "a" * 22)


class Broken(Exception):
    """The driver's error."""


class SoftTimeLimit(Exception):
    """Raised by a signal handler."""


class Errors(ErrorContext):
    kinds = of_driver = (Broken,)

    def explain(self, error: Exception) -> Exception:
        return self.unavailable("explained")


class Transaction(GuardedTransaction[object]):
    refused = False

    def reach(self, point: str) -> None:
        """As a driver's transaction does, up to ``point``."""
        if point == "connecting":
            return
        self._admitted = [Admitted(MINE, 1, "", None)]
        if point == "admitted":
            return
        self._committing = True
        self._committed = point == "committed"

    def _commit_was_refused(self, error: BaseException) -> bool:
        return self.refused


def ended(point: str, error: BaseException, *, writes: int = 1, refused: bool = False) -> BaseException | None:
    """What comes out of a transaction that meets ``error`` at ``point``; None: nothing."""
    transaction = Transaction(object(), Errors([MINE], 1.0), claim=False, writes=writes)
    transaction.refused = refused
    try:
        with transaction:
            transaction.reach(point)
            raise error
    except BaseException as raised:  # noqa: BLE001 - whatever it is
        return raised
    return None


def test_before_it_is_admitted_nothing_was_written() -> None:
    error = Broken()
    meaning = ended("connecting", error)
    assert isinstance(meaning, GuardUnavailable)
    assert meaning.__cause__ is error


def test_the_blocks_own_error_passes() -> None:
    error = Broken()
    assert ended("admitted", error) is error


def test_a_commit_without_an_answer_is_unknown() -> None:
    error = Broken()
    meaning = ended("committing", error)
    assert isinstance(meaning, OutcomeUnknown)
    assert meaning.__cause__ is error


def test_a_refused_commit_says_so_itself() -> None:
    error = Broken()
    assert ended("committing", error, refused=True) is error


def test_a_commit_without_an_answer_of_a_mere_claim_is_repeated() -> None:
    assert isinstance(ended("committing", Broken(), writes=0), GuardUnavailable)


def test_after_the_commit_nothing_matters_any_more() -> None:
    assert ended("committed", Broken()) is None


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
def test_an_interruption_stays_what_it_is(interruption: type[BaseException]) -> None:
    """Without an OutcomeUnknown as its cause it says that nothing was written."""
    for point, unknown in (("admitted", False), ("committing", True), ("committed", True)):
        error = interruption()
        assert ended(point, error) is error
        assert isinstance(error.__cause__, OutcomeUnknown) is unknown, point
    for point in ("committing", "committed"):
        error = interruption()
        assert ended(point, error, writes=0) is error
        assert error.__cause__ is None


@pytest.mark.parametrize("point", ["committing", "committed"])
def test_an_exception_of_a_signal_handler_is_no_answer(point: str) -> None:
    """Celery's SoftTimeLimitExceeded, say: it came out bare, although the write was committed."""
    for error in (SoftTimeLimit(), TimeoutError("mine"), FencingError("mine")):
        error.__cause__ = KeyError("its own")
        meaning = ended(point, error)
        assert isinstance(meaning, OutcomeUnknown)
        assert meaning.__cause__ is error
    assert ended("admitted", error) is error


def test_the_cause_of_an_interruption_is_kept() -> None:
    error = KeyboardInterrupt()
    error.__cause__ = cause = KeyError("its own")
    assert ended("committing", error) is error
    assert error.__cause__ is not None
    assert error.__cause__.__cause__ is cause


def test_the_blocks_error_is_not_masked_by_what_follows() -> None:
    transaction = Transaction(object(), Errors([MINE], 1.0), claim=False)
    own = ValueError("the block's")
    with pytest.raises(ValueError, match="the block's") as raised, transaction:  # noqa: PT012 - a block
        transaction.reach("admitted")
        transaction.body_failed(own)
        raise Broken  # by the rollback
    assert raised.value is own


def test_a_refusal_is_no_unknown_outcome() -> None:
    transaction = Transaction(object(), Errors([MINE], 1.0), claim=False)
    with pytest.raises(GuardNotEnforceable, match="not the checked one"), transaction:  # noqa: PT012 - a block
        transaction.reach("committing")
        transaction.refuse("not the checked one")


def test_within_itself_it_is_refused() -> None:
    marks = object()
    first, second = (Transaction(marks, Errors([MINE], 1.0), claim=False) for _ in range(2))
    joined = Transaction(marks, Errors([MINE], 1.0), claim=False, joined=True)
    with first:
        with pytest.raises(RuntimeError, match="would wait for itself"), second:
            pass
        with joined:
            pass
    with second:
        pass


def test_one_that_was_interrupted_as_it_began_is_forgotten() -> None:
    """Any line may raise: between its entry and the block, say, where nothing leaves it."""
    marks = object()
    transaction = Transaction(marks, Errors([MINE], 1.0), claim=False)
    transaction.__enter__()
    del transaction
    begun = False
    with Transaction(marks, Errors([MINE], 1.0), claim=False):
        begun = True
    assert begun


def test_an_error_of_this_library_passes() -> None:
    for point in ("connecting", "admitted"):
        error = FencingError("x")
        assert ended(point, error) is error

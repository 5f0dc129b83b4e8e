"""What a database's error means to a guard's own statements, whatever the driver. No driver is known here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

from fencing.kernel.errors import FencingError, GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence
from fencing.sql.errors import (
    ALREADY_BEGUN,
    LOST_RACE,
    NO_PRIVILEGE,
    RAISED,
    READ_ONLY,
    UNDEFINED_TABLE,
    WAITED_TOO_LONG,
)
from storage_guards.sql.outcome import TABLE

NOTHING_WRITTEN = "no data was written, retry"
ASK_AGAIN = "the outcome is still open, ask again"

ROUNDS = 3
"""How often a verdict is sought while claims of others come between the statement and the look at the mark."""


def keeps_changing(fence: Fence, then: str = "retry") -> GuardUnavailable:
    """The error where a verdict was sought in vain."""
    return GuardUnavailable(
        f"the mark of {fence.resource!r} changed at each of {ROUNDS} attempts; {then}", resource=fence.resource
    )


class ErrorContext(ABC):
    """Around statements of the guard's own, connecting included: what a driver's error there is to the caller.

    Args:
        fences: what was claimed or checked; may be empty.
        seconds: how long a statement is allowed to wait.
        then: what follows from an error that may pass.
    """

    kinds: ClassVar[tuple[type[Exception], ...]]
    """What the driver, or the way to the database, fails with."""
    connected = False
    """Whether there is a connection yet; for a driver whose errors do not say."""

    def __init__(self, fences: Sequence[Fence], seconds: float, then: str = NOTHING_WRITTEN) -> None:
        self.fences = fences
        self.seconds = seconds
        self.then = then

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self.kinds):
            meaning = self.explain(error)
            if meaning is not error:
                raise meaning from error

    @abstractmethod
    def explain(self, error: Exception) -> Exception:
        """The error to raise instead of ``error``, one of ``kinds``, which the guard's own statements met.

        Returns:
            ``GuardUnavailable`` (retry) or ``GuardNotEnforceable`` (change the set-up); ``error`` itself where neither
            is known to be right.
        """

    @property
    def about(self) -> str:
        """What it was about, for messages."""
        if not self.fences:
            return f"the table {TABLE}"
        names = ", ".join(repr(fence.resource) for fence in self.fences)
        return f"the mark{'s' * (len(self.fences) > 1)} of {names}"

    def unavailable(self, text: str) -> GuardUnavailable:
        """The error of what may pass."""
        resource = self.fences[0].resource if len(self.fences) == 1 else None
        return GuardUnavailable(f"{text}; {self.then}", resource=resource)

    def unanswered(self, said: str, *, reached: bool) -> GuardUnavailable:
        """The database did not answer, though it was ``reached``, or was not."""
        hint = "" if reached else "; is it running, and are its address, its name, user and password right?"
        return self.unavailable(f"the database did not answer about {self.about}: {said}{hint}")

    def refused(self, said: str) -> GuardNotEnforceable:
        """The database will not have the statement."""
        return GuardNotEnforceable(f"the database refused the guard's statement on {TABLE}: {said}")

    def of_state(self, state: str | None, said: str) -> FencingError | None:
        """The error that a state stands for by itself; None: none.

        Args:
            state: PostgreSQL's.
            said: the error's first line.
        """
        if state == UNDEFINED_TABLE:
            return GuardNotEnforceable(f"the table {TABLE} is missing: call guard.create_tables() once")
        if state == READ_ONLY:
            return GuardNotEnforceable(
                f"this connection is read-only; a guard needs the primary, not a replica ({said})"
            )
        if state == ALREADY_BEGUN:
            return GuardNotEnforceable(
                f"the connection was in a transaction before the guard began its own: something executes statements "
                f"when the pool hands connections out ({said})"
            )
        if state == NO_PRIVILEGE:
            return GuardNotEnforceable(
                f"the database refused the guard's statement: {said}; use a role that has this right, or grant "
                f"it (where the database enforces, enforce() grants what guards need, and the owner prunes)"
            )
        if state == RAISED:  # by what enforcement.py executes
            return GuardNotEnforceable(said)
        if state in WAITED_TOO_LONG:
            return self.unavailable(
                f"{self.about} stayed locked by another transaction for {self.seconds:.3g} s (a begin around this one?)"
            )
        if state in LOST_RACE:
            return self.unavailable(f"{self.about} was changed by another transaction at the same time")
        return None

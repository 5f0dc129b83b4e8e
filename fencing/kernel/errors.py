"""What can go wrong, by what the caller does next. One tree::

    FencingError
    ├── NotAcquired              try later: somebody else holds the lock
    ├── LeaseLost                stop: the lease is over, on this side
    ├── StaleFence               stop: the storage has admitted a newer holder
    ├── StaleRead                read again: what was to be replaced, or read, has been replaced since
    ├── UnclaimedFence           pass guards=[guard] to the lock, or claim first
    ├── OutcomeUnknown           the write may or may not have happened: guard.landed(error) says which
    ├── CoordinatorUnavailable   retry: what mints fences did not answer
    ├── GuardUnavailable         retry: the storage did not answer, or its mark stayed locked
    ├── GuardNotEnforceable      change the set-up: this storage, used so, cannot enforce the rules
    └── MarkImplausible          an operator's job: a number that no history can have minted

Errors are outcomes with fields. They can be pickled, fields, cause text and notes included. Misuse of the API is a
plain ``TypeError`` or ``ValueError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from fencing.kernel.fence import Fence, Mark


class FencingError(Exception):
    """The root of all errors of this library."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[FencingError], args: tuple[Any, ...], fields: dict[str, Any]) -> FencingError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class NotAcquired(FencingError):
    """The lock was not acquired in the time given. Try later.

    Attributes:
        resource: what was to be locked.
        reason: ``"held"``: somebody else holds it; ``"superseded"``: it was granted, but five times in a row the guards
            had admitted a newer fence (does something hand out fences for this resource that are not ours?).
        waited: seconds spent.
        owner: the label of who holds it, where that is known.
    """

    def __init__(
        self, *, resource: str, reason: Literal["held", "superseded"], waited: float, owner: str | None = None
    ) -> None:
        self.resource = resource
        self.reason = reason
        self.waited = waited
        self.owner = owner
        if reason == "held":
            who = f" by {owner}" if owner else ""
            text = f"{resource!r} is held{who}; not acquired within {waited:.2f} s; try later"
        else:
            text = (
                f"{resource!r} was granted, but the guards had admitted newer fences each time; given back; try later"
            )
        super().__init__(text)


LossReason = Literal["released", "detached", "forked", "expired", "gone", "stale"]

_STOP = "stop, and acquire again"
_COMPLETED = "the block had run to its end by then: the writes that guards acknowledged count, do not repeat them"

_LOSS = {
    "released": ("was released", "acquire the lock again"),
    "detached": ("was detached", "only who adopts its fence may go on with it"),
    "forked": ("belongs to the parent process", "acquire one of your own in this process"),
    "expired": ("has run past its deadline (renewal was off, over its max_lifetime, or got no answer)", _STOP),
    "gone": ("is gone from the coordinator (expired, taken over, flushed, or overwritten)", _STOP),
    "stale": ("was superseded at the storage by a newer holder", _STOP),
}


class LeaseLost(FencingError):
    """This lease is over. Stop what was done under it, and acquire again.

    That says nothing of what was written under it: each write that a guard acknowledged counts.

    Attributes:
        fence: the lease's fence.
        reason: ``"released"``, ``"detached"`` (given up here), ``"forked"`` (the parent's), ``"expired"`` (its deadline
            passed), ``"gone"`` (the coordinator no longer has it), ``"stale"`` (a storage has admitted a newer fence).
        completed: the block under ``hold`` had run to its end when the loss was noticed. Look at what guards
            acknowledged before doing it again.
    """

    def __init__(self, *, fence: Fence, reason: LossReason, completed: bool = False) -> None:
        self.fence = fence
        self.reason = reason
        self.completed = completed
        what, then = _LOSS[reason]
        super().__init__(
            f"the lease on {fence.resource!r} (fence {fence.number}) {what}; {_COMPLETED if completed else then}"
        )


class StaleFence(FencingError):
    """The storage has admitted a newer fence: this holder is late, its write was refused, and it must stop.

    Attributes:
        fence: the one refused.
        mark: the newest admitted; None where the mark was pruned and ``floor`` refused the claim.
        floor: see ``mark``.
    """

    def __init__(self, *, fence: Fence, mark: Mark | None, floor: int | None = None) -> None:
        self.fence = fence
        self.mark = mark
        self.floor = floor
        if mark is None:
            newer = f"marks up to {floor} were pruned, so newer ones may have been admitted"
        elif mark.number == fence.number:
            newer = f"another holder with the same number {mark.number} was admitted first"
        else:
            newer = f"a newer one, {mark.number}, was admitted"
        super().__init__(f"fence {fence.number} of {fence.resource!r} is stale: {newer}; stop, and acquire again")


class StaleRead(FencingError):
    """What was read before has been replaced since, so nothing was written from it. Read again, and begin anew.

    The fence may still be the newest: another thread under it, or a writer past the guard, was faster.

    Attributes:
        resource: what it belongs to.
        key: of the object in the storage, where it is about one.
    """

    def __init__(self, *, resource: str, key: str | None = None) -> None:
        self.resource = resource
        self.key = key
        what = f"{key!r} of {resource!r}" if key else f"{resource!r}"
        super().__init__(f"what was read of {what} has been replaced since; read it again")


class UnclaimedFence(FencingError):
    """This fence was never claimed at this storage, so what its holder read may be old. Nothing was written.

    Either the lock was not told of the guard (pass ``guards=[guard]``, or claim before reading), or the storage lost
    the claim in a failover or a restore (then throw away what was read, and acquire again).

    Attributes:
        fence: the one refused.
        mark: what the storage holds; None: nothing.
    """

    def __init__(self, *, fence: Fence, mark: Mark | None) -> None:
        self.fence = fence
        self.mark = mark
        has = "no mark" if mark is None else f"only {mark.number}"
        super().__init__(
            f"fence {fence.number} of {fence.resource!r} was not claimed at this storage, which has {has}: "
            f"pass guards=[guard] to the lock, or claim before you read"
        )


class OutcomeUnknown(FencingError):
    """The reply to a write or its commit was lost: it may have happened, or not. Ask ``guard.landed(error)``; where
    that is None, read the data under a lease before writing again.

    Attributes:
        fence: under which the write was sent.
        seq: the sequence number the storage gave it. If the write did not happen, the next one gets the same number:
            so a mark that has reached it proves nothing.
        transaction: the database's transaction id, where it has one. For logs: a PostgreSQL that crashed or failed
            over gives the ids of what it lost to other transactions.
        recent_writes: what the mark would remember of its last writes, this one first, if it happened. For ``landed``.
        key: of the object that was written in place, in an object store.
    """

    def __init__(
        self,
        *,
        fence: Fence,
        seq: int,
        transaction: str | None = None,
        recent_writes: str = "",
        key: str | None = None,
    ) -> None:
        self.fence = fence
        self.seq = seq
        self.transaction = transaction
        self.recent_writes = recent_writes
        self.key = key
        super().__init__(
            f"the reply to a write under fence {fence.number} of {fence.resource!r} was lost: it may have happened; "
            f"ask guard.landed(error), or read the data under a lease before writing it again"
        )


class CoordinatorUnavailable(FencingError):
    """The coordinator did not answer, or refused to work. Retry later; look at the cause if it stays.

    Attributes:
        resource: what the request was about; None: nothing in particular.
        address: where the coordinator was looked for.
    """

    def __init__(self, text: str, *, resource: str | None = None, address: str | None = None) -> None:
        self.resource = resource
        self.address = address
        super().__init__(text)


class GuardUnavailable(FencingError):
    """The storage did not answer, or its mark stayed locked by another transaction. Nothing was written; retry.

    Attributes:
        resource: what the request was about; None: nothing in particular.
    """

    def __init__(self, text: str, *, resource: str | None = None) -> None:
        self.resource = resource
        super().__init__(text)


class GuardNotEnforceable(FencingError):
    """This storage, set up or used like this, cannot enforce the rules, so the guard refuses. The text says what to
    change."""


class MarkImplausible(FencingError):
    """A mark or a counter is so high that no history can have minted it. Nothing was minted; an operator has to look.

    A number grows by one a grant and follows the clock in microseconds. One poisoned mark must not lift a counter that
    other names share. Correct the mark (or the counter) by hand once it is clear where it came from.

    Attributes:
        resource: whose mark or counter it is.
        number: the implausible one.
        ceiling: the highest that would have been accepted.
    """

    def __init__(self, *, resource: str, number: int, ceiling: int) -> None:
        self.resource = resource
        self.number = number
        self.ceiling = ceiling
        super().__init__(
            f"no fence can be minted for {resource!r} above {number}: the highest plausible number is {ceiling}; "
            f"an operator has to find out who wrote it"
        )

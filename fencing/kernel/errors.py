"""The errors, ordered by what the caller does next. One tree::

    FencingError
    ├── NotAcquired              try later: another holder has the lock
    ├── LeaseLost                stop: the lease is over
    ├── StaleFence               stop: the storage has admitted a newer holder
    ├── StaleRead                read again: the data has been replaced since it was read
    ├── UnclaimedFence           pass guards=[guard] to the lock, or claim first
    ├── AlreadyDone              go on without it: this was done before
    ├── TooOld                   read the data: whether this was done is not known any more
    ├── OutcomeUnknown           call guard.landed(error): the write may or may not have happened
    ├── CoordinatorUnavailable   retry: the coordinator did not answer
    ├── GuardUnavailable         retry: the storage did not answer, or its mark stayed locked
    ├── GuardNotEnforceable      change the set-up: this storage, used like this, cannot enforce the rules
    └── MarkImplausible          tell an operator: no history can have minted this number

Each error has fields. Errors can be pickled, with fields, cause text and notes. Misuse of the API is a plain
``TypeError`` or ``ValueError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from fencing.kernel.fence import Fence, Mark

CLOSED = "this coordinator was closed; make a new one"
"""What a RuntimeError says of a coordinator that is used after its closing."""


class FencingError(Exception):
    """The root of all errors of this library."""

    __module__ = "fencing"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[FencingError], args: tuple[Any, ...], fields: dict[str, Any]) -> FencingError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


NotAcquiredReason = Literal["held", "superseded", "late", "unreplicated", "full"]
KeptBy = Literal["waiter", "foreign"]


class NotAcquired(FencingError):
    """A failure to acquire the lock within the time-out. Try later.

    Attributes:
        resource: the resource of the lock.
        reason: ``"held"``: another holder has it. ``"superseded"``: it was granted five times in a row, but each time
            a guard had admitted a newer fence. Check whether another system mints fences for this resource.
            ``"late"``: of several locks, this one was not tried, because the time was up. ``"unreplicated"``: fewer
            replicas have the grant than the coordinator's option asks for, so it was given back. ``"full"``: as many
            wait for it as the lock's ``max_waiters`` allows, so the call did not wait.
        waited: seconds since the call.
        owner: the label of the holder, or of the earlier waiter; None: not known.
        kept_by: ``"waiter"``: an earlier waiter comes first. ``"foreign"``: another program's lock, or other data under
            that name, has it. None: a holder has it, or that is not known.
        held_by_this: ``"thread"`` or ``"task"`` if the caller itself holds it, in a block around the call. Pass the
            lease on, or use ``lock.reentrant()``. ``"process"``: another thread or task of this process, or another
            call of this one, has it from the same coordinator. If that waits for this call, pass it the lease. None:
            another process holds it, or that is not known.
        replicas: with ``"unreplicated"``, how many replicas there were, or confirmed the grant; else None.
        waiters: with ``"full"``, how many waited; else None.
        slots: how many slots there were, if the call was for any of them; else None.
    """

    __module__ = "fencing"

    def __init__(
        self,
        *,
        resource: str,
        reason: NotAcquiredReason,
        waited: float,
        owner: str | None = None,
        held_by_this: Literal["thread", "task", "process"] | None = None,
        replicas: int | None = None,
        waiters: int | None = None,
        kept_by: KeptBy | None = None,
        slots: int | None = None,
    ) -> None:
        self.resource = resource
        self.reason = reason
        self.kept_by = kept_by
        self.waited = waited
        self.owner = owner
        self.held_by_this = held_by_this
        self.replicas = replicas
        self.waiters = waiters
        self.slots = slots
        if slots is not None and held_by_this is not None:
            text = (
                f"all {slots} slots of {resource!r} are held by this very {held_by_this}, in blocks around this one; "
                f"none was acquired within {waited:.2f} s; leave one of the blocks, or pass its lease on"
            )
        elif slots is not None:
            text = (
                f"all {slots} slots of {resource!r} are held, one by {owner or 'a holder that is not known'}; none was "
                f"acquired within {waited:.2f} s; try later"
            )
        elif held_by_this == "process":
            text = (
                f"{resource!r} is held by this very process, whose label is {owner}; it was not acquired within "
                f"{waited:.2f} s; try later, and pass the lease on if its holder waits for this call"
            )
        elif held_by_this is not None:
            text = (
                f"{resource!r} is held by this very {held_by_this}, in a block around this one; it was not acquired "
                f"within {waited:.2f} s; pass the lease on, or use lock.reentrant() for both blocks"
            )
        elif reason == "held":
            then = "try later" if owner or kept_by == "waiter" else _TRY_OR_FREE
            text = f"{resource!r} {_state(owner, kept_by)}; it was not acquired within {waited:.2f} s; {then}"
        elif reason == "full":
            state = _state(owner, kept_by) if owner or kept_by else "is not free"
            text = f"{resource!r} {state}, and {waiters} wait for it, as many as max_waiters allows; try later"
        elif reason == "late":
            text = f"{resource!r} was not tried: after the other locks of the call {waited:.2f} s were over; try later"
        elif reason == "unreplicated":
            text = (
                f"{resource!r} was not acquired: only {replicas} of the replicas that were asked for had the grant; "
                f"the lock is free again; try later, and check the replicas"
            )
        else:
            text = (
                f"{resource!r} was granted, but each time the guards had admitted a newer fence; "
                f"the lock was given back; try later"
            )
        super().__init__(text)


_TRY_OR_FREE = "try later; if nothing frees it, force_release() does, or choose another name"


def _state(owner: str | None, kept_by: KeptBy | None) -> str:
    """Say what keeps a caller from a lock."""
    if kept_by == "waiter":
        return f"goes to an earlier waiter first, {owner}" if owner else "goes to an earlier waiter first"
    if owner:
        return f"is held by {owner}"
    guess = " (another library's lock, or other data under that name?)" if kept_by == "foreign" else ""
    return f"is held by an unknown holder{guess}"


LossReason = Literal["released", "detached", "forked", "reclaimed", "expired", "gone", "stale"]

_STOP = "stop, and acquire again"
_COMPLETED = "the block had already run to its end: the writes that guards acknowledged count, so do not repeat them"

_LOSS = {
    "released": ("was released", "", "acquire the lock again"),
    "detached": ("was detached", "", "the process that adopts its fence may continue"),
    "forked": ("belongs to the parent process", "", "acquire one of your own in this process"),
    "reclaimed": (
        "was reclaimed, which ended this fence",
        "",
        "use the lease that reclaim() returned; if it raised an error, call it again",
    ),
    "expired": ("has passed its deadline", " (renewal was off, over its max_lifetime, or got no answer)", _STOP),
    "gone": ("is gone from the coordinator", " (expired, taken over, flushed, or overwritten)", _STOP),
    "stale": ("was superseded at the storage", " by a newer holder", _STOP),
}
"""For each reason: the event, what may have caused it if that is not known, and what to do next."""


class LeaseLost(FencingError):
    """The loss or end of a lease. Stop the work under it, and acquire again.

    Each write that a guard acknowledged still counts.

    Attributes:
        fence: the lease's fence.
        reason: ``"released"``. ``"detached"``: for another process to adopt. ``"forked"``: it is the parent's.
            ``"reclaimed"``: the lease that ``reclaim()`` returned has its place. ``"expired"``: its deadline passed.
            ``"gone"``: the coordinator no longer has it. ``"stale"``: a storage has admitted a newer fence.
        completed: the block under ``hold`` had run to its end before the loss was noticed. Check what the guards
            acknowledged before you repeat the work.
        cause: what caused it, in words for people; None: not known.
    """

    __module__ = "fencing"

    def __init__(self, *, fence: Fence, reason: LossReason, completed: bool = False, cause: str | None = None) -> None:
        self.fence = fence
        self.reason = reason
        self.completed = completed
        self.cause = cause
        event, guesses, advice = _LOSS[reason]
        why = guesses if cause is None else f": {cause}"
        super().__init__(
            f"the lease on {fence.resource!r} (fence {fence.number}) {event}{why}; "
            f"{_COMPLETED if completed else advice}"
        )


class StaleFence(FencingError):
    """A refusal of a late holder: the storage has admitted a newer fence. Nothing was written; stop.

    Attributes:
        fence: the refused fence.
        mark: the newest admitted fence; None: the mark was pruned, and ``floor`` refused the claim.
        floor: the highest number among pruned marks; None: there is a mark.
    """

    __module__ = "fencing"

    def __init__(self, *, fence: Fence, mark: Mark | None, floor: int | None = None) -> None:
        self.fence = fence
        self.mark = mark
        self.floor = floor
        if mark is None:
            newer = f"marks up to {floor} were pruned, so a newer fence may have been admitted"
        elif mark.readers > mark.number:
            newer = f"the newer reader {mark.readers} was admitted"
        elif mark.number == fence.number:
            newer = f"another holder with the same number {mark.number} was admitted first"
        else:
            newer = f"the newer fence {mark.number} was admitted"
        super().__init__(f"fence {fence.number} of {fence.resource!r} is stale: {newer}; stop, and acquire again")


class StaleRead(FencingError):
    """A refusal because the data has been replaced since it was read. Nothing was written; read again, and start over.

    The fence may still be the newest: another thread under the same fence, or a writer that bypasses the guard, was
    faster.

    Attributes:
        resource: the resource that the data belongs to.
        key: the key of the object in the storage; None: the error is not about one object.
        hint: what the program should do otherwise, where that is known; part of the message.
    """

    __module__ = "fencing"

    def __init__(self, *, resource: str, key: str | None = None, hint: str | None = None) -> None:
        self.resource = resource
        self.key = key
        self.hint = hint
        subject = f"{key!r} of {resource!r}" if key else f"{resource!r}"
        more = f"; {hint}" if hint else ""
        super().__init__(f"{subject} has been replaced since it was read; read it again{more}")


class UnclaimedFence(FencingError):
    """A refusal of a fence whose claim this storage does not have, or no longer has. Nothing was written.

    The fence's holder may have read old data. Either the lock does not know the guard: pass ``guards=[guard]``, or
    claim before reading. Or a restore or a failover took the storage back in time. It lost the claim, or a write that
    it had acknowledged under the claim: discard what was read, and acquire again.

    Attributes:
        fence: the refused fence.
        mark: the storage's mark; None: there is none.
        acknowledged: the seq that the storage had already acknowledged under this fence, before it went back in time.
            None: the mark is not of this fence.
    """

    __module__ = "fencing"

    def __init__(self, *, fence: Fence, mark: Mark | None, acknowledged: int | None = None) -> None:
        self.fence = fence
        self.mark = mark
        self.acknowledged = acknowledged
        holder = f"fence {fence.number} of {fence.resource!r}"
        if acknowledged is not None:
            super().__init__(
                f"the storage has lost what it had acknowledged under {holder}: it was restored, or a replica that "
                f"lagged behind took over; discard what was read, and acquire again"
            )
            return
        has = "no mark" if mark is None else f"only {mark.number}"
        super().__init__(
            f"{holder} was not claimed at this storage, which has {has}: "
            f"pass guards=[guard] to the lock, or claim before you read; "
            f"after a loss of data, release the lease, and acquire again"
        )


class AlreadyDone(FencingError):
    """A refusal of a block with ``once=``: a block with this key was committed before. Nothing was read or written; go
    on without it.

    Attributes:
        resource: the resource of the fence.
        key: what is done once.
        number: of the fence under which it was done.
        at: when that transaction was under way, in UTC, by the storage's clock, to the second. For people.
        is_own: it was done under a fence of this very lease, also one before its ``reclaim()``. If the
            reply to that commit was lost, it has landed.
    """

    __module__ = "fencing"

    def __init__(self, *, resource: str, key: str, number: int, at: datetime, is_own: bool = False) -> None:
        self.resource = resource
        self.key = key
        self.number = number
        self.at = at
        self.is_own = is_own
        whose = "this very lease: if the reply to its commit was lost, it has landed" if is_own else "another lease"
        super().__init__(
            f"{key!r} of {resource!r} was done before, at {at:%Y-%m-%d %H:%M:%S} UTC under fence {number}, of {whose}; "
            f"go on without it"
        )


class TooOld(FencingError):
    """A refusal of a block with ``once=``: keys up to a higher one were pruned, so nobody knows whether this one was
    done. Nothing was written; read the data, and decide.

    Attributes:
        resource: the resource of the fence.
        key: what is done once.
        floor: the highest key that was pruned.
    """

    __module__ = "fencing"

    def __init__(self, *, resource: str, key: str, floor: str) -> None:
        self.resource = resource
        self.key = key
        self.floor = floor
        super().__init__(
            f"{key!r} of {resource!r} is too old: what was done up to {floor!r} was pruned, so it is not known whether "
            f"this was done; nothing was written; read the data, and decide"
        )


class OutcomeUnknown(FencingError):
    """A lost reply to a write or its commit, which may have happened or not.

    Call ``guard.landed(error)``. Where that is None, read the data under a lease before you write again.

    Attributes:
        fence: the fence under which the write was sent.
        seq: the sequence number that the storage gave it. If the write did not happen, the next one gets the same
            number. So a mark that has reached it proves nothing.
        transaction: the database's transaction id, where it has one. For logs only: after a crash or failover,
            PostgreSQL gives the ids of lost transactions to other ones.
        recent_writes: the last writes that the mark remembers if this write happened, this one first. For ``landed``.
        key: the key of the object that was written in place, in an object store.
        once: the key of the block's ``once=``, if it had one. For ``landed``.
    """

    __module__ = "fencing"

    def __init__(
        self,
        *,
        fence: Fence,
        seq: int,
        transaction: str | None = None,
        recent_writes: str = "",
        key: str | None = None,
        once: str | None = None,
    ) -> None:
        self.fence = fence
        self.seq = seq
        self.transaction = transaction
        self.recent_writes = recent_writes
        self.key = key
        self.once = once
        super().__init__(
            f"the reply to a write under fence {fence.number} of {fence.resource!r} was lost: it may have happened; "
            f"call guard.landed(error), or read the data under a lease before you write again"
        )


class CoordinatorUnavailable(FencingError):
    """A coordinator that did not answer, or refused to work. Retry later; if it happens again, see the cause.

    Attributes:
        resource: the resource of the request; None: it was not about one resource.
        address: the address of the coordinator's service.
        refused: it has answered, and a retry does not help until somebody changes what the text names: a password, a
            right, a table. False: it did not answer, or a retry may help, or that is not known.
    """

    __module__ = "fencing"

    _is_silence = False  # whether nothing has answered in time

    def __init__(
        self, text: str, *, resource: str | None = None, address: str | None = None, refused: bool = False
    ) -> None:
        self.resource = resource
        self.address = address
        self.refused = refused
        super().__init__(text)


class GuardUnavailable(FencingError):
    """A storage that did not answer, or a mark that stayed locked by another transaction. Nothing was written; retry.

    Attributes:
        resource: the resource of the request; None: it was not about one resource.
    """

    __module__ = "fencing"

    def __init__(self, text: str, *, resource: str | None = None) -> None:
        self.resource = resource
        super().__init__(text)


class GuardNotEnforceable(FencingError):
    """A storage that, set up or used like this, cannot enforce the rules. The message says what to change."""

    __module__ = "fencing"


class MarkImplausible(FencingError):
    """A mark, counter or fence that is so high that no history can have minted it. Nothing was minted or claimed; tell
    an operator.

    A number grows by one with each grant, and follows the clock in microseconds. One poisoned mark must not raise a
    counter that other names share. Find out where the number came from, then correct the mark or counter by hand.

    Attributes:
        resource: the resource of the mark, counter or fence.
        number: the implausible number.
        ceiling: the highest number that would have been accepted.
    """

    __module__ = "fencing"

    def __init__(self, *, resource: str, number: int, ceiling: int) -> None:
        self.resource = resource
        self.number = number
        self.ceiling = ceiling
        super().__init__(
            f"the number {number} of {resource!r} is implausible: the highest plausible one is {ceiling}; nothing was "
            f"minted or claimed; an operator must find out where this number came from, and correct it"
        )

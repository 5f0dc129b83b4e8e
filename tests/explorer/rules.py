"""The rules of docs/internals/safety.md, each switched off, and the steps in which the explorer finds the violation.

The seams are here alone: another function in the place of the kernel's rule, another program, another script, a plan
or a lease that forgets a part. Nothing in the library can be switched off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fencing.kernel import fence as fences
from fencing.kernel.admission import admit_claim
from fencing.kernel.effects import Plan
from fencing.kernel.errors import LossReason, StaleFence
from fencing.kernel.fence import Fence, Mark
from fencing.locks.backend import Taken
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings
from fencing.redis.calls import Call
from fencing.redis.scripts import REMINT
from tests.explorer.clients import Leased, OfACluster, Polls, Program, Queues
from tests.explorer.scenarios import BRIEF, SOON, NoLock
from tests.explorer.simulated_redis import ACCEPT_MS, NEW_MS, Reply, SimulatedRedis
from tests.explorer.state import (
    CLAIM_BACK,
    GONE,
    LOST_UPDATE,
    OVERLAP,
    REPAIR,
    REVIVED,
    SAME_FENCE,
    STUCK,
    SUPERSEDED,
    UNNOTICED,
    VERDICT,
    Bounds,
    Scenario,
)
from tests.explorer.storage import MemoryBackend

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """A rule, and what happens without it.

    Args:
        name: what is switched off.
        scenario: with the rule off.
        violates: the property the explorer has to find violated.
        length: of the shortest trace it finds.
        known: the length that a model of the protocol gave (docs/internals/safety.md), where it did.
        note: why the two differ, or what the trace shows.
    """

    name: str
    scenario: Scenario
    violates: str
    length: int
    known: int | None = None
    note: str = ""

    def __str__(self) -> str:
        return self.name


# The kernel's two functions, weakened


def anything(mark: Mark | None, fence: Fence) -> Mark:
    """No fencing."""
    return Mark(fence.number, fence.token)


def newest_write(mark: Mark | None, fence: Fence) -> Mark:
    """The textbook: reject what is older than the newest write."""
    if mark is not None and fence.number < mark.number:
        raise StaleFence(fence=fence, mark=mark)
    return Mark(fence.number, fence.token)


def claim_by_number(mark: Mark | None, fence: Fence, floor: int = 0) -> Mark:
    """The claim without the token."""
    return newest_write(mark, fence)


def write_by_number(mark: Mark | None, fence: Fence) -> Mark:
    """The write without the token."""
    if mark is None or mark.number != fence.number:
        raise StaleFence(fence=fence, mark=mark)
    return Mark(mark.number, mark.token, mark.seq + 1)


def not_older(mark: Mark | None, fence: Fence) -> Mark:
    """``>=`` in the place of equality."""
    if mark is None or fence.number < mark.number:
        raise StaleFence(fence=fence, mark=mark)
    return Mark(mark.number, mark.token, mark.seq + 1)


def claim_above_no_floor(mark: Mark | None, fence: Fence, floor: int = 0) -> Mark:
    """The claim that does not look at the floor of pruned marks."""
    return admit_claim(mark, fence)


def first_claim(mark: Mark | None, fence: Fence, floor: int = 0) -> Mark:
    """The claim that changes nothing once there is a mark."""
    return mark or admit_claim(mark, fence)


# Scripts, plans and leases, weakened


class NotIdempotent(SimulatedRedis):
    """An acquire that is SET NX: it takes its own lock for somebody else's."""

    def _acquire(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        if self.get(keys[0]) is not None:
            return b"taken", self.pttl(keys[0]), b""
        return self._mint(keys, args)


class NoRepair(Polls):
    """Plans that forget what the refusal said: the next number is just the next."""

    def plan_acquire(self, *args: Any, wait: bool = False, **options: Any) -> Plan[Grant | Taken]:
        return super().plan_acquire(*args, **{**options, "floor": 0})

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        return (yield from super().plan_remint(grant, token, settings, floor=0, deadline=deadline))


class SameTokenRepair(Polls):
    """A remint under the old token: idempotent, so it gives the old number again."""

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        return (yield from super().plan_remint(grant, grant.token, settings, floor=floor, deadline=deadline))


class NotWithdrawn(Polls):
    """Requests that are not withdrawn when their caller gives up."""

    def _plan_call(self, call: Call, *args: Any, **more: Any) -> Plan[Any]:
        return super()._plan_call(call._replace(form=call.form._replace(listener=None)), *args, **more)


class NoOffer(SimulatedRedis):
    """A release that frees the lock and offers it to no waiter."""

    def _hand_over(self, lock_key: str, holder_key: str, *queue: Any) -> bytes | None:
        self.delete(lock_key, holder_key)
        return None


class OfferToOneOnly(SimulatedRedis):
    """An offer that only its receiver hears of."""

    def _send_rechecks(self, *args: Any) -> None:
        pass


class NewWaitersOnlyWait(SimulatedRedis):
    """A waiter that is new is not asked to recheck."""

    def _recheck_of_new(self, ticket: float) -> int | None:
        return None


class TheNewestIsNew(SimulatedRedis):
    """Nobody hears of an offer where the last waiter is new, whatever the others are."""

    def _are_all_new(self, queue_key: str) -> bool:
        return 0 < self._new_for_ms(self.sorted_set(queue_key)[-1][0]) <= NEW_MS + 1


class NewForLong(SimulatedRedis):
    """A waiter is new for longer than an offer lasts."""

    def _new_for_ms(self, ticket: float) -> int:
        return super()._new_for_ms(ticket) + NEW_MS

    def _are_all_new(self, queue_key: str) -> bool:
        return self._new_for_ms(self.sorted_set(queue_key)[0][0]) > 0


class FarBehind(SimulatedRedis):
    """Of those that find an offer, all but the first ask again as late as those that wait for the end of a lease."""

    def _behind_ms(self, before: int, its_number: bytes | None) -> int:
        return ACCEPT_MS if before > 0 else 0


class LastingOffers(SimulatedRedis):
    """An offer that lasts as long as a lease."""

    def set(self, key: str, value: Any, px: bytes | int | None = None) -> None:
        super().set(key, value, 10_000 if px == ACCEPT_MS else px)


class DecliningReleases(SimulatedRedis):
    """A decline that also frees a lock that was granted."""

    def _release(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        return super()._release(keys, args[:2])


def _record(redis: SimulatedRedis, holder_key: str, number: bytes) -> bytes:
    return (redis.get(holder_key) or number).split(b" ")[0]


class ComparesTokens(SimulatedRedis):
    """A renewal and a remint that compare the token alone."""

    def _renew(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        given = list(args)
        for i in range(len(keys) // 2):
            number, _, rest = given[3 * i + 2].partition(b" ")
            given[3 * i + 2] = _record(self, keys[2 * i + 1], number) + b" " + rest
        return super()._renew(keys, given)

    def _remint(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        return super()._remint(keys, (*args[:6], _record(self, keys[1], args[6])))


class TakesFromAnybody(SimulatedRedis):
    """A force that takes the lock from whoever holds it."""

    def _force_release(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        digest = hashlib.sha1(self.get(keys[0]) or b"", usedforsecurity=False).hexdigest()[:16].encode()
        return super()._force_release(keys, (*args[:5], digest))


class WithdrawnRemints(Polls):
    """A release is sent behind a remint, as behind an acquisition."""

    def _plan_call(self, call: Call, *args: Any, **more: Any) -> Plan[Any]:
        if call.script is REMINT:
            call = call._replace(form=call.form._replace(listener=""))
        return super()._plan_call(call, *args, **more)


class OtherTokens(Polls):
    """A reclaim that has a new token in each call."""

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        return (yield from super().plan_remint(grant, fences.new_token(), settings, floor=floor, deadline=deadline))


class NeverGone(Polls):
    """A reclaim that goes on under its old fence when the lock is gone."""

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        reminted = yield from super().plan_remint(grant, token, settings, floor=floor, deadline=deadline)
        return reminted or Grant(grant.resource, grant.number, grant.token, deadline)


class NotEnded(Leased):
    """A lease that does not end while its fence is replaced."""

    def _loss(self) -> LossReason | None:
        reason = super()._loss()
        return None if reason == "reclaimed" and self._replacement is not None else reason


class NotAwaited(Leased):
    """A lease that goes on with its new fence before the claim has an answer."""

    def _loss(self) -> LossReason | None:
        return super()._loss() if self._is_claimed else None


class FreesOne(Leased):
    """A lease that frees only the fence it knows."""

    def _unanswered(self) -> list[Fence]:
        return []


def _scenario(*programs: Program, backend: MemoryBackend | None = None, **bounds: int) -> Scenario:
    return Scenario("", programs, Bounds(**bounds), backend or MemoryBackend())


HOLDER = Program()
HURRIED = Program(timeout=3.0)
UNCLAIMING = Program(claims=False)
CLAIMING = Program(write="claiming")
QUEUER = Program(plans=Queues)
RECLAIMS = Program(reclaims=2)

RULES = [
    Rule(
        "all fencing",
        _scenario(UNCLAIMING, UNCLAIMING, backend=MemoryBackend(admit_write=anything), expiries=1),
        LOST_UPDATE,
        7,
        7,
    ),
    Rule(
        "claim before read",
        _scenario(UNCLAIMING, UNCLAIMING, backend=MemoryBackend(admit_write=newest_write), expiries=1),
        LOST_UPDATE,
        7,
        7,
    ),
    Rule(
        "the token is compared",
        _scenario(HOLDER, HOLDER, backend=MemoryBackend(claim_by_number, write_by_number), resets=1),
        LOST_UPDATE,
        9,
        9,
    ),
    Rule(
        "check and write are atomic",
        _scenario(*[Program(write="two steps")] * 2, expiries=1),
        LOST_UPDATE,
        11,
        11,
    ),
    Rule(
        "check and write are atomic",
        _scenario(*[Program(write="two steps")] * 2, expiries=1),
        SUPERSEDED,
        8,
    ),
    Rule(
        "a write needs equality with the mark",
        _scenario(HOLDER, UNCLAIMING, backend=MemoryBackend(admit_write=not_older), expiries=1),
        LOST_UPDATE,
        8,
        8,
    ),
    Rule(
        "the mark is durable (lost), no lock",
        Scenario("", (CLAIMING, CLAIMING), Bounds(marks_lost=1), redis=NoLock),
        LOST_UPDATE,
        9,
        9,
    ),
    Rule(
        "the mark is durable (lost)",
        _scenario(CLAIMING, CLAIMING, expiries=1, marks_lost=1),
        LOST_UPDATE,
        10,
        9,
        "the lease's expiry is a step",
    ),
    Rule(
        "the mark is durable (restored without its data), no lock",
        Scenario("", (HOLDER, HOLDER), Bounds(marks_restored=1), redis=NoLock),
        LOST_UPDATE,
        10,
        10,
    ),
    Rule(
        "the mark is durable (restored without its data)",
        _scenario(HOLDER, HOLDER, expiries=1, marks_restored=1),
        LOST_UPDATE,
        11,
        10,
        "the lease's expiry is a step",
    ),
    Rule(
        "every writer uses the guard",
        _scenario(HOLDER, Program(write="unguarded"), expiries=1),
        LOST_UPDATE,
        9,
        9,
    ),
    Rule(
        "the writes of one grant are in order",
        _scenario(Program(writes=2), late_writes=1),
        LOST_UPDATE,
        9,
        9,
    ),
    Rule(
        "a claim on a pruned mark exceeds the floor",
        _scenario(HOLDER, HOLDER, backend=MemoryBackend(claim_above_no_floor), expiries=1, marks_pruned=1),
        CLAIM_BACK,
        6,
    ),
    Rule(
        "a token belongs to one grant",
        _scenario(*[Program(same_tokens=True)] * 2),
        SAME_FENCE,
        4,
    ),
    Rule(
        "acquire is idempotent for its token",
        Scenario("", (HOLDER, HOLDER), Bounds(lost=1), redis=NotIdempotent),
        STUCK,
        2,
    ),
    Rule(
        "a given-up acquire is withdrawn",
        _scenario(*[Program(plans=NotWithdrawn)] * 2, lost=2),
        STUCK,
        3,
    ),
    Rule(
        "a refused claim is repaired above the mark",
        Scenario("", (Program(plans=NoRepair),) * 2, Bounds(resets=1), earlier=4),
        REPAIR,
        7,
    ),
    Rule(
        "a repair has a new token",
        Scenario("", (Program(plans=SameTokenRepair),) * 2, Bounds(resets=1), earlier=4),
        REPAIR,
        7,
    ),
    Rule(
        "a release offers the lock to a waiter",
        Scenario("", (QUEUER, QUEUER), Bounds(), redis=NoOffer),
        STUCK,
        7,
    ),
    Rule(
        "a waiter asks again when its listener's connection breaks",
        _scenario(*[Program(plans=Queues, wakes=False)] * 2, cuts=1),
        STUCK,
        8,
    ),
    Rule(
        "the next waiters hear of an offer",
        Scenario("", (QUEUER,) * 3, Bounds(freezes=1, pauses=2), redis=OfferToOneOnly),
        UNNOTICED,
        12,
    ),
    Rule(
        "a waiter asks again when it is new no more",
        Scenario("", (QUEUER,) * 3, Bounds(freezes=1), redis=NewWaitersOnlyWait),
        UNNOTICED,
        9,
    ),
    Rule(
        "the next waiters hear of an offer unless all are new",
        Scenario("", (BRIEF,) * 4, Bounds(freezes=2, pauses=2), redis=TheNewestIsNew),
        UNNOTICED,
        13,
    ),
    Rule(
        "a waiter is new for no longer than an offer lasts",
        Scenario("", (QUEUER,) * 3, Bounds(freezes=1), redis=NewForLong, late_ms=SOON),
        UNNOTICED,
        9,
    ),
    Rule(
        "those that find an offer ask again soon after it",
        Scenario("", (BRIEF,) * 4, Bounds(freezes=2, pauses=1), redis=FarBehind, late_ms=SOON),
        UNNOTICED,
        11,
    ),
    Rule(
        "a decline frees no lock that was granted",
        Scenario("", (QUEUER,) * 3, Bounds(early=1), redis=DecliningReleases),
        OVERLAP,
        11,
    ),
    Rule(
        "an offer is short",
        Scenario("", (QUEUER,) * 3, Bounds(freezes=1), redis=LastingOffers),
        UNNOTICED,
        9,
    ),
    Rule(
        "a token is not asked with behind its release",
        Scenario("", (HURRIED,) * 2, Bounds(kept=1), hears=False),
        OVERLAP,
        5,
    ),
    Rule(
        "a token is not asked with behind its release (two locks of a cluster)",
        Scenario("", (replace(HURRIED, both=True, claims=False, plans=OfACluster),) * 2, Bounds(kept=1), hears=False),
        OVERLAP,
        6,
    ),
    Rule(
        "a token is not asked with behind its release (in the queue)",
        Scenario("", (replace(HURRIED, plans=Queues),) * 2, Bounds(kept=1), hears=False),
        STUCK,
        10,
        note="the late release removes a place in the queue",
    ),
    Rule(
        "nothing is sent behind a remint (after a refused claim)",
        Scenario(
            "",
            (replace(HURRIED, plans=WithdrawnRemints),) * 3,
            Bounds(kept=1, resets=1),
            earlier=4,
            cut_off="remint",
            hears=False,
        ),
        OVERLAP,
        8,
    ),
    Rule(
        "nothing is sent behind a remint (of an adoption)",
        Scenario(
            "", (Program(adopts=1, plans=WithdrawnRemints),) * 2, Bounds(kept=1, lost=1), cut_off="remint", hears=False
        ),
        OVERLAP,
        8,
    ),
    Rule(
        "a renewal compares the number",
        Scenario("", (Program(renews=True),) * 2, Bounds(kept=1, expiries=1), redis=ComparesTokens),
        REVIVED,
        6,
    ),
    Rule(
        "an adoption compares the number",
        Scenario("", (Program(adopts=2),), Bounds(kept=1), redis=ComparesTokens),
        REVIVED,
        10,
    ),
    Rule(
        "a force names its grant",
        Scenario(
            "",
            (HOLDER, HOLDER, Program(forces=True)),
            Bounds(kept=1),
            redis=TakesFromAnybody,
            cut_off="force_release",
        ),
        OVERLAP,
        8,
    ),
    Rule(
        "a lease ends before its fence is replaced",
        _scenario(replace(RECLAIMS, lease=NotEnded), late_writes=1, lost=1),
        VERDICT,
        7,
    ),
    Rule(
        "the new fence of a reclaim is claimed before the read",
        _scenario(RECLAIMS, backend=MemoryBackend(first_claim), late_writes=1),
        VERDICT,
        8,
    ),
    Rule(
        "the answer to this claim is awaited",
        _scenario(replace(RECLAIMS, lease=NotAwaited), late_writes=1, late=1),
        VERDICT,
        8,
    ),
    Rule(
        "a reclaim is over when the lock is gone",
        _scenario(replace(RECLAIMS, plans=NeverGone), late_writes=1, expiries=1),
        VERDICT,
        9,
    ),
    Rule(
        "a reclaim is repeated with its token",
        _scenario(replace(RECLAIMS, plans=OtherTokens), lost=2),
        GONE,
        6,
    ),
    Rule(
        "a block that ends within a reclaim frees both tokens",
        _scenario(*[replace(RECLAIMS, reclaims=1, lease=FreesOne)] * 2, lost=2),
        STUCK,
        7,
    ),
    Rule(
        "nothing is sent behind a remint (of a reclaim)",
        Scenario(
            "",
            (replace(RECLAIMS, plans=WithdrawnRemints),) * 2,
            Bounds(kept=1, late_writes=1),
            cut_off="remint",
            hears=False,
        ),
        OVERLAP,
        8,
    ),
    Rule(
        "a reclaim compares the number",
        Scenario("", (RECLAIMS,), Bounds(kept=1, late_writes=1, expiries=1), redis=ComparesTokens),
        REVIVED,
        8,
    ),
]

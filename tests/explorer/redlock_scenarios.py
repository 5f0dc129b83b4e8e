"""Nodes and clients of Redlock to explore: with all rules, and with one off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fencing.kernel.effects import Plan
from fencing.locks.holding import Grant
from fencing.locks.settings import Settings
from fencing.redlock.decisions import Confirm, Decision, Held
from fencing.redlock.plans import RedlockPlans
from tests.explorer.redlock_nodes import BACK, MEMBER, Node
from tests.explorer.redlock_storage import LOST, TextbookStorage, UnguardedStorage
from tests.explorer.redlock_world import BOTH_HOLD, REVIVED, TAKEN, TWICE, Faults, Nodes, Program

TAKES = Program(("acquire",))
TAKES_AND_RELEASES = Program()
REPEATS = Program(("acquire", "again"))
UPDATES = Program(("acquire", "claim", "read", "write"))
UPDATES_AND_RELEASES = Program(("acquire", "claim", "read", "write", "release"))
CLAIMS_LATE = Program(("acquire", "read", "claim", "write"))
REMINTS = Program(("acquire", "remint"))
ADMITS = Program(("admit",))
HOLDS = Program(("hold",), pauses=1)
ADOPTS = Program(("hold", "adopt"), pauses=1)
INITIALISES = Program(("initialise",))
ADMITS_TWICE = Program(("admit", "admit"))
THEN_TAKES = Program(("acquire",), after=0)
LAST_TAKES = Program(("acquire",), after=1)
LAST_TAKES_TWICE = Program(("acquire", "acquire"), after=1)
FORCES = Program(("force",), after=0)
TAKES_TWICE = Program(("acquire", "release", "acquire"))
RENEWS = Program(("acquire", "renew"))
RENEWS_AND_RELEASES = Program(("acquire", "renew", "release"))
TAKES_BEHIND = Program(("acquire",), after=0, done=1)
UNEQUAL = (0, 1, 2)
RESTARTED = (5, 4, 0)

LATE_RELEASE = Nodes((HOLDS, TAKES), Faults(kept=1, lost_replies=1), cut_off="release")
LATE_INITIALISE = Nodes(
    (INITIALISES, THEN_TAKES, LAST_TAKES), Faults(kept=1, losses=1), new=True, fragile=(2,), cut_off="join"
)
LATE_JOIN = Nodes(
    (ADMITS_TWICE, THEN_TAKES, LAST_TAKES_TWICE),
    Faults(kept=1, losses=1, ttls=1),
    RESTARTED,
    back=2,
    fragile=(2,),
    cut_off="join",
)

LATE_FORCE = Nodes((TAKES, FORCES, LAST_TAKES), Faults(kept=1), (0, 0, 2), cut_off="force_release")
FORCE_BEHIND_RELEASE = Nodes((TAKES_TWICE, FORCES._replace(done=1)), Faults(kept=1), cut_off="force_release")
RENEWAL_BEHIND_ACQUIRE = Nodes(
    (RENEWS, TAKES_AND_RELEASES._replace(after=0, done=1)), Faults(kept=1, expiries=1), cut_off="acquire"
)
SLOW_RENEWAL = Nodes((RENEWS, TAKES_BEHIND), Faults(halves=2))

SAFE = {
    "2 clients": Nodes((TAKES, TAKES_AND_RELEASES), Faults(expiries=1), UNEQUAL),
    "2 clients, 5 nodes": Nodes((TAKES,) * 2, counters=(0, 0, 0, 1, 1)),
    "a repeated request": Nodes((REPEATS, TAKES), Faults(), UNEQUAL),
    "1 client, lost and late": Nodes(
        (Program(("acquire", "again", "release")),), Faults(lost_replies=1, late=1, expiries=1), UNEQUAL
    ),
    "a node restarts": Nodes((TAKES,) * 2, Faults(restarts=1, expiries=1)),
    "a node comes back": Nodes((ADMITS, TAKES, TAKES), back=2, counters=RESTARTED),
    "a remint": Nodes((REMINTS, TAKES), Faults(expiries=1)),
    "2 clients that update, an expiry": Nodes((UPDATES,) * 2, Faults(expiries=1)),
    "initialise() arrives late": LATE_INITIALISE,
    "a force arrives late": LATE_FORCE,
    "a renewal arrives late": Nodes((RENEWS_AND_RELEASES, THEN_TAKES), Faults(kept=1), cut_off="renew"),
}
DEEP = {
    "2 clients that release": Nodes((TAKES_AND_RELEASES,) * 2, Faults(expiries=1), UNEQUAL),
    "3 clients": Nodes((TAKES,) * 3, Faults(expiries=1)),
    "2 clients, lost and late": Nodes((TAKES,) * 2, Faults(lost_replies=1, late=1, expiries=1)),
    "a request that the network repeats": Nodes((REPEATS, TAKES), Faults(repeats=1, expiries=1), (0, 0, 1)),
    "a node comes back, lost messages": Nodes(
        (ADMITS, TAKES), Faults(lost_replies=1, lost_requests=1, expiries=1), RESTARTED, 2
    ),
    "a remint, a lost reply": Nodes((REMINTS, TAKES), Faults(lost_replies=1, expiries=1)),
    "2 clients, 5 nodes, an expiry": Nodes((TAKES,) * 2, Faults(expiries=1), (0,) * 5),
    "2 clients that update and release": Nodes((UPDATES_AND_RELEASES,) * 2, Faults(expiries=1), UNEQUAL),
    "a release arrives late": LATE_RELEASE,
    "a join arrives late": LATE_JOIN,
    "an adoption arrives late": Nodes((ADOPTS, TAKES), Faults(kept=1), cut_off="remint"),
    "a force arrives late, a lost reply": replace(
        LATE_FORCE, clients=(TAKES, FORCES._replace(pauses=1), LAST_TAKES), faults=Faults(kept=1, lost_replies=1)
    ),
    "a force arrives behind a release": FORCE_BEHIND_RELEASE,
    "a renewal arrives late, a lost reply": Nodes(
        (RENEWS_AND_RELEASES._replace(pauses=1), TAKES_BEHIND), Faults(kept=1, lost_replies=1), cut_off="renew"
    ),
    "a renewal arrives behind a force": Nodes(
        (RENEWS, FORCES._replace(done=1), LAST_TAKES), Faults(kept=1), cut_off="renew"
    ),
    "a renewal behind a late acquire": RENEWAL_BEHIND_ACQUIRE,
    "a slow renewal": SLOW_RENEWAL,
    "a renewal behind a late acquire, a lost reply": replace(
        RENEWAL_BEHIND_ACQUIRE, faults=Faults(kept=1, expiries=1, lost_replies=1)
    ),
    "2 clients that update, 5 nodes": Nodes((UPDATES,) * 2, Faults(expiries=1), (0,) * 5),
    "2 clients that update, lost and late": Nodes((UPDATES,) * 2, Faults(lost_replies=1, late=1, expiries=1)),
    "3 clients that update": Nodes((UPDATES,) * 3, Faults(expiries=1)),
}
LARGE = {
    "2 clients, 5 nodes with unequal counters": Nodes(
        (TAKES,) * 2, Faults(expiries=1, lost_replies=1), (0, 0, 0, 1, 1)
    ),
    "a node restarts, is admitted": Nodes((TAKES, TAKES, ADMITS), Faults(restarts=1, ttls=1), fragile=(2,)),
}
ALL = SAFE | DEEP | LARGE
"""What `make explore ARGS=--redlock` visits."""


class BelievesFromTheReply(RedlockPlans):
    """A renewal whose time counts from its reply."""

    def plan_renew_each(
        self, grants: Sequence[Grant], settings: Sequence[Settings], *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        renewed = yield from super().plan_renew_each(grants, settings, deadline=deadline)
        return [
            None if until is None else its.deadline(self.clock()) for its, until in zip(settings, renewed, strict=True)
        ]


class NoConfirm(RedlockPlans):
    """The highest number of a majority counts at once."""

    def _plan_confirm(self, decision: Confirm, *args: Any) -> Plan[Decision]:
        return Held(decision.number)
        yield  # a plan is a generator


class ConfirmsByToken(Node):
    """A confirmation that compares the token only."""

    def _is_newer(self, own: bytes, number: bytes) -> bool:
        return False


class RemintsByToken(Node):
    """A remint that compares the token only."""

    def _remint_here(self, keys: Any, args: Any) -> Any:
        number = (self.get(keys[1]) or args[6]).split(b" ")[0]
        return super()._remint_here(keys, (*args[:6], number, *args[7:]))


class TakesFromAnybody(Node):
    """A force that takes the lock from whoever holds it."""

    def _force_here(self, keys: Any, args: Any) -> Any:
        holder = self.get(keys[0])
        digest = args[5] if holder is None else self._digest_of(holder)
        return super()._force_here(keys, (*args[:5], digest, *args[6:]))


class GoesOnAtOnce(Node):
    """A process that grants although it was not admitted."""

    def _refuse_stranger(self, args: Any) -> tuple[bytes | int, ...] | None:
        refused = super()._refuse_stranger(args)
        if refused is not None and refused[0] == b"back":
            self.set(MEMBER, args[-1])
            return None
        return refused


class CopiesAtOnce(Node):
    """A node that is admitted as soon as it has copied the highest number of the members."""

    def _ms_to_wait(self, *args: Any) -> int:
        super()._ms_to_wait(*args)
        return 0


class LowersHighest(Node):
    """The last number in the place of the highest one: a later slot lowers it."""

    def _raise_highest(self, number: int) -> None:
        self.set("fencing:1:highest", b"%d" % number)


class JoinsAnyState(Node):
    """A join that admits a node whatever has become of it since."""

    def _join(self, keys: Any, args: Any) -> Any:
        self._refuse_stranger(args)
        return super()._join(keys, (*args[:2], self.get(BACK) or b"", *args[2:]))


RULES = {
    "a number is confirmed": (Nodes((TAKES,) * 2, Faults(expiries=1), UNEQUAL, plans=NoConfirm), TWICE, 9),
    "a confirmation compares the number": (
        Nodes(
            (Program(("acquire", "again", "again")), TAKES_AND_RELEASES),
            Faults(repeats=1, expiries=1),
            (0, 0, 1),
            node=ConfirmsByToken,
        ),
        TWICE,
        14,
    ),
    "a node that restarted must be admitted": (
        Nodes((TAKES,) * 2, Faults(restarts=1), node=GoesOnAtOnce),
        TWICE,
        7,
    ),
    "it waits for the longest ttl": (Nodes((TAKES, TAKES, ADMITS), Faults(restarts=1), node=CopiesAtOnce), TWICE, 12),
    "a token is not asked with behind its release": (replace(LATE_RELEASE, one_token=True), BOTH_HOLD, 17),
    "a join is good for one state (initialise)": (replace(LATE_INITIALISE, node=JoinsAnyState), BOTH_HOLD, 18),
    "a join is good for one state": (replace(LATE_JOIN, node=JoinsAnyState), TWICE, 24),
    "a force names its grant": (replace(LATE_FORCE, node=TakesFromAnybody), TAKEN, 15),
    "a force names its grant (both hold)": (replace(FORCE_BEHIND_RELEASE, node=TakesFromAnybody), BOTH_HOLD, 14),
    "a renewal compares the number": (
        replace(RENEWAL_BEHIND_ACQUIRE, faults=Faults(expiries=1), node=ConfirmsByToken),
        REVIVED,
        15,
    ),
    "a remint compares the number": (
        replace(
            RENEWAL_BEHIND_ACQUIRE,
            clients=(REMINTS, *RENEWAL_BEHIND_ACQUIRE.clients[1:]),
            faults=Faults(expiries=1),
            node=RemintsByToken,
        ),
        REVIVED,
        17,
    ),
    "a renewal counts from its sending": (replace(SLOW_RENEWAL, plans=BelievesFromTheReply), BOTH_HOLD, 12),
    "the highest number is never lowered": (
        Nodes((Program(("other", "admit")), TAKES), Faults(lost_requests=1), RESTARTED, 2, node=LowersHighest),
        TWICE,
        13,
    ),
}
NO_GUARD = Nodes((UPDATES,) * 2, Faults(expiries=1), storage=UnguardedStorage)
RULES |= {
    "a guard": (NO_GUARD, LOST, 15),
    "a claim": (replace(NO_GUARD, storage=TextbookStorage), LOST, 15),
    "the claim comes before the read": (Nodes((CLAIMS_LATE,) * 2, Faults(expiries=1)), LOST, 15),
}
WRONG_NUMBERS = {
    "numbers are not confirmed": Nodes((UPDATES,) * 2, Faults(expiries=1), UNEQUAL, plans=NoConfirm),
    "a node that restarted goes on": Nodes((UPDATES,) * 2, Faults(restarts=1), node=GoesOnAtOnce),
}
"""Numbers repeat here, and under a guard no update is lost all the same."""

SLOW = (
    "a confirmation compares the number",
    "a force names its grant (both hold)",
    "a remint compares the number",
    "a renewal counts from its sending",
    "it waits for the longest ttl",
    "a claim",
    "the claim comes before the read",
    "a token is not asked with behind its release",
    "a join is good for one state",
    "a node that restarted goes on",
)

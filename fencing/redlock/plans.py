"""The plans of a Redlock coordinator: rounds over all nodes, and the return of a node. No I/O."""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, Literal

from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import CoordinatorUnavailable, FencingError, KeptBy, MarkImplausible
from fencing.kernel.fence import Fence
from fencing.kernel.retry import LEAST_SECONDS, Answer, Backoff, NoReply
from fencing.locks.backend import BACKOFF, Backend, Holder, Taken, Undecided
from fencing.locks.holding import Grant, GrantOrFence
from fencing.locks.settings import Settings
from fencing.redis.calls import Arguments, Call, release_call, release_later_call
from fencing.redis.scripts import Script
from fencing.redlock.calls import (
    Fanout,
    grant_call,
    highest_call,
    holder_call,
    join_call,
    release_all_call,
    renew_call,
)
from fencing.redlock.decisions import (
    Ask,
    Confirm,
    Decision,
    Held,
    Implausible,
    NoMajority,
    Refused,
    Replies,
    check_settings,
    decide_grant,
    decide_holder,
    decide_renewals,
    decide_stay,
    decide_take,
    free_nodes,
    named,
    seed_for,
)
from fencing.redlock.scripts import ACQUIRE, FORCE_RELEASE, REMINT

INITIALISE_SECONDS = 4.0
"""How long all nodes together have to answer each request of ``initialise``, and a quarter of it for one attempt."""

PAUSES = Backoff(first=0.05, longest=0.05)
"""The pause after a round without a majority."""

MOST_ASKS = 3
"""How often the caller that has most nodes asks the others again."""

NOT_HELD = ord("g")
"""The character of lua/release_several.lua for a lock that its token does not hold."""

_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python


def _now_us() -> int:
    return time.time_ns() // 1000


class RedlockPlans(Backend):
    """The plans of several independent Redis servers, of which a majority must agree.

    A client with ``perform`` sets the attributes.
    """

    service = "a majority of the Redis nodes"
    max_renewals: int = 100
    """Leases per call, with three keys each. One call blocks a server for well under a millisecond."""

    ttl_per_lock: ClassVar[Literal[True]] = True

    nodes: int
    """How many nodes there are."""

    node_timeout: float
    """Seconds after which a node's missing reply counts as a refusal."""

    longest_ttl: float
    """Seconds: no grant lasts longer without a renewal. A node that came back grants nothing for so long."""

    restart_wait: bool = True
    clock_floor: bool = True
    _wall_clock_us: Callable[[], int] = staticmethod(_now_us)

    ready: set[int]
    """The nodes that came back, and have waited long enough to be admitted."""

    @cached_property
    def quorum(self) -> int:
        """The number of nodes that are a majority."""
        return self.nodes // 2 + 1

    def plan_acquire(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | Taken | Undecided]:
        """Ask all nodes once, which is a round. What a minority granted is released.

        A release that is not answered may arrive late. So the next round has a new token, unless all nodes refused.
        """
        if self.ready:
            yield from self.plan_admit()
        call = self._grant_call(ACQUIRE, resource, token, settings, floor, self._proposal())
        sent_at = self.clock()
        fanout = self._first(call, settings, deadline - sent_at)
        try:  # without the machinery of retries: mostly there is no second attempt
            replies = yield fanout
        except NoReply as failure:
            if failure.was_undone or not settings.one_try:
                yield from self._plan_free(resource, token)
                error = self.unanswered(resource, failure)
                error.__cause__ = failure.cause
                undecided = self._undecided(error, deadline)
                if self.clock() + undecided.pause >= deadline:  # nobody asks again
                    self.give_back_later(Fence(resource, 1, token), settings)
                return undecided
            replies, sent_at, _ = yield from self._plan_again(fanout, resource, settings, deadline, failure, token)
        except CoordinatorUnavailable:
            yield from self._plan_free(resource, token)
            raise
        decision = decide_grant(replies, self.quorum, token)
        if isinstance(decision, Ask):
            decision, replies = yield from self._plan_ask(decision, replies, call, token)
        if isinstance(decision, Confirm):
            decision = yield from self._plan_confirm(decision, resource, token, settings)
        if isinstance(decision, Held):
            granted = self._granted(decision, resource, token, settings, sent_at)
            if isinstance(granted, Grant):
                return granted
            decision = granted
        yield from self._plan_undo(replies, resource, token)
        self._check_replies(replies, resource, decision)
        if isinstance(decision, NoMajority):
            return self._undecided(self._no_majority(resource, f"{decision.text}; {self._hint}"), deadline)
        assert isinstance(decision, Refused)
        if decision.waiting_ms is None or decision.owner is not None or decision.remaining_ms is not None:
            left = decision.remaining_ms
            was_undone = any(type(reply) is not list for reply in replies)
            remaining = BACKOFF.first if left is None else left / 1000
            is_foreign = decision.owner is None and left is not None  # it has a ttl, but no record of ours
            kept_by: KeptBy | None = "foreign" if is_foreign else None
            return Taken(remaining, decision.owner, was_undone=was_undone, kept_by=kept_by)
        return (yield from self._plan_wait_for_members(decision, resource, deadline))

    def plan_remint(
        self, grant: GrantOrFence, token: str, settings: Settings, *, floor: int, deadline: float
    ) -> Plan[Grant | None]:
        old = grant.token, grant.number
        call = self._grant_call(REMINT, grant.resource, token, settings, floor, self._proposal(), old)
        return (yield from self._plan_take(call, grant.resource, token, settings, deadline))

    def plan_force(
        self, resource: str, token: str, settings: Settings, *, floor: int, deadline: float, holder: Holder
    ) -> Plan[Grant | None]:
        proposal = self._proposal()
        call, also_free = (
            self._grant_call(FORCE_RELEASE, resource, token, settings, floor, proposal, (holder.digest, free))
            for free in (0, 1)
        )
        try:
            return (yield from self._plan_take(call, resource, token, settings, deadline, also_free))
        except FencingError:
            yield from self._plan_free(resource, token)
            self.give_back_later(Fence(resource, 1, token), settings)
            raise

    def plan_renew(
        self, grants: Sequence[Grant], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Give each grant's lock its full ttl again: see ``RenewsGrants`` in ``fencing/locks/capabilities.py``."""
        return (yield from self.plan_renew_each(grants, [settings] * len(grants), deadline=deadline))

    def plan_renew_each(
        self, grants: Sequence[Grant], settings: Sequence[Settings], *, deadline: float
    ) -> Plan[Sequence[float | None]]:
        """Give each grant's lock the ttl of its own settings: see ``RenewsSeveralTtls``."""
        about = grants[0].resource if len(grants) == 1 else f"{len(grants)} leases"
        call = renew_call(grants, [its.milliseconds for its in settings])
        patience = min(settings, key=attrgetter("attempt_seconds"))
        answer = yield from self._plan_answer(call, about, patience, deadline)
        self._check_settings(answer.value)
        decided = decide_renewals(answer.value, len(grants), self.quorum)
        if all(each is None for each in decided):
            raise self._too_few(answer.value, about)
        # Without enough replies the lease keeps its deadline, and is due again.
        return [
            its.deadline(answer.sent_at) if each else None if each is False else -math.inf
            for its, each in zip(settings, decided, strict=True)
        ]

    def plan_release(self, grant: GrantOrFence, settings: Settings, *, deadline: float) -> Plan[bool]:
        sent_at = self.clock()
        fanout = self._first(release_call(grant.resource, grant.token), settings, deadline - sent_at)
        try:
            replies, repeated = (yield fanout), False
        except NoReply as failure:
            replies, _, repeated = yield from self._plan_again(fanout, grant.resource, settings, deadline, failure)
        return replies.count(0) < self.quorum or repeated  # an earlier attempt may have freed it

    def plan_release_later(
        self, grant: GrantOrFence, settings: Settings, *, free_at: float, deadline: float
    ) -> Plan[bool]:
        """Release a lock that stays taken until then: see ``ReleasesLater`` in ``fencing/locks/capabilities.py``.

        It is asked for until a majority of the nodes has it: with fewer, others would get the lock when the ttl ends at
        the rest. The new token is made of the old one, so that a later attempt counts the nodes of the earlier ones.
        """
        token, failures, repeated = _token_after(grant.token), 0, False

        def attempt(timeout: float, last_attempt: bool) -> Fanout:
            milliseconds = max(math.ceil((free_at - self.clock()) * 1000), 1) + 1  # a node cuts its time to whole ones
            call = release_later_call(grant.resource, grant.token, token, milliseconds, timeout)
            return self._first(call, settings, timeout)

        while True:
            answer = yield from self.plan_until_answered(attempt, grant.resource, settings, deadline)
            stays, repeated = decide_stay(answer.value, self.quorum), repeated or answer.repeated
            if stays is not None:
                return stays or repeated  # an earlier attempt may have released it
            failures, repeated = failures + 1, True
            pause = BACKOFF.pause(failures)
            if self.clock() + pause >= deadline:
                count = answer.value.count(1)
                text = f"after its release it stays taken at {count} of {self.nodes} nodes only; {self._hint}"
                raise self._no_majority(grant.resource, text)
            yield Sleep(pause)

    def plan_release_all(
        self, grants: Sequence[GrantOrFence], settings: Settings, *, deadline: float
    ) -> Plan[Sequence[bool]]:
        """Free locks in one request: see ``ReleasesSeveral`` in ``fencing/locks/capabilities.py``."""
        answer = yield from self._plan_answer(release_all_call(grants), f"{len(grants)} locks", settings, deadline)
        replies = [reply for reply in answer.value if type(reply) is bytes]
        not_held = [sum(reply[i] == NOT_HELD for reply in replies) for i in range(len(grants))]
        return [each < self.quorum or answer.repeated for each in not_held]

    def plan_holder(self, resource: str, settings: Settings, *, deadline: float) -> Plan[Holder | None]:
        answer = yield from self._plan_answer(holder_call(resource), resource, settings, deadline)
        reply = decide_holder(answer.value, self.quorum)
        if reply is None:
            return None
        remaining, held_for, number, owner = int(reply[1]), int(reply[2]), reply[3], reply[4]
        return Holder(
            owner=owner.decode("utf-8", "replace") if number else None,
            number=int(number) if number else None,
            held_for=held_for / 1000 if number else None,
            remaining=remaining / 1000 if remaining >= 0 else None,
            digest=reply[5].decode(),
            released=reply[6] != b"",
        )

    # Nodes that come back

    def plan_admit(self) -> Plan[Sequence[int]]:
        """Admit the nodes that came back and have waited long enough, with numbers above those of the members.

        Return the nodes whose answers are missing for that; it is empty if none is.
        """
        self.ready.clear()
        replies: Replies = yield self._fanout(highest_call(), self._all, quorum=self.nodes + 1, least=0)  # all of them
        waited = tuple(i for i, reply in enumerate(replies) if _is_stranger(reply) and int(reply[2]) == 0)
        seed = seed_for(replies, self.quorum, self._wall_clock_us() if self.clock_floor else 0)
        if waited and seed is not None:
            join = join_call(seed, _states_of(replies), at_once=False)
            yield self._fanout(join, waited, quorum=len(waited), least=0)
        return [] if seed is not None else [i for i, reply in enumerate(replies) if type(reply) is not list]

    def plan_initialise(self) -> Plan[None]:
        """Admit all nodes at once. None of them may ever have granted a lock."""
        deadline = self.clock() + INITIALISE_SECONDS
        replies = yield from self._plan_all(highest_call(), deadline)
        while not all(reply[0] == b"member" for reply in replies):
            for index, reply in enumerate(replies):
                if reply[0] == b"used" or int(reply[1]) != 0:
                    raise CoordinatorUnavailable(
                        f"node {index + 1} has granted locks before, so the nodes cannot be admitted at once; "
                        f"those that came back are admitted by themselves after {self.longest_ttl:g} s"
                    )
            join = join_call(0, _states_of(replies), at_once=True)
            replies = yield from self._plan_all(join, deadline)
            if any(reply[0] == b"back" for reply in replies):  # it lost its data meanwhile
                replies = yield from self._plan_all(highest_call(), deadline)

    def _plan_all(self, call: Call, deadline: float) -> Plan[Replies]:
        try:
            answer = yield from self._plan_answer(
                call,
                "initialise()",
                self.settings,
                deadline,
                quorum=self.nodes + 1,
                least=self.nodes,
                node_timeout=INITIALISE_SECONDS / 4,  # no majority can decide without the slowest
            )
        except CoordinatorUnavailable as error:
            text = f"initialise() needs all nodes; start them, and repeat it: {error}"
            raise CoordinatorUnavailable(text, address=self.address, refused=error.refused) from error
        replies: Replies = answer.value
        self._check_settings(replies)
        return replies

    def _plan_wait_for_members(self, refused: Refused, about: str, deadline: float) -> Plan[Undecided]:
        """Wait until a node may be admitted.

        Raises:
            CoordinatorUnavailable: none may be in time.
        """
        seconds = (refused.waiting_ms or 0) / 1000
        silent = (yield from self.plan_admit()) if seconds == 0 else []
        pause = max(seconds, self.node_timeout)
        if silent:
            text = (
                f"so many nodes came back from a restart that all must answer before one takes part, and "
                f"{named(silent)} of the list did not; start what is down, or an empty server in its place, "
                f"then retry"
            )
        elif refused.are_new:
            text = (
                "the nodes have no data, and were never admitted; if they are new servers, call initialise() once; "
                f"otherwise the first one takes part in {seconds:.3g} s, and you retry then"
            )
        else:
            text = f"nodes came back from a restart, and the next one takes part in {seconds:.3g} s; retry then"
        error = self._no_majority(about, text)
        if self.clock() + (pause if silent else seconds) >= deadline:
            raise error
        yield Sleep(pause)
        if seconds:
            yield from self.plan_admit()
        return Undecided(error, 0.0)

    # Rounds

    @cached_property
    def _all(self) -> tuple[int, ...]:
        return tuple(range(self.nodes))

    def _fanout(self, call: Call, nodes: tuple[int, ...], *, least: int, quorum: int | None = None) -> Fanout:
        return Fanout(call, nodes, self.quorum if quorum is None else quorum, least, self.node_timeout)

    def _plan_answer(
        self,
        call: Call,
        about: str,
        settings: Settings,
        deadline: float,
        *,
        quorum: int | None = None,
        least: int | None = None,
        node_timeout: float | None = None,
    ) -> Plan[Answer]:
        """Send a call to all nodes until a majority has replied."""
        sent_at = self.clock()
        fanout = self._first(call, settings, deadline - sent_at, quorum, least, node_timeout)
        try:
            return Answer((yield fanout), sent_at, False)
        except NoReply as failure:
            return (yield from self._plan_again(fanout, about, settings, deadline, failure, None, node_timeout))

    def _first(
        self,
        call: Call,
        settings: Settings,
        left: float,
        quorum: int | None = None,
        least: int | None = None,
        node_timeout: float | None = None,
    ) -> Fanout:
        """Return the first fan-out of a call to all nodes, for which so many seconds are left."""
        seconds = max(min(node_timeout or self.node_timeout, settings.attempt_seconds, left), LEAST_SECONDS)
        return _new(Fanout, (call, self._all, quorum or self.quorum, least or self.quorum, seconds))

    def _plan_again(
        self,
        fanout: Fanout,
        about: str,
        settings: Settings,
        deadline: float,
        failure: NoReply,
        may_take: str | None = None,
        node_timeout: float | None = None,
    ) -> Plan[Answer]:
        """Repeat a fan-out that got no answer; ``may_take``: the token of a call that may take the lock."""
        longest = node_timeout or self.node_timeout

        def attempt(timeout: float, last_attempt: bool) -> Fanout:
            return fanout._replace(timeout=min(longest, timeout))

        try:
            return (
                yield from self.plan_until_answered(
                    attempt, about, settings, deadline, may_take=may_take, failure=failure
                )
            )
        except CoordinatorUnavailable:
            if may_take is not None:
                yield from self._plan_free(about, may_take)
            raise

    def _plan_free(self, resource: str, token: str) -> Plan[None]:
        """Release what a minority may have granted, and wait for no reply."""
        try:
            yield self._fanout(release_call(resource, token), self._all, quorum=0, least=0)
        except CoordinatorUnavailable:
            pass  # the others were sent it; what is wrong with this node is raised already

    def _check_settings(self, replies: Replies) -> None:
        check_settings(replies, math.ceil(self.longest_ttl * 1000), self.restart_wait)

    def _proposal(self) -> int:
        """Return a number that all nodes are given alike."""
        return self._wall_clock_us() if self.clock_floor else 1

    def _grant_call(
        self,
        script: Script,
        resource: str,
        token: str,
        settings: Settings,
        floor: int,
        proposal: int,
        more: Arguments = (),
    ) -> Call:
        args = (settings.milliseconds, settings.owner_label, floor)
        return grant_call(script, resource, token, args, proposal, more)

    def _granted(self, held: Held, resource: str, token: str, settings: Settings, sent_at: float) -> Grant | NoMajority:
        until = sent_at + settings.believed_seconds
        if self.clock() < until:
            return Grant(resource, held.number, token, until)
        return NoMajority("a majority granted it, but its ttl was over before that was known")

    def _plan_ask(self, decision: Decision, replies: Replies, call: Call, token: str) -> Plan[tuple[Decision, Replies]]:
        """Ask nodes again, a few times. Return what the replies of all mean together, and these."""
        for asks_left in reversed(range(MOST_ASKS)):
            if not isinstance(decision, Ask):
                break
            yield Sleep(self.node_timeout / 4)
            again = yield self._fanout(call, decision.nodes, least=0)
            replies = [again[i] if i in decision.nodes else reply for i, reply in enumerate(replies)]
            decision = decide_grant(replies, self.quorum, token, may_ask=asks_left > 0)
        return decision, replies

    def _plan_confirm(self, decision: Confirm, resource: str, token: str, settings: Settings) -> Plan[Decision]:
        """Raise the lower numbers to the highest one, where the lock is still the token's."""
        call = renew_call([Fence(resource, decision.number, token)], [settings.milliseconds])
        needed = self.quorum - decision.agreed
        replies: Replies = yield self._fanout(call, decision.nodes, quorum=needed, least=0)
        confirmed = sum(reply == b"r" for reply in replies)
        if confirmed >= needed:
            return Held(decision.number)
        agreed = decision.agreed + confirmed
        return NoMajority(
            f"a majority granted it, but only {agreed} of {self.nodes} nodes confirmed the number in time"
        )

    def _plan_undo(self, replies: Replies, resource: str, token: str) -> Plan[None]:
        """Release what nodes granted, or may grant: a time-out has been followed by a release already."""
        nodes = tuple(i for i, reply in enumerate(replies) if type(reply) is bytes or reply is None)
        granted = sum(type(reply) is bytes for reply in replies)
        if nodes:  # the others need not be waited for: the release arrives behind the request
            yield self._fanout(release_call(resource, token), nodes, quorum=granted, least=0)

    def _plan_take(
        self,
        call: Call,
        resource: str,
        token: str,
        settings: Settings,
        deadline: float,
        also_free: Call | None = None,
    ) -> Plan[Grant | None]:
        """Take the lock from a grant, and ask with the same token until it is decided: nothing is released meanwhile.

        Return None if that grant certainly has no majority any more; then what was taken is released.

        Args:
            call: the request for all nodes.
            resource: the name of the lock.
            token: the new one.
            settings: the lock's.
            deadline: the moment of ``clock`` until which it is repeated.
            also_free: the call for the nodes where nobody holds the lock. They are asked if those that may still have
                that grant are no majority without them.

        Raises:
            CoordinatorUnavailable: it was not decided in time.
            MarkImplausible: a node refused the number.
        """
        failures = 0
        while True:
            answer = yield from self._plan_answer(call, resource, settings, deadline)
            replies: Replies = answer.value
            decision = decide_take(replies, self.quorum, token)
            if isinstance(decision, Confirm):
                decision = yield from self._plan_confirm(decision, resource, token, settings)
            if isinstance(decision, Held):
                granted = self._granted(decision, resource, token, settings, answer.sent_at)
                if isinstance(granted, Grant):
                    return granted
                decision = granted
            self._check_replies(replies, resource, decision)
            if not isinstance(decision, NoMajority):
                yield from self._plan_free(resource, token)
                return None
            failures += 1
            pause = BACKOFF.pause(failures)
            if self.clock() + pause >= deadline:
                raise self._no_majority(resource, f"{decision.text}; {self._hint}")
            if also_free is not None and (free := free_nodes(replies)):
                yield self._fanout(also_free, free, quorum=len(free), least=0)
            yield Sleep(pause)

    def _undecided(self, error: CoordinatorUnavailable, deadline: float) -> Undecided:
        """Return what a round without a majority is: the caller asks again, unless too little time is left for it."""
        pause, left = PAUSES.pause(1), deadline - self.clock()
        return Undecided(error, pause if pause + self.node_timeout < left else max(left, 0.0))

    @property
    def _hint(self) -> str:
        return f"retry, and if it happens again, pass a longer node_timeout than {self.node_timeout:g} s"

    def _check_replies(self, replies: Replies, resource: str, decision: Decision) -> None:
        """Raise if nodes have other settings, or refused the number."""
        self._check_settings(replies)
        if isinstance(decision, Implausible):
            raise MarkImplausible(resource=resource, number=decision.number, ceiling=decision.ceiling)

    def _too_few(self, replies: Replies, about: str) -> CoordinatorUnavailable:
        came_back = any(type(reply) is list for reply in replies)
        lost = "nodes came back from a restart; if a retry fails, too, it is lost: release it, and acquire it again"
        return self._no_majority(
            about,
            lost if came_back else "they disagree; retry",
        )

    def _no_majority(self, about: str, text: str) -> CoordinatorUnavailable:
        return CoordinatorUnavailable(f"no majority for {about!r}: {text}", resource=about, address=self.address)


def _token_after(token: str) -> str:
    """Return the token of a lock that stays taken after its release. It tells nothing of the old one."""
    digest = hashlib.sha256(f"released {token}".encode()).digest()
    return base64.urlsafe_b64encode(digest)[: len(token)].decode()


def _is_stranger(reply: Any) -> bool:
    return type(reply) is list and reply[0] == b"stranger"


def _states_of(replies: Replies) -> list[str]:
    """Return the states of the nodes that are no members, which a join is decided on."""
    return [reply[3].decode() for reply in replies if _is_stranger(reply)]

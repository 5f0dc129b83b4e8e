"""Clients that run the library's own plans, as values: what a client does next depends on the answers it got alone.

A generator cannot be copied, so a client is its program, what it carries (a fence, a value read), and the answers its
running plan has received; the plan is run again from its beginning with these. Each distinct history is run once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fencing.kernel import process
from fencing.kernel.effects import Claim, GiveWay, Plan, Shielded, Sleep
from fencing.kernel.errors import FencingError, GuardUnavailable, StaleFence
from fencing.kernel.fence import Fence
from fencing.kernel.retry import NoReply
from fencing.locks import plans
from fencing.locks.holding import Grant
from fencing.locks.lease import Lease
from fencing.locks.reclaim import plan_reclaim
from fencing.locks.settings import Settings
from fencing.locks.several import At, _Part, acquire_all
from fencing.locks.waiting import Enlist, Leave, Wait
from fencing.redis.calls import Call, Calls
from fencing.redis.plans import RedisPlans
from fencing.redis.waiters import Waiter
from storage_guards import MemoryGuard
from tests.explorer.simulated_redis import Reply
from tests.explorer.storage import OTHER, RESOURCE, Refused, Value
from tests.explorer.tokens import tokens_from

__all__ = [
    "PLANS",
    "Answered",
    "Claimed",
    "Effect",
    "Leased",
    "Local",
    "Lost",
    "NotRun",
    "Polls",
    "Program",
    "Queues",
    "Woken",
    "answered",
    "effect_of",
    "settled",
]

Phase = Literal[
    "acquire", "renew", "adopt", "read", "write", "apply", "reclaim", "release", "force_release", "done", "crashed"
]

PLANS: frozenset[Phase] = frozenset({"acquire", "renew", "adopt", "reclaim", "release", "force_release"})

RECLAIM_SECONDS = 3.0
"""Of one call of ``reclaim``: its first attempt is its last, unless that ends before its time."""

GUARD = MemoryGuard()  # only named in the effects; what it is asked is done on the exploration's own storage


class Polls(RedisPlans):
    """Who is told that the lock is taken just asks again."""

    plan_queue = None  # type: ignore[assignment]


class Queues(RedisPlans):
    """Who has to wait does so in the queue, from the first question on."""

    def is_waited_for(self, resource: str) -> bool:
        return True


class OfACluster(Polls):
    """The keys of each lock are in a slot of their own: a batch is a call for each slot."""

    spans_slots = True


class Leased(Lease):
    """A lease that may be forgotten: its client is a value, and makes it again."""

    def __del__(self) -> None:
        pass


@dataclass(frozen=True)
class Program:
    """What a client does in each of its rounds: acquire and claim, then read, write (that many times), release.

    It takes no hint: it never looks at its lease, and goes on however late it is. ``order``: each write carries the seq
    it saw. ``write``: "guarded"; "unguarded", "claiming" and "two steps" each leave a rule. ``forces``: it takes the
    lock away from others instead. ``wakes``: all that wait ask again when the connection of their listener breaks.
    ``adopts``: it detaches its lease, and adopts that very fence so many times, one after the other. ``both``: it takes
    two locks, renews both in one request, and releases both in one request; it neither reads nor writes. ``reclaims``:
    after a write of unknown outcome it reclaims its lease, in so many calls at most, before it reads again. If none has
    an answer, it goes on if its lease lets it, or else it leaves its block.
    """

    rounds: int = 1
    writes: int = 1
    claims: bool = True
    renews: bool = False
    order: bool = False
    write: Literal["guarded", "unguarded", "claiming", "two steps"] = "guarded"
    forces: bool = False
    adopts: int = 0
    both: bool = False
    reclaims: int = 0
    timeout: float = math.inf
    clock_floor: bool = False
    plans: type[RedisPlans] = Polls
    lease: type[Lease] = Leased
    same_tokens: bool = False
    wakes: bool = True

    @property
    def settings(self) -> Settings:
        guards = (GUARD,) if self.claims else ()
        return Settings(ttl=10.0, guards=guards, owner="explorer")


@dataclass(frozen=True)
class Answered:
    """A script's reply."""

    reply: Reply
    seconds: float = 0.0


@dataclass(frozen=True)
class Claimed:
    """The guard admitted the claim, after so many seconds."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Lost:
    """No reply; it may have been done. ``undone``: a release was sent behind it."""

    seconds: float
    undone: bool = False


@dataclass(frozen=True)
class NotRun:
    """A call that was refused, and changed nothing; another attempt may succeed."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Woken:
    """It is time to ask again; or the time is up, after so many seconds."""

    seconds: float = 0.0


Answer = Answered | Claimed | Refused | Lost | NotRun | Woken
Effect = Call | Claim | Wait


class Local(NamedTuple):
    """A client. What is of no more use is cleared, so that equal situations are equal values."""

    phase: Phase = "acquire"
    round: int = 1
    fence: Fence | None = None
    base: Value = frozenset()
    seq: int = 0
    unknown: Fence | None = None  # of a write whose outcome is unknown
    writes: int = 0
    tokens: int = 0
    history: tuple[Answer, ...] = ()
    rejected: int = 0
    woken: bool = False  # it is to ask again as soon as it begins to wait
    recheck_at: int = 0  # ms of the server's clock; while it waits
    claiming: Fence | None = None  # what its plan holds, and claims
    others: tuple[Fence, ...] = ()  # what it holds beside ``fence``; in a reclaim, whether it was told or not
    detached: Fence | None = None
    adoptions: int = 0
    asked: str = ""  # the token of an adoption, or of a reclaim, that got no answer


class Ended(NamedTuple):
    """The plan's end: what it returned, or the error it raised, and the tokens it drew."""

    result: Any
    error: FencingError | None
    tokens: int
    asked: str = ""


_followed: dict[Any, tuple[Effect | None, Ended | None]] = {}


def forget() -> None:
    """Free what is remembered of plans, for explorations to come."""
    _followed.clear()


def token_of(client: int, index: int, program: Program) -> str:
    return f"{'X' if program.same_tokens else 'ABCDEFGH'[client]}-{0 if program.same_tokens else index:020d}"


def effect_of(client: int, program: Program, local: Local) -> Effect | None:
    """What the client's plan asks for; None where it runs none."""
    return _follow(client, program, local)[0] if local.phase in PLANS else None


def answered(client: int, program: Program, local: Local, answer: Answer) -> Local:
    """The client after an answer, at the next thing it asks for."""
    rejected = local.rejected + isinstance(answer, Refused)
    return settled(client, program, local._replace(history=(*local.history, answer), rejected=rejected))


def settled(client: int, program: Program, local: Local) -> Local:
    """Go through whatever needs no answer: ends of plans and of rounds."""
    while local.phase in PLANS:
        effect, ended = _follow(client, program, local)
        if ended is None:
            return local._replace(claiming=effect.fences[0] if isinstance(effect, Claim) else None)
        tokens = local.tokens + ended.tokens
        local = local._replace(history=(), claiming=None, tokens=tokens, asked=ended.asked)
        if local.phase == "acquire" and ended.error is None:
            local = _acquired(program, local, ended.result)
        elif local.phase == "adopt" and ended.error is None:
            local = local._replace(phase="read", fence=ended.result.fence)
        elif local.phase == "reclaim":
            local = _reclaimed(local, ended.result)
        elif local.phase == "renew":
            local = local._replace(phase="release" if program.both else "read")
        elif local.detached is not None and local.adoptions < program.adopts:
            local = local._replace(phase="adopt", fence=local.detached, adoptions=local.adoptions + 1)
        elif local.round < program.rounds:
            first: Phase = "force_release" if program.forces else "acquire"
            local = Local(phase=first, round=local.round + 1, tokens=local.tokens, rejected=local.rejected)
        else:
            return Local(phase="done", round=local.round, rejected=local.rejected)
    return local


def _acquired(program: Program, local: Local, result: Any) -> Local:
    if program.both:
        first, *others = [each.fence for each in result]
        return local._replace(phase="renew", fence=first, others=tuple(others))
    if program.adopts:
        return local._replace(phase="adopt", fence=result.fence, detached=result.fence, adoptions=1)
    return local._replace(phase="renew" if program.renews else "read", fence=result.fence)


def _reclaimed(local: Local, lease: Lease) -> Local:
    if lease.held:
        return local._replace(phase="read", fence=lease.fence, others=())
    asked = "" if lease._replacement is None else lease._replacement[0]
    return local._replace(phase="release", fence=lease.fence, others=(), asked=asked, unknown=None, writes=0)


def _follow(client: int, program: Program, local: Local) -> tuple[Effect | None, Ended | None]:
    key = (client, program, local.phase, local.fence, local.tokens, local.history, local.others, local.asked)
    found = _followed.get(key)
    if found is None:
        found = _followed[key] = _replay(client, program, local)
    return found


def _replay(client: int, program: Program, local: Local) -> tuple[Effect | None, Ended | None]:
    """Run the plan with the answers so far, up to the effect that has none yet, or to its end."""
    now = 0.0
    drawn = 0

    def new_token() -> str:
        nonlocal drawn
        drawn += 1
        return token_of(client, local.tokens + drawn, program)

    coordinator = program.plans()
    coordinator.clock_floor = program.clock_floor
    coordinator.clock = lambda: now
    coordinator.perform = _not_performed
    adoption = (process.pid(), local.fence)
    if local.asked and local.fence is not None:
        coordinator.adoptions[process.pid(), local.fence] = local.asked
    remaining = list(local.history)
    with _deterministic(new_token):
        stack = [_plan(program, coordinator, local)]
        send: Any = None
        throw: BaseException | None = None
        while True:
            try:
                effect = stack[-1].throw(throw) if throw is not None else stack[-1].send(send)
            except StopIteration as stop:
                send, throw = stop.value, None
                stack.pop()
                if not stack:
                    return None, Ended(send, None, drawn)
                continue
            except FencingError as error:
                send, throw = None, error
                stack.pop()
                if not stack:
                    asked = coordinator.adoptions.get(adoption, "")  # type: ignore[arg-type]
                    return None, Ended(None, error, drawn, asked)
                continue
            send = throw = None
            if isinstance(effect, (Shielded, At)):
                stack.append(effect.plan)
            elif isinstance(effect, Calls):
                missing, send = _each(effect, remaining)
                if missing is not None:
                    for plan in reversed(stack):
                        plan.close()
                    return missing, None
                now += max((answer.seconds for answer in send), default=0.0)
                send = [_sent_or_thrown(effect.calls[0], answer) for answer in send]
                send = [error if error is not None else reply for reply, error in send]
            elif isinstance(effect, Enlist):
                send = effect.waiter or Waiter(effect.resource, effect.token, _WAKING, "ABCDEFGH"[client])
            elif not isinstance(
                effect, (Sleep, GiveWay, Leave)
            ):  # a sleeper can only go on; when, the scheduler chooses
                assert isinstance(effect, (Call, Claim, Wait)), effect
                if not remaining:
                    for plan in reversed(stack):
                        plan.close()
                    return effect, None
                answer = remaining.pop(0)
                now += getattr(answer, "seconds", 0.0)
                send, throw = _sent_or_thrown(effect, answer)


def _each(effect: Calls, remaining: list[Any]) -> tuple[Call | None, list[Any]]:
    """Return the call that has no answer yet, and the answers to those before it: one is made after the other."""
    answers = [remaining.pop(0) for _ in effect.calls[: len(remaining)]]
    if len(answers) == len(effect.calls):
        return None, answers
    return effect.calls[len(answers)]._replace(timeout=effect.timeout), answers


def _plan(program: Program, coordinator: RedisPlans, local: Local) -> Plan[Any]:
    settings = program.settings
    deadline = coordinator.clock() + settings.request_seconds
    if program.both and local.phase == "acquire":
        parts = [_Part(coordinator, resource, settings, _itself) for resource in (RESOURCE, OTHER)]
        return acquire_all(parts, program.timeout)
    if program.both and local.fence is not None:
        fences = [local.fence, *local.others]
        if local.phase == "renew":
            return coordinator.plan_renew([_grant(fence) for fence in fences], settings, deadline=deadline)
        return coordinator.plan_release_all(fences, settings, deadline=deadline)
    if local.phase == "acquire":
        return plans.acquire(coordinator, RESOURCE, program.settings, program.timeout)
    if local.phase == "force_release":
        return plans.force_release(coordinator, RESOURCE, program.settings)
    assert local.fence is not None
    if local.phase == "adopt":
        return plans.adopt(coordinator, local.fence, program.settings)
    if local.phase == "renew":
        return plans.renew(coordinator, _grant(local.fence), program.settings)
    if local.phase == "reclaim":
        return _plan_reclaim(program, _lease(program, coordinator, local.fence))
    if local.asked:
        lease = _lease(program, coordinator, local.fence)
        lease._replacement = local.asked, 0
        return lease._plan_release(None)
    return plans.release(coordinator, local.fence, program.settings)


def _lease(program: Program, coordinator: RedisPlans, fence: Fence) -> Lease:
    grant = _grant(fence)
    grant.begin(program.settings, coordinator.clock())
    return program.lease(coordinator, grant)


def _grant(fence: Fence) -> Grant:
    return Grant(fence.resource, fence.number, fence.token, math.inf)


def _plan_reclaim(program: Program, lease: Lease) -> Plan[Lease]:
    """Reclaim the lease, in so many calls. Return the one that has the newest fence."""
    for _ in range(program.reclaims):
        try:
            newest: Lease = yield from plan_reclaim(lease, RECLAIM_SECONDS)
            return newest
        except FencingError:
            if lease._newest.held:  # without one of the rules
                break
    return lease._newest


def _not_performed(effect: Effect) -> None:
    raise AssertionError("the world does what plans ask for")


def _itself(holding: Grant) -> Grant:
    return holding


def _sent_or_thrown(effect: Effect, answer: Answer) -> tuple[Any, BaseException | None]:
    if isinstance(effect, Claim):
        if isinstance(answer, Refused):
            return None, StaleFence(fence=effect.fences[0], mark=answer.mark, floor=answer.floor)
        return None, GuardUnavailable("no reply") if isinstance(answer, Lost) else None
    if isinstance(effect, Wait):
        return None, None
    if isinstance(answer, Lost):
        return None, NoReply(ConnectionError("no reply"), may_have_run=True, was_undone=answer.undone)
    if isinstance(answer, NotRun):
        return None, NoReply(ConnectionError("refused"), may_have_run=False)
    assert isinstance(answer, Answered)
    return list(answer.reply) if isinstance(answer.reply, tuple) else answer.reply, None


class _Unused:
    """What nothing waits on: the scheduler wakes waiters."""

    def set(self) -> None:
        raise AssertionError("a waiter was woken outside the scheduler")


_WAKING = _Unused()


@contextmanager
def _deterministic(new_token: Any) -> Iterator[None]:
    """Tokens by number, and no chance in the pauses."""
    before, random.uniform = random.uniform, lambda low, high: high  # type: ignore[assignment]
    try:
        with tokens_from(new_token):
            yield
    finally:
        random.uniform = before

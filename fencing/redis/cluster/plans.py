"""The plans of a Redis Cluster where they differ: what names several slots takes several calls. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencing.kernel.effects import Plan, Sleep
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import LEAST_SECONDS, Answer, NoReply
from fencing.locks.backend import BACKOFF, Backend
from fencing.locks.holding import GrantOrFence
from fencing.locks.settings import Settings
from fencing.redis.calls import Call, Calls, call_without_token, release_keys
from fencing.redis.keys import slot_of
from fencing.redis.scripts import RELEASE_SEVERAL

MOST_PER_CALL = 100
"""Locks per call. One call blocks the server for well under half a millisecond."""

MOST_RENEWALS = 100_000
"""Leases renewed in one effect, so that a node that does not answer delays those of the others once."""

BRIEF_REPEATS = 2
"""How often an automatic renewal is repeated at once. Its leases are due again soon, and others wait for them."""


def by_slot(slots: Sequence[int]) -> list[list[int]]:
    """Return the positions of the slots, grouped by slot, at most ``MOST_PER_CALL`` in a group."""
    groups: dict[int, list[list[int]]] = {}
    for i, slot in enumerate(slots):
        found = groups.setdefault(slot, [[]])
        if len(found[-1]) == MOST_PER_CALL:
            found.append([])
        found[-1].append(i)
    return [group for groups_of_slot in groups.values() for group in groups_of_slot]


def plan_calls(
    backend: Backend,
    calls: Sequence[Call],
    about: str,
    settings: Settings,
    deadline: float,
    *,
    is_brief: bool = False,
) -> Plan[list[Answer | CoordinatorUnavailable]]:
    """Run calls of several slots, and repeat those without a reply until the deadline.

    The first repetition comes at once: in most cases, slots had moved.

    Args:
        is_brief: whether only those are repeated that certainly did not run, and a few times at most.

    Returns:
        The answer to each call; CoordinatorUnavailable: there was none.
    """
    clock = backend.clock
    answers: list[Any] = [None] * len(calls)
    may_have_run = [False] * len(calls)
    pending = list(range(len(calls)))
    failures, pause = 0, 0.0
    while True:
        sent_at = clock()
        timeout = max(min(settings.attempt_seconds, deadline - sent_at), LEAST_SECONDS)
        replies = yield Calls(tuple(calls[i] for i in pending), timeout)
        missing: list[int] = []
        for i, reply in zip(pending, replies, strict=True):
            if isinstance(reply, NoReply):
                if not (is_brief and reply.may_have_run):
                    missing.append(i)
                may_have_run[i] = may_have_run[i] or reply.may_have_run
                answers[i] = reply
            elif isinstance(reply, CoordinatorUnavailable):
                answers[i] = reply
            else:
                answers[i] = Answer(reply, sent_at, may_have_run[i])
        if not missing or (is_brief and failures >= BRIEF_REPEATS) or clock() + pause >= deadline:
            break
        yield Sleep(pause)
        failures += 1
        pause = BACKOFF.pause(failures)
        pending = missing
    return [backend.unanswered(about, each) if isinstance(each, NoReply) else each for each in answers]


def plan_release_all(
    backend: Backend, grants: Sequence[GrantOrFence], settings: Settings, deadline: float
) -> Plan[list[tuple[int, Answer]]]:
    """Free locks of several slots. Return for each lock that was answered its position, and the answer to it alone."""
    groups = by_slot([slot_of(grant.resource.encode()) for grant in grants])
    calls = []
    for group in groups:
        keys = tuple(key for i in group for key in release_keys(grants[i].resource))
        calls.append(call_without_token(RELEASE_SEVERAL, keys, tuple(grants[i].token for i in group)))
    answers = yield from plan_calls(backend, calls, f"{len(grants)} locks", settings, deadline)
    return [
        (i, answer._replace(value=answer.value[position : position + 1]))
        for group, answer in zip(groups, answers, strict=True)
        if isinstance(answer, Answer)
        for position, i in enumerate(group)
    ]

"""``hold(at_least=...)`` with time, on one Redis and on Redlock: nobody gets the lock before its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from fencing.kernel.errors import CoordinatorUnavailable, LeaseLost
from tests.explorer.redlock_nodes import Node
from tests.explorer.redlock_scenarios import GoesOnAtOnce
from tests.explorer.search import Result, explore
from tests.explorer.simulated_redis import Reply, SimulatedRedis
from tests.explorer.timed_locks import EARLY, TTL, TTL_US, Client, Timed, TimedWorld
from tests.explorer.timed_scenarios import GUARDED, retries, takes

Say = Callable[[object], None]

AT_LEAST = 2 * TTL


def stays(client: Client) -> None:
    """Take the lock, and leave it taken for two ttls."""
    client.acquire()
    client.pause("is to release")
    client.release_later(AT_LEAST)


def leaves(client: Client) -> None:
    """Do the same, at once."""
    client.acquire()
    client.release_later(AT_LEAST)


def renews_and_stays(client: Client) -> None:
    """Renew it, perhaps without an answer, and leave it taken."""
    lease = client.acquire()
    with suppress(CoordinatorUnavailable):
        lease.renew()
    client.release_later(AT_LEAST)


def reclaims_and_stays(client: Client) -> None:
    """Replace the fence, perhaps without an answer, and leave the lock taken."""
    client.acquire()
    with suppress(CoordinatorUnavailable, LeaseLost):
        client.reclaim()
    client.release_later(AT_LEAST)


STEP_US = TTL_US - 1
"""Two steps end a microsecond before the lock may be free."""

ONE = Timed("one Redis", (stays, takes), times=2, step_us=STEP_US)
LATE_ACQUIRE = replace(ONE, name="one Redis, a request without an answer", lost=1)
LATE_RENEWAL = replace(ONE, name="one Redis, a late renewal", clients=(renews_and_stays, takes), lost=1)
LATE_REMINT = replace(
    ONE, name="one Redis, a late remint", clients=(reclaims_and_stays, takes), settings=GUARDED, lost=1
)
NODES = replace(
    ONE, name="Redlock, in turn", clients=(leaves, takes), nodes=3, prompt=True, in_turn=True, longest_us=2 * TTL_US
)
RESTARTS = replace(
    NODES, name="Redlock, a node restarts without its data", clients=(leaves, retries), restarts=1, most=12
)

SAFE = [ONE]
THOROUGH = [
    LATE_ACQUIRE,
    LATE_RENEWAL,
    replace(ONE, name="one Redis, 2 requests without an answer", lost=2),
    NODES,
    replace(NODES, name="Redlock, a request without an answer, in turn", lost=1),
]
LATE_RELEASE = replace(
    NODES, name="Redlock, 2 requests without an answer, in turn", lost=2, times=1, step_us=TTL_US + 2000
)

DEEP = [LATE_REMINT, replace(LATE_RENEWAL, name="one Redis, late renewals", lost=2), RESTARTS, LATE_RELEASE]


def visited(scenario: Timed, *until: str) -> Result:
    return explore(scenario, until=until or None, world_of=TimedWorld, limit=500_000)


def marked(scenarios: list[Timed], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(each, id=each.name, marks=marks) for each in scenarios]


@pytest.mark.parametrize(
    "scenario", [*marked(SAFE), *marked(THOROUGH, pytest.mark.thorough), *marked(DEEP, pytest.mark.deep)]
)
def test_nobody_gets_the_lock_before_its_time(scenario: Timed, say: Say) -> None:
    result = visited(scenario)
    say(f"at_least, {result}")
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted
    assert result.states > 100, "the bounds leave little to explore"


class KeepsTheToken(SimulatedRedis):
    """A release that leaves the lock taken under the old token."""

    def _release_later(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        self.pexpire(keys[0], args[2])
        return super()._release_later(keys, (args[0], args[0], args[2]))


class CountsFromNow(SimulatedRedis):
    """The time without the millisecond that covers that Redis cuts its clock to whole ones."""

    def _release_later(self, keys: Sequence[str], args: Sequence[bytes]) -> Reply:
        return super()._release_later(keys, (*args[:2], b"%d" % (int(args[2]) - 1)))


class NodeCountsFromNow(CountsFromNow, Node):
    """The same at a node of Redlock."""


RULES: dict[str, tuple[Timed, int, Callable[[], Any] | None]] = {
    "the token is replaced (a late renewal)": (replace(LATE_RENEWAL, redis=KeepsTheToken), 14, None),
    "the token is replaced (a late acquire)": (replace(LATE_ACQUIRE, redis=KeepsTheToken), 13, None),
    "the token is replaced (a late remint)": (replace(LATE_REMINT, redis=KeepsTheToken), 17, None),
    "a millisecond more": (replace(ONE, redis=CountsFromNow), 11, None),
    "a millisecond more (Redlock)": (replace(NODES, redis=NodeCountsFromNow), 10, None),
    "a node without its data waits": (replace(RESTARTS, redis=GoesOnAtOnce), 9, None),
    "it does not exceed the longest ttl": (replace(RESTARTS, longest_us=TTL_US), 20, None),
    "a majority has it": (
        LATE_RELEASE,
        12,
        lambda: mock.patch("fencing.redlock.plans.decide_stay", lambda replies, quorum: replies.count(1) > 0),
    ),
}
"""A scenario, after how many steps another one gets the lock too early, and what switches the rule off, if the scenario
does not."""

SLOW = {
    "the token is replaced (a late remint)": pytest.mark.thorough,
    "the token is replaced (a late renewal)": pytest.mark.thorough,
    "it does not exceed the longest ttl": pytest.mark.deep,
    "a majority has it": pytest.mark.thorough,
}


@pytest.mark.parametrize("rule", [pytest.param(name, marks=SLOW.get(name, ())) for name in RULES])
def test_without_the_rule_another_gets_it_too_early(rule: str, say: Say) -> None:
    scenario, length, off = RULES[rule]
    with nullcontext() if off is None else off():
        violation = visited(scenario, EARLY).violations[EARLY]
    say(f"at_least without '{rule}': {violation}")
    assert len(violation) == length, str(violation)

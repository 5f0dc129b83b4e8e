"""Redlock's plans over several nodes: numbers grow, and each rule is needed. The simulated node beside a real one."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencing.kernel.effects import Plan
from fencing.redis.keys import keys_of
from fencing.redlock import scripts
from fencing.redlock.calls import member_words
from fencing.redlock.decisions import Confirm, Decision, Held
from fencing.redlock.plans import RedlockPlans
from tests.explorer.redlock_nodes import BACK, MEMBER, Node
from tests.explorer.redlock_world import TWICE, Faults, Nodes, Program, explore
from tests.explorer.simulated_redis import EMPTY, Reply
from tests.support.redlock import start_node

Say = Callable[[object], None]

TAKES = Program(("acquire",))
TAKES_AND_RELEASES = Program()
REPEATS = Program(("acquire", "again"))
REMINTS = Program(("acquire", "remint"))
ADMITS = Program(("admit",))
UNEQUAL = (0, 1, 2)
RESTARTED = (5, 4, 0)

SAFE = {
    "2 clients": Nodes((TAKES, TAKES_AND_RELEASES), Faults(expiries=1), UNEQUAL),
    "2 clients, 5 nodes": Nodes((TAKES,) * 2, counters=(0, 0, 0, 1, 1)),
    "a repeated request": Nodes((REPEATS, TAKES), Faults(), UNEQUAL),
    "1 client, lost and late": Nodes(
        (Program(("acquire", "again", "release")),), Faults(lost_replies=1, late=1, expiries=1), UNEQUAL
    ),
    "a node restarts": Nodes((TAKES,) * 2, Faults(restarts=1, expiries=1)),
    "a node comes back": Nodes((ADMITS, TAKES, TAKES), back=2, counters=RESTARTED),
    "a node comes back, lost messages": Nodes(
        (ADMITS, TAKES), Faults(lost_replies=1, lost_requests=1, expiries=1), RESTARTED, 2
    ),
    "a remint": Nodes((REMINTS, TAKES), Faults(expiries=1)),
}
DEEP = {
    "2 clients that release": Nodes((TAKES_AND_RELEASES,) * 2, Faults(expiries=1), UNEQUAL),
    "3 clients": Nodes((TAKES,) * 3, Faults(expiries=1)),
    "2 clients, lost and late": Nodes((TAKES,) * 2, Faults(lost_replies=1, late=1, expiries=1)),
    "a request that the network repeats": Nodes((REPEATS, TAKES), Faults(repeats=1, expiries=1), (0, 0, 1)),
    "a remint, a lost reply": Nodes((REMINTS, TAKES), Faults(lost_replies=1, expiries=1)),
    "2 clients, 5 nodes, an expiry": Nodes((TAKES,) * 2, Faults(expiries=1), (0,) * 5),
}


class NoConfirm(RedlockPlans):
    """The highest number of a majority counts at once."""

    def _plan_confirm(self, decision: Confirm, *args: Any) -> Plan[Decision]:
        return Held(decision.number)
        yield  # a plan is a generator


class ConfirmsByToken(Node):
    """A confirmation that compares the token only."""

    def _is_newer(self, own: bytes, number: bytes) -> bool:
        return False


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
    "the highest number is never lowered": (
        Nodes((Program(("other", "admit")), TAKES), Faults(lost_requests=1), RESTARTED, 2, node=LowersHighest),
        TWICE,
        14,
    ),
}
SLOW = ("a confirmation compares the number", "it waits for the longest ttl")


@pytest.mark.parametrize(
    "name", [*SAFE, *(pytest.param(name, marks=pytest.mark.thorough) for name in DEEP)], ids=lambda name: name
)
def test_numbers_grow(name: str, say: Say) -> None:
    found = explore((SAFE | DEEP)[name])
    say(f"Redlock, {name}: SAFE {found.states:,} states, {found.seconds:.1f} s")
    assert not found.violations, "\n".join(map(str, found.violations.values()))
    assert found.exhausted
    assert found.grants > 20, "the bounds leave little to explore"


@pytest.mark.parametrize(
    "rule", [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in RULES]
)
def test_without_the_rule_numbers_do_not_grow(rule: str, say: Say) -> None:
    scenario, violates, length = RULES[rule]
    found = explore(scenario, until=violates)
    violation = found.violations[violates]
    say(f"Redlock without '{rule}': {violation}")
    assert len(violation) == length, str(violation)


def test_nothing_is_found_with_the_same_rules_on() -> None:
    scenario, _, _ = RULES["the highest number is never lowered"]
    found = explore(Nodes(scenario.clients, scenario.faults, scenario.counters, scenario.back))
    assert found.exhausted
    assert not found.violations


@pytest.mark.parametrize("calls", [400, pytest.param(4000, marks=pytest.mark.thorough)])
def test_the_simulated_node_does_what_a_real_one_does(calls: int) -> None:
    seed = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)
    print(f"FENCING_SEED={seed}")
    chance = random.Random(seed)
    kinds: set[str] = set()
    with start_node() as server, server.client() as client:
        seconds, microseconds = client.time()
        simulated = Node(EMPTY._replace(clock_us=seconds * 1_000_000 + microseconds))
        for _ in range(calls):
            if chance.random() < 0.03:
                key = chance.choice(["r", MEMBER, BACK, keys_of("r").holder])
                client.delete(key)
                simulated.delete(key)
            script, keys, args = _random_call(chance)
            real = client.eval(getattr(scripts, script.upper()).text, len(keys), *keys, *args)
            reply = simulated.run(script, keys, args)
            kinds.add(f"{script} {_parts(reply)[0]!r:.9}")
            mine, theirs = _parts(reply), _parts(real)
            assert len(mine) == len(theirs), (script, args, reply, real)
            for one, other in zip(mine, theirs, strict=True):
                assert one == other or _is_close(one, other), (script, args, reply, real)
    assert len(kinds) > (12 if calls >= 4000 else 5), kinds  # in fewer, something may be missing by chance


def _random_call(chance: random.Random) -> tuple[str, list[str], list[str | int]]:
    names = keys_of(chance.choice("rs"))
    token, other = chance.choice("ABC") * 22, chance.choice("ABC") * 22
    run, longest, wait = chance.choice("xxxxxxy"), chance.choice([60_000] * 9 + [50_000]), chance.random() < 0.9
    words = member_words(f"process-{run}", longest, wait)
    keys = [names.lock, names.holder, names.counter]
    script = chance.choice(["acquire"] * 3 + ["remint", "force_release", "renew", "highest", "join", "release"])
    if script == "release":
        script = "join"  # that of one Redis is compared by its own tests
    if script == "highest":
        return script, [], [words]
    if script == "join":
        return script, [], [chance.randint(0, 50), chance.randint(0, 1), words]
    number = chance.randint(1, 60)
    if script == "renew":
        return script, keys, [60_000, token, number, words]
    more = [other] if script == "remint" else []
    floor = chance.choice([0, 0, 7, 2**53 - 1, 2**51 + 2**50])
    return script, keys, [token, 60_000, "me", floor, chance.choice([1, number]), *more, words]


def _is_close(one: Any, other: Any) -> bool:
    """Whether two times differ by less than the test takes; a number with 16 digits is one, in microseconds."""
    if isinstance(one, bytes):
        return one.isdigit() and other.isdigit() and int(one) > 10**15 and abs(int(one) - int(other)) < 60_000_000
    return bool(abs(one - other) < 60_000)


def _parts(reply: Reply | list[Any]) -> list[Any]:
    return list(reply) if isinstance(reply, (tuple, list)) else [reply]

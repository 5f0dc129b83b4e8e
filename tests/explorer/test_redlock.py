"""Redlock's plans over several nodes: numbers grow, and each rule is needed. The simulated node beside a real one."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from fencing.kernel.fence import digest_of
from fencing.redis.keys import keys_of
from fencing.redlock import scripts
from fencing.redlock.calls import MEMBER_KEYS, member_words
from tests.explorer.redlock_nodes import BACK, HIGHEST, MEMBER, SEED, Node
from tests.explorer.redlock_scenarios import DEEP, RULES, SAFE, SLOW, WRONG_NUMBERS
from tests.explorer.redlock_storage import LOST
from tests.explorer.redlock_world import BOTH_HOLD, TWICE, Nodes, explore
from tests.explorer.simulated_redis import EMPTY, Reply
from tests.support.redlock import start_node

Say = Callable[[object], None]


@pytest.mark.parametrize(
    "name", [*SAFE, *(pytest.param(name, marks=pytest.mark.deep) for name in DEEP)], ids=lambda name: name
)
def test_numbers_grow(name: str, say: Say) -> None:
    found = explore((SAFE | DEEP)[name])
    say(f"Redlock, {name}: SAFE {found.states:,} states, {found.seconds:.1f} s")
    assert not found.violations, "\n".join(map(str, found.violations.values()))
    assert found.exhausted
    assert found.grants > 20, "the bounds leave little to explore"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rule", [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in RULES]
)
def test_without_the_rule_its_violation_is_found(rule: str, say: Say) -> None:
    scenario, violates, length = RULES[rule]
    found = explore(scenario, until=violates)
    violation = found.violations[violates]
    say(f"Redlock without '{rule}': {violation}")
    assert len(violation) == length, str(violation)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in SLOW else ()) for name in WRONG_NUMBERS]
)
def test_no_update_is_lost_even_where_numbers_repeat(name: str, say: Say) -> None:
    found = explore(WRONG_NUMBERS[name], until=LOST)
    say(f"Redlock, {name}: no update is lost in {found.states:,} states, {found.seconds:.1f} s")
    assert LOST not in found.violations
    grants_again = name == "a node that restarted goes on"  # it has lost the locks that others hold
    assert set(found.violations) == ({TWICE, BOTH_HOLD} if grants_again else {TWICE})
    assert found.exhausted
    assert found.writes > 20


@pytest.mark.thorough
def test_nothing_is_found_with_the_same_rules_on() -> None:
    scenario, _, _ = RULES["the highest number is never lowered"]
    found = explore(Nodes(scenario.clients, scenario.faults, scenario.counters, scenario.back))
    assert found.exhausted
    assert not found.violations


@pytest.mark.parametrize("calls", [2000, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_the_simulated_node_does_what_a_real_one_does(calls: int) -> None:
    seed = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)
    print(f"FENCING_SEED={seed}")
    chance = random.Random(seed)
    kinds: set[str] = set()
    with start_node() as server, server.client() as client:
        simulated = Node(EMPTY)
        for step in range(calls):
            simulated.clock_us = time.time_ns() // 1000  # the server's clock is this machine's
            dice = chance.random()
            if dice < 0.3:
                key = chance.choice("rstu") if dice > 0.02 else chance.choice([MEMBER, BACK, keys_of("r").holder])
                client.delete(key)
                simulated.delete(key)
            elif dice < 0.32:  # it has waited for long
                back = b"process-x %d us" % (simulated.clock_us - 3600 * 1_000_000)
                client.set(BACK, back)
                simulated.set(BACK, back)
            script, keys, args = _random_call(chance, step, simulated)
            real = client.eval(getattr(scripts, script.upper()).text, len(keys), *keys, *args)
            reply = simulated.run(script, keys, args)
            mine, theirs = _parts(reply), _parts(real)
            kinds.add(f"{script} {'number' if mine[0].isdigit() else mine[0].decode()}")
            assert len(mine) == len(theirs), (script, args, reply, real)
            for one, other in zip(mine, theirs, strict=True):
                assert one == other or _is_close(one, other), (script, args, reply, real)
            assert client.mget(KEPT) == [simulated.get(key) for key in KEPT], (script, args)
            if (state := client.get(BACK)) is not None:  # each has noted its own moment
                assert simulated.get(BACK) is not None, (script, args)
                simulated.set(BACK, state)
    assert kinds >= OFTEN, OFTEN - kinds


OFTEN = {
    *("acquire number", "acquire taken", "acquire implausible", "acquire back", "acquire setting"),
    *("renew r", "renew g", "renew o", "remint number", "remint taken"),
    *("force_release number", "force_release taken"),
    *("highest member", "highest stranger", "join member", "join back"),
}
"""The replies that come more than once in 2,000 calls."""

KEPT = (*"rstu", *(keys_of(name).counter for name in "rstu"), MEMBER, SEED, HIGHEST)
"""The keys that two nodes which were sent the same calls have alike."""


def _random_call(chance: random.Random, step: int, node: Node) -> tuple[str, list[str], list[str | int]]:
    """Return a call; its numbers are near those of the node, or near ``step``, so that they grow."""
    names = keys_of(chance.choice("rstu"))
    token, other = chance.choice("ABC") * 22, chance.choice("ABC") * 22
    run, longest, wait = (
        "y" if chance.random() < 0.03 else "x",
        50_000 if chance.random() < 0.03 else 60_000,
        chance.random() < 0.97,
    )
    words = member_words(f"process-{run}", longest, wait)
    keys = [names.lock, names.holder, names.counter, *MEMBER_KEYS]
    script = chance.choice(["acquire"] * 3 + ["remint", "force_release", "renew", "renew", "highest", "join"])
    if script == "highest":
        return script, [*MEMBER_KEYS], [words]
    if script == "join":
        state = (node.get(BACK) or b"").decode() if chance.random() < 0.9 else "process-x 1 us"
        seed, at_once = max(0, step + chance.randint(-20, 20)), chance.randint(0, 1)
        return script, [*MEMBER_KEYS], [seed, at_once, "process-z 2 us", state, words]
    known = [step, *(int(node.get(key) or 0) for key in (names.counter, SEED))]
    number = max(1, chance.choice(known) + chance.randint(-1, 2))
    if script == "renew":
        if chance.random() < 0.5:
            token = (node.get(names.lock) or b"nobody").decode()
        return script, keys, [60_000, token, f"{number} {token} ", words]
    more: list[str | int] = []
    if script == "remint":
        more = [other, number]
    elif script == "force_release":
        held = (node.get(names.lock) or b"").decode() if chance.random() < 0.7 else other
        more = [digest_of(held), chance.randint(0, 1)]
    floor = chance.choice([0] * 6 + [7, 2**53 - 1, 2**51 + 2**50])
    return script, keys, [token, 60_000, "me", floor, chance.choice([1, 2**52, *[number] * 4]), *more, words]


def _is_close(one: Any, other: Any) -> bool:
    """Whether two times differ by less than a call takes; a number with 16 digits is one, in microseconds."""
    if isinstance(one, bytes):
        if one.endswith(b" us") and other.endswith(b" us"):  # the state of a process that is no member
            (run_id, one), (its_id, other) = one.split()[:2], other.split()[:2]
            if run_id != its_id:
                return False
        return one.isdigit() and other.isdigit() and int(one) > 10**15 and abs(int(one) - int(other)) < 60_000_000
    return bool(abs(one - other) < 60_000)


def _parts(reply: Reply | list[Any]) -> list[Any]:
    return list(reply) if isinstance(reply, (tuple, list)) else [reply]

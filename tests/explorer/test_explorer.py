"""With all rules on nothing is found; with each one off its shortest violation is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fencing.kernel.fence import Fence
from storage_guards import MemoryGuard
from tests.explorer import clients
from tests.explorer.__main__ import main
from tests.explorer.clients import Program
from tests.explorer.rules import RULES, Rule
from tests.explorer.scenarios import DEEP, SAFE, explored
from tests.explorer.search import explore
from tests.explorer.sqlite_storage import SQLiteBackend
from tests.explorer.state import CLAIM_BACK, LOST_UPDATE, REPAIR, STALE_READ, Bounds, Scenario
from tests.explorer.world import World

Say = Callable[[object], None]


_LONGER = (
    "2 clients, one that forgets to claim",
    "3 that queue, data loss",
    "2 clients, and one that takes the lock away",
    "2 clients, most faults",
    "2 clients, twice refused",
    "2 clients that renew",
    "3 clients",
    "3 clients without a lock",
    "3 clients, lost and late",
    "3 clients, new storage",
    "3 that queue, refused calls",
    "3 that queue, with a timeout",
    "5 that queue, two stopped",
    "2 clients, a kept remint",
    "2 clients, and one that takes the lock away, kept requests",
    "2 clients that renew, kept requests",
    "2 that adopt, kept requests",
    "2 that hold both of a cluster, kept requests",
    "2 that hold both, kept requests",
    "3 that queue, kept requests",
    "2 that reclaim, an expiry",
    "2 that reclaim, data loss",
    "2 that reclaim once, or leave their block",
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, id=name, marks=pytest.mark.thorough if name in _LONGER else ()) for name, each in SAFE.items()],
)
def test_all_rules_on(scenario: Scenario, say: Say) -> None:
    result = explored(scenario.name)
    say(result)
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted
    assert result.states > 500, "the bounds leave little to explore"


@pytest.mark.deep
@pytest.mark.parametrize("scenario", DEEP.values(), ids=str)
def test_all_rules_on_deeper(scenario: Scenario, say: Say) -> None:
    result = explore(scenario)
    clients.forget()
    say(result)
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_rule_off(rule: Rule, say: Say) -> None:
    result = explore(rule.scenario, until={rule.violates})
    assert rule.violates in result.violations, f"nothing found: {result}"
    violation = result.violations[rule.violates]
    say(f"without {rule}: {violation}")
    assert len(violation) == rule.length, str(violation)
    assert rule.length == rule.known or rule.known is None or rule.note, "say why the lengths differ"


def test_the_traces_are_the_words_of_the_safety_page() -> None:
    textbook = explore(RULES[1].scenario, until={LOST_UPDATE}).violations[LOST_UPDATE]
    assert " / ".join(textbook.trace) == (
        "A acq 1 / A reads 0 / A's lease expires / B acq 2 / B reads 0 / A writes 1 / B writes 1"
    )


def test_nothing_is_found_with_the_same_rules_on() -> None:
    """The same programs and faults as without the rule; what is found is due to the rule alone."""
    grant = Program(writes=2, order=True)
    for scenario in (
        Scenario("order", (grant,), Bounds(late_writes=2, lost=1)),
        Scenario("claims that are repeated with the write", (Program(write="claiming"),) * 2, Bounds(expiries=2)),
        Scenario("withdrawn", (Program(), Program()), Bounds(lost=2)),
    ):
        result = explore(scenario)
        print(result)
        assert not result.violations, "\n".join(map(str, result.violations.values()))
        assert result.exhausted


def test_equality_keeps_a_lost_mark_from_losing_updates() -> None:
    """Claims go back then, which newest-wins does not survive; but who has read claims no second time, so no write is
    accepted that builds on what is not current. With a claim in each write one is: see the rules."""
    result = explore(Scenario("mark lost", (Program(),) * 2, Bounds(expiries=2, marks_lost=1)), until=())
    print(result)
    assert result.exhausted
    assert CLAIM_BACK in result.violations
    assert not {LOST_UPDATE, STALE_READ} & set(result.violations)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(SAFE["2 clients, twice refused"], marks=pytest.mark.thorough),
        pytest.param(SAFE["2 clients, one that forgets to claim"], marks=pytest.mark.thorough),
        Scenario("2 clients that claim as they write", (Program(write="claiming"),) * 2, Bounds(expiries=1, resets=1)),
        Scenario("2 clients, marks pruned under a floor", (Program(),) * 2, Bounds(expiries=1, marks_pruned=1)),
    ],
    ids=str,
)
def test_sqlite_does_what_the_memory_guard_does(scenario: Scenario, tmp_path: Path, say: Say) -> None:
    """Each distinct operation on each distinct state is run on the real SQLAlchemyGuard; the answers are the same."""
    backend = SQLiteBackend(tmp_path / "explored.db")
    on_sqlite = explore(replace(scenario, backend=backend))
    backend.close()
    say(f"on SQLite, {on_sqlite}")
    assert on_sqlite.exhausted
    assert not on_sqlite.violations, "\n".join(map(str, on_sqlite.violations.values()))
    in_memory = explored(scenario.name) if scenario.name in SAFE else explore(scenario)
    assert (on_sqlite.states, on_sqlite.steps) == (in_memory.states, in_memory.steps)
    assert on_sqlite.world is not None
    assert in_memory.world is not None
    print(f"{len(on_sqlite.world.operations)} distinct operations")
    assert on_sqlite.world.operations == in_memory.world.operations


def test_two_runs_find_the_same() -> None:
    scenario = SAFE["2 clients, new storage"]
    first, second = explore(scenario), explore(scenario)
    assert (first.states, first.steps, first.depth) == (second.states, second.steps, second.depth)


def test_a_waiter_that_is_told_of_a_holder_enters_the_queue() -> None:
    """Its request has handed the lock to somebody who is gone, so it must ask again: it is not the holder's turn."""
    scenario = DEEP["2 that queue, most faults"]
    world = World(scenario)
    state = world.start()
    for label in (
        "A's acquire hangs",
        "A acq 1",
        "A claims, the reply is lost",
        "A releases",
        "Redis loses its data",
        "B acq 1",
        "B's claim is refused",
        "A's acquire lands: queued",
        "B's lease expires",
        "B's remint: gone",
        "B is taken",
        "B is queued",
        "A is told: grant",
        "A's release lands: 3",
        "B is told: grant",
        "B acq 2",
    ):
        steps = {step.label: step for step in world.steps(state)}
        assert label in steps, (label, list(steps))
        state = steps[label].state


def test_a_search_that_is_stopped_by_its_limit_has_an_exit_status_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = ["--clients", "2", "--expiries", "1"]
    assert main(own) == 0
    assert main([*own, "--limit", "20"]) == 3
    assert "stopped by its limit of 20 states" in capsys.readouterr().out


def test_the_explorer_leaves_the_guard_as_it_was() -> None:
    explore(RULES[0].scenario, until={LOST_UPDATE})
    guard = MemoryGuard()
    guard.claim(Fence("r", 2, "t" * 22))
    assert guard.mark("r") is not None


def test_on_a_storage_with_history_the_repair_may_take_one_more() -> None:
    """Redis loses its data while a grant is under way; its claim comes between the refusal and the repair."""
    scenario = Scenario("used", (Program(),) * 2, Bounds(resets=1), earlier=4, repair=2)
    assert explore(scenario).violations[REPAIR].trace == (
        "A acq 5",
        "Redis loses its data",
        "B acq 1",
        "B's claim is refused",  # the mark is 4
        "A claims",
        "B remints 5",  # above 4, and A has 5 meanwhile
        "B's claim is refused",  # the next remint gives 6
    )
    assert not explore(replace(scenario, repair=1)).violations
    assert not explore(replace(scenario, earlier=0)).violations

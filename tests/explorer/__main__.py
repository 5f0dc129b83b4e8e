"""``make explore``: the explorations, with the large ones that no test walks; with arguments, one of your own.

make explore                                                        those of one Redis
make explore ARGS="--large"                                         of these, the one that no test walks
make explore ARGS="--rules"                                         what happens with each rule off
make explore ARGS="--redlock"                                       Redlock over several nodes
make explore ARGS="--exclusion"                                     exclusion with time, and what breaks it
make explore ARGS="--clients 3 --expiries 2 --resets 1 --lost 1"    your own bounds

docs/internals/exploration.md says how long each takes, and how much memory. The exit status is 0 if all states were
visited and nothing was found, 1 if something was found, and 3 if a search was stopped by its limit.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.explorer import clients, redlock_scenarios, redlock_world, timed_scenarios
from tests.explorer.clients import Program
from tests.explorer.rules import RULES
from tests.explorer.scenarios import DEEP, LARGE, SAFE, NoLock
from tests.explorer.search import Result, explore
from tests.explorer.sqlite_storage import SQLiteBackend
from tests.explorer.state import Bounds, Scenario
from tests.explorer.timed_locks import BOTH, LAST_CHECK, TimedWorld

MOST_CLIENTS = 8
FOUND, STOPPED = 1, 3
"""Exit statuses: a violation was found; a search was stopped by its limit."""

FAULTS = [name for name in Bounds._fields if not name.startswith("marks_") and name != "takeovers"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make explore", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", action="store_true", help="each rule off, and the shortest trace that violates")
    parser.add_argument("--large", action="store_true", help="the one that no test walks")
    parser.add_argument("--redlock", action="store_true", help="the explorations of Redlock, small and large")
    parser.add_argument("--exclusion", action="store_true", help="exclusion with time, and what breaks it")
    parser.add_argument("--clients", type=int, default=2, choices=range(1, MOST_CLIENTS + 1))
    parser.add_argument("--rounds", type=int, default=1, help="how often each client acquires")
    parser.add_argument("--writes", type=int, default=1, help="how often each writes under one grant")
    parser.add_argument("--earlier", type=int, default=0, help="the number that a holder before had; 0: none")
    parser.add_argument("--renews", action="store_true", help="each client renews once")
    parser.add_argument("--clock-floor", action="store_true", help="the server's clock is a floor for numbers")
    parser.add_argument("--timeout", type=float, default=float("inf"), help="of acquire, in seconds")
    parser.add_argument("--no-lock", action="store_true", help="everybody is granted at once")
    parser.add_argument("--storage", choices=["memory", "sqlite"], default="memory")
    parser.add_argument("--limit", type=int, default=7_000_000, help="stop after so many states (some 1 to 2 KB each)")
    for fault in FAULTS:
        parser.add_argument(f"--{fault.replace('_', '-')}", type=int, default=0, metavar="N", help="at most so many")
    options = parser.parse_args(arguments)
    if options.rules:
        return _rules()
    if options.redlock:
        return _status([_redlock(name, nodes, options.limit) for name, nodes in redlock_scenarios.ALL.items()])
    if options.exclusion:
        return _exclusion(options.limit)
    own = [option for option in vars(options) if getattr(options, option) != parser.get_default(option)]
    if not set(own) - {"storage", "limit", "large"}:
        scenarios = list((LARGE if options.large else SAFE | DEEP | LARGE).values())
        return _status([_one(scenario, options.limit, options.storage) for scenario in scenarios])
    bounds = Bounds(**{fault: getattr(options, fault) for fault in FAULTS})
    program = Program(
        rounds=options.rounds,
        writes=options.writes,
        order=options.late_writes > 0,
        renews=options.renews,
        clock_floor=options.clock_floor,
        timeout=options.timeout,
    )
    scenario = Scenario(f"{options.clients} clients", (program,) * options.clients, bounds, earlier=options.earlier)
    if options.no_lock:
        scenario = replace(scenario, redis=NoLock, repair=SAFE["3 clients without a lock"].repair)
    return _one(scenario, options.limit, options.storage)


def _status(each: Sequence[int]) -> int:
    return FOUND if FOUND in each else max(each)


def _one(scenario: Scenario, limit: int, storage: str) -> int:
    if storage == "memory" or any(program.order for program in scenario.programs):
        return _report(explore(scenario, limit=limit))
    with tempfile.TemporaryDirectory() as folder:
        backend = SQLiteBackend(Path(folder) / "explored.db")
        try:
            return _report(explore(replace(scenario, backend=backend), limit=limit))
        finally:
            backend.close()


def _redlock(name: str, nodes: redlock_world.Nodes, limit: int) -> int:
    found = redlock_world.explore(nodes, limit=limit)
    verdict = "SAFE" if found.exhausted and not found.violations else "stopped"
    return _print(f"Redlock, {name}: {verdict} {found.states:,} states, {found.seconds:.0f} s", found, limit)


def _report(result: Result) -> int:
    status = _print(str(result), result, result.limit)
    clients.forget()
    return status


def _print(line: str, found: Result | redlock_world.Found, limit: int) -> int:
    """Print what was found, and return the exit status for it."""
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{line}, at most {gigabytes:.2f} GB so far", flush=True)
    for violation in found.violations.values():
        print(f"    {violation}", flush=True)
    if found.violations:
        return FOUND
    if not found.exhausted:
        print(f"    stopped by its limit of {limit:,} states: what lies beyond was not visited", flush=True)
        return STOPPED
    return 0


def _exclusion(limit: int) -> int:
    """Visit what must be safe; then print the shortest traces of what breaks exclusion."""
    status = _status(
        [_report(explore(each, limit=limit, world_of=TimedWorld)) for each in timed_scenarios.ALL.values()]
    )
    missing = False
    for name, (scenario, _, off) in timed_scenarios.ALL_BROKEN.items():
        with off():
            result = explore(scenario, until=timed_scenarios.AFTER_A_PAUSE, limit=limit, world_of=TimedWorld)
        found = result.violations.get(BOTH) or result.violations.get(LAST_CHECK)
        missing = missing or found is None
        print(f"{name}:\n    {found or 'nothing was found!'}", flush=True)
    return max(status, int(missing))


def _rules() -> int:
    missing = 0
    for rule in RULES:
        found = explore(rule.scenario, until={rule.violates}).violations.get(rule.violates)
        missing += found is None
        print(f"without {rule}:\n    {found or 'nothing was found!'}")
    return min(missing, 1)


if __name__ == "__main__":
    gc.disable()  # nothing that an exploration holds can go, and to look at it again and again takes most of the time
    sys.exit(main(sys.argv[1:]))

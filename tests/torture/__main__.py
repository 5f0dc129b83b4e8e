"""``python -m tests.torture --seconds 600 --seed 1 --on postgresql,redis``: every guard, under faults, for as long.

python -m tests.torture check HISTORY                   check a history again
python -m tests.torture draw HISTORY [COUNTER@SECONDS]  draw it, around a moment or around the first violation
python -m tests.torture schedule NAME                   step two holders through one schedule
python -m tests.torture list                            name the services, the faults and the schedules
python -m tests.torture parsers --seconds 60 --seed 1   feed all parsers generated and damaged input
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path

from tests.torture.checker import check
from tests.torture.contenders import CONTENDERS
from tests.torture.drawing import draw_file
from tests.torture.faults import kinds
from tests.torture.history import read_history
from tests.torture.parsers import PARSERS, attack
from tests.torture.run import PAUSE, SLACK, Outcome, torture
from tests.torture.schedules import SCHEDULES, play
from tests.torture.services import KINDS, at_hand


def main() -> int:
    commands = {"check": check_one, "draw": draw_one, "schedule": schedule_one, "list": list_all}
    commands["parsers"] = attack_parsers
    if len(sys.argv) > 1 and sys.argv[1] in commands:
        return commands[sys.argv[1]](sys.argv[2:])
    return run(sys.argv[1:])


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300, help="how long faults happen (300)")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**32), help="of all choices; printed first")
    parser.add_argument("--on", default="", help=f"services, of {', '.join(KINDS)}; all at hand by default")
    parser.add_argument("--kinds", default="", help="of faults; all by default")
    parser.add_argument(
        "--with", dest="contender", default="", help=f"in the place of the library: {', '.join(CONTENDERS)}"
    )
    parser.add_argument("--pause", type=float, default=PAUSE, help=f"longest seconds of work in a turn ({PAUSE})")
    parser.add_argument("--slack", type=float, default=SLACK, help=f"seconds that a busy machine may add ({SLACK:g})")
    parser.add_argument("--folder", type=Path, help="where logs and the history go")
    given = parser.parse_args(arguments)
    on = given.on.split(",") if given.on else at_hand()
    print(f"--seed {given.seed} --seconds {given.seconds:g} --on {','.join(on)}", flush=True)
    outcome = torture(
        given.seed,
        given.seconds,
        on,
        contender=given.contender,
        kinds=given.kinds.split(",") if given.kinds else (),
        slack=given.slack,
        pause=given.pause,
        folder=given.folder,
    )
    print(f"machine            {os.getloadavg()[1]:.0f} processes ran or waited, for {os.cpu_count()} processors")
    return _report(outcome)


def _report(outcome: Outcome) -> int:
    print(outcome)
    return 1 if outcome.violations else 0


def check_one(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture check", description="Check a history again.")
    parser.add_argument("history", type=Path)
    given = parser.parse_args(arguments)
    if not given.history.is_file():
        parser.error(f"there is no file {given.history}; a run prints the path of its history")
    violations = check(read_history(given.history))
    print("\n".join(map(str, violations)) or "no violations")
    return 1 if violations else 0


def draw_one(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture draw", description="Draw a part of a history.")
    parser.add_argument("history", type=Path)
    parser.add_argument(
        "at", nargs="?", default="", help="COUNTER@SECONDS; the first violation, or the end, by default"
    )
    given = parser.parse_args(arguments)
    if not given.history.is_file():
        parser.error(f"there is no file {given.history}; a run prints the path of its history")
    try:
        print(draw_file(given.history, given.at))
    except ValueError as error:
        parser.error(str(error))
    return 0


def schedule_one(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture schedule", description="Play one schedule.")
    parser.add_argument("name", choices=SCHEDULES)
    parser.add_argument("--with", dest="contender", default="", help="as of a run")
    parser.add_argument("--folder", type=Path, help="where the history goes")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="torture-"))
    return _report(play(given.name, folder, given.contender))


def attack_parsers(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture parsers", description="Attack all parsers.")
    parser.add_argument("--seconds", type=float, default=60, help="for how long (60)")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**32), help="of all input; printed first")
    parser.add_argument("--only", action="append", choices=PARSERS, help="one parser; may be repeated")
    given = parser.parse_args(arguments)
    print(f"--seed {given.seed} --seconds {given.seconds:g}", flush=True)
    tallies, faults = attack(given.seed, given.seconds, names=tuple(given.only or ()))
    for name, tally in tallies.items():
        print(f"{name:24} {tally.read:9,} read {tally.refused:9,} refused   slowest {tally.slowest * 1000:.1f} ms")
    print("\n".join(faults) or "no faults")
    return 1 if faults else 0


def list_all(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="python -m tests.torture list").parse_args(arguments)
    for name, kind in KINDS.items():
        print(f"service   {name}" + (f" (not here: {kind.why_not()})" if kind.why_not() else ""))
    for name in kinds():
        print(f"fault     {name}")
    for name, schedule in SCHEDULES.items():
        print(f"schedule  {name}: {(schedule.play.__doc__ or '').rstrip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.torture --seconds 600 --seed 1 --on postgresql,redis``: every guard, under faults, for as long."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.torture.checker import check
from tests.torture.contenders import CONTENDERS
from tests.torture.drawing import draw
from tests.torture.history import read_history
from tests.torture.run import PAUSE, torture
from tests.torture.services import KINDS, at_hand


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300, help="how long faults happen (300)")
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**32), help="of all choices; printed first")
    parser.add_argument("--on", default="", help=f"services, of {', '.join(KINDS)}; all at hand by default")
    parser.add_argument("--kinds", default="", help="of faults; all by default")
    parser.add_argument(
        "--with", dest="contender", default="", help=f"in the place of the library: {', '.join(CONTENDERS)}"
    )
    parser.add_argument("--pause", type=float, default=PAUSE, help=f"longest seconds of work in a turn ({PAUSE})")
    parser.add_argument("--folder", type=Path, help="where logs and the history go")
    parser.add_argument("--check", type=Path, help="only check this history")
    parser.add_argument(
        "--draw", metavar="COUNTER@SECONDS", help="with --check: draw what a counter saw around a moment"
    )
    given = parser.parse_args()
    if given.check:
        history = read_history(given.check)
        if given.draw:
            counter, _, moment = given.draw.partition("@")
            target = given.check.with_suffix(".svg")
            target.write_text(draw(history, counter, float(moment)), "utf-8")
            print(target)
        violations = check(history)
        print("\n".join(map(str, violations)) or "no violations")
        return 1 if violations else 0
    on = given.on.split(",") if given.on else at_hand()
    print(f"--seed {given.seed} --seconds {given.seconds:g} --on {','.join(on)}", flush=True)
    kinds = given.kinds.split(",") if given.kinds else ()
    outcome = torture(
        given.seed,
        given.seconds,
        on,
        contender=given.contender,
        kinds=kinds,
        pause=given.pause,
        folder=given.folder,
    )
    print(outcome)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())

"""``make redlock``: seeded schedules of faults on five real Redis, with their counts. About four seconds each."""

from __future__ import annotations

import argparse
import random
import sys

from tests.redlock.schedules import Counts, Schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="make redlock", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1, 2**31), help="of the first; each next is one more"
    )
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    total = Counts()
    for seed in range(options.seed, options.seed + options.runs):
        counts = Schedule(seed).run()
        total.add(counts)
        if counts.lost_under_guard or counts.numbers_not_higher:
            print(f"--runs 1 --seed {seed}: {counts}", flush=True)
        if total.schedules % 20 == 0:
            print(total, flush=True)
    print(total)
    return 1 if total.lost_under_guard else 0


if __name__ == "__main__":
    sys.exit(main())

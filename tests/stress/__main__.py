"""``python -m tests.stress --seconds 60 --seed 7``: processes that wait, stopped, killed and cut off, for as long."""

from __future__ import annotations

import argparse
import random

from examples.servers import start_redis
from tests.stress.queue import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 2**32))
    parser.add_argument("--redis", help='its version: "8", "7", "6.2"; the newest there is')
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    for faults in (False, True):
        with start_redis(version=options.redis, own=True) as server:
            print(run(server, options.seconds / 2, options.seed, faults=faults), flush=True)


if __name__ == "__main__":
    main()

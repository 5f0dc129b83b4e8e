"""Show how a failover of Redis grants a lock twice, and how a guard refuses the late write that follows."""

import sys
from collections.abc import Sequence
from functools import partial

import redis
from sqlalchemy.exc import SQLAlchemyError

from examples.failover.story import STORY, TITLE, set_up
from examples.gc_pause.director import LANES
from examples.gc_pause.report import Paper, draw_act, write_report
from examples.stage.run import Demo, run
from fencing import FencingError

PAPER = Paper("failover.html", TITLE, LANES)
write, draw = partial(write_report, paper=PAPER), partial(draw_act, paper=PAPER)
FAILURES = (FencingError, SQLAlchemyError, redis.RedisError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    return run(Demo("examples.failover", __doc__, STORY, set_up, write, draw, FAILURES), arguments)


if __name__ == "__main__":
    sys.exit(main())

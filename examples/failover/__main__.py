"""Show how a failover of Redis grants a lock twice, and how a guard refuses the late write that follows."""

import sys
from collections.abc import Sequence

import redis
from sqlalchemy.exc import SQLAlchemyError

from examples.failover.story import STORY, set_up
from examples.stage.run import Demo, run
from fencing import FencingError

FAILURES = (FencingError, SQLAlchemyError, redis.RedisError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    return run(Demo("examples.failover", __doc__, STORY, set_up, FAILURES, ("sentinel",)), arguments)


if __name__ == "__main__":
    sys.exit(main())

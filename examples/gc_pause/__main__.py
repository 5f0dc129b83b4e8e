"""Show how the late write of a paused lock holder corrupts a row in PostgreSQL, and how a guard refuses it."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack

import redis
from sqlalchemy.exc import SQLAlchemyError

from examples.drawing.events import Recorder
from examples.gc_pause.director import Director
from examples.gc_pause.setting import set_up_deposits
from examples.gc_pause.story import STORY
from examples.stage.coordinators import CHOICES, names_of_our_own
from examples.stage.run import Demo, Options, run
from examples.stage.screen import Screen
from fencing import FencingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    failures = (FencingError, SQLAlchemyError, redis.RedisError)
    return run(Demo("examples.gc_pause", __doc__, STORY, set_up, failures, tuple(CHOICES)), arguments)


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, options: Options) -> Director:
    """Two worker processes, a coordinator, a database of our own; the stack removes all of it again."""
    setting = set_up_deposits(stack, screen, options.ttl, options.coordinator, CHOICES[options.coordinator].start)
    return Director(*setting, recorder, screen, ttl=options.ttl, prefix=names_of_our_own())


if __name__ == "__main__":
    sys.exit(main())

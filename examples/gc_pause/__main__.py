"""Show how the late write of a paused lock holder corrupts a row in PostgreSQL, and how a guard refuses it."""

import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import redis
from sqlalchemy.exc import SQLAlchemyError

from examples.drawing.events import Recorder
from examples.gc_pause.director import Director
from examples.gc_pause.report import draw_act, write_report
from examples.gc_pause.setting import set_up_deposits
from examples.gc_pause.story import STORY
from examples.servers import RedisServer, start_redis
from examples.stage.run import Demo, Options, run, version
from examples.stage.screen import Screen
from fencing import FencingError


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    demo = Demo(
        "examples.gc_pause",
        __doc__,
        STORY,
        set_up,
        write_report,
        draw_act,
        (FencingError, SQLAlchemyError, redis.RedisError),
    )
    return run(demo, arguments)


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, options: Options) -> Director:
    """Two worker processes, a Redis, a database of our own; the stack removes all of it again."""
    started: list[RedisServer] = []

    def start_locks() -> tuple[str, str]:
        started.append(stack.enter_context(start_redis()))
        return started[0].url, f"Redis {version(started[0].version)}"

    setting = set_up_deposits(stack, screen, options.ttl, start_locks)
    server = started[0]
    client = stack.enter_context(server.client())
    # Other programs use this Redis: take names of our own. They share a hash tag, so at most one counter stays.
    prefix = f"{{fencing-demo}}:{secrets.token_hex(4)}:" if server.external else ""
    return Director(setting.workers, client, setting.engine, recorder, screen, ttl=options.ttl, prefix=prefix)


if __name__ == "__main__":
    sys.exit(main())

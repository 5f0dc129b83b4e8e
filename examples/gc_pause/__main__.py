"""Show how the late write of a paused lock holder corrupts a row in PostgreSQL, and how a guard refuses it."""

import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import redis
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from examples.drawing.events import Recorder
from examples.gc_pause.deposits import metadata
from examples.gc_pause.director import AMOUNTS, Director
from examples.gc_pause.report import draw_act, write_report
from examples.gc_pause.story import STORY
from examples.servers import start_postgres, start_redis
from examples.stage.process import WorkerProcess
from examples.stage.run import Demo, run, version
from examples.stage.screen import Screen
from fencing import FencingError
from storage_guards import SQLAlchemyGuard


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


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, ttl: float) -> Director:
    """Two worker processes, a Redis, a database of our own; the stack removes all of it again."""
    screen.wait("starting two processes, Redis and PostgreSQL")
    workers = {}
    for name in AMOUNTS:  # they import while the servers start
        workers[name] = WorkerProcess(name, "examples.gc_pause.worker")
        stack.callback(workers[name].close)
    redis_server = stack.enter_context(start_redis())
    postgres = stack.enter_context(start_postgres())
    url = postgres.create_database()
    stack.callback(postgres.drop_database, url)
    engine = create_engine(url)
    stack.callback(engine.dispose)
    metadata.create_all(engine)
    SQLAlchemyGuard(engine).create_tables()
    for worker in workers.values():
        worker.send(redis=redis_server.url, database=url, ttl=ttl)
    for worker in workers.values():
        worker.report(lambda: screen.wait("starting two processes, Redis and PostgreSQL"))
    servers = f"Redis {version(redis_server.version)}, PostgreSQL {version(postgres.version)}"
    pids = ", ".join(f"{name} is process {worker.pid}" for name, worker in workers.items())
    screen.say(f"{pids}; {servers}.", "2")
    client = stack.enter_context(redis_server.client())
    # Other programs use this Redis: take names of our own. They share a hash tag, so at most one counter stays.
    prefix = f"{{fencing-demo}}:{secrets.token_hex(4)}:" if redis_server.external else ""
    return Director(workers, client, engine, recorder, screen, ttl=ttl, prefix=prefix)


if __name__ == "__main__":
    sys.exit(main())

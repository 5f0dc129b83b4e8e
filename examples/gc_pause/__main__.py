"""Watch a paused lock holder's late write corrupt a row in PostgreSQL, then the same write being refused."""

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import redis
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from examples.drawing.events import Recorder
from examples.gc_pause import story
from examples.gc_pause.deposits import metadata
from examples.gc_pause.director import AMOUNTS, Director
from examples.gc_pause.process import DemoError, WorkerProcess
from examples.gc_pause.report import write_report
from examples.gc_pause.screen import Screen
from examples.servers import ServerError, start_postgres, start_redis
from fencing import FencingError
from storage_guards import SQLAlchemyGuard


def main(arguments: Sequence[str] | None = None) -> int:
    """0: each act came out as claimed. 1: one did not, or could not be played. 130, 143: interrupted."""
    parser = argparse.ArgumentParser(prog="python -m examples.gc_pause", description=__doc__)
    parser.add_argument("--act", choices=["1", "2", "3"], help="play this act only")
    parser.add_argument("--ttl", type=float, default=1.5, help="seconds the lock lives (default 1.5)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the recorded events there, one a line")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write the drawing there (default: a temporary file)")
    options = parser.parse_args(arguments)
    if not 0.5 <= options.ttl <= 30:
        parser.error("--ttl lies between 0.5 and 30 seconds")
    for name, path in (("--json", options.json), ("--html", options.html)):
        if path and not os.access(path.parent, os.W_OK):
            parser.error(f"{name}: cannot write to {path.parent}")
    screen = Screen()
    recorder = Recorder(story.Narrator(screen))
    try:
        status = play(screen, recorder, options.act or "", options.ttl)
        drawn = write_report(options.html, " ".join(story.introduction(options.ttl)), recorder.events)
        screen.draw(["", screen.look.plain(f"Drawn: {drawn}")])  # a path is not wrapped
        return status
    except KeyboardInterrupt:
        screen.say("Interrupted; processes and servers are stopped.")
        return 130
    except BrokenPipeError:  # nobody reads on, `| head` for one
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DemoError, ServerError, FencingError, SQLAlchemyError, redis.RedisError) as error:
        screen.say()
        print(f"The demo could not be played: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json:
            recorder.write_json(options.json)


def play(screen: Screen, recorder: Recorder, only: str, ttl: float) -> int:
    for sentence in story.introduction(ttl):
        screen.say(sentence)
    outcomes = []
    with signals_as_exceptions() as quiet, ExitStack() as stack:
        try:
            director = set_up(stack, screen, recorder, ttl)
            for act in story.ACTS:
                if act.key.startswith(only):
                    story.open_act(screen, act)
                    outcome = director.play(act)
                    story.close_act(screen, recorder, outcome)
                    outcomes.append(outcome)
            screen.wait("stopping processes and servers")
        finally:
            quiet()
    story.summarize(screen, outcomes)
    return 0 if all(outcome.as_claimed for outcome in outcomes) else 1


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, ttl: float) -> Director:
    """Two worker processes, a Redis, a database of our own; the stack takes all of it away again."""
    screen.wait("starting two processes, Redis and PostgreSQL")
    workers = {}
    for name in AMOUNTS:  # they import while the servers start
        workers[name] = WorkerProcess(name)
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
    # A Redis that others use: names of our own. They share a hash tag, so at most one counter is left behind.
    prefix = f"{{fencing-demo}}:{secrets.token_hex(4)}:" if redis_server.external else ""
    return Director(workers, client, engine, recorder, screen, ttl=ttl, prefix=prefix)


@contextmanager
def signals_as_exceptions() -> Iterator[Callable[[], None]]:
    """SIGTERM ends the demo as Ctrl-C does. Gives a function after which neither disturbs the tidying up."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def quiet() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    before = {signal.SIGINT: signal.getsignal(signal.SIGINT), signal.SIGTERM: signal.signal(signal.SIGTERM, leave)}
    try:
        yield quiet
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def version(parts: Sequence[int]) -> str:
    return ".".join(map(str, parts))


if __name__ == "__main__":
    sys.exit(main())

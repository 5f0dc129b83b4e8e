"""Show how a service that checks fences in a middleware loses an update, and how one that checks in its transaction
refuses the late write."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import redis
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from examples.drawing.events import Recorder
from examples.gc_pause.deposits import metadata
from examples.gc_pause.director import AMOUNTS
from examples.http_service.director import Director, wait_for_port
from examples.http_service.story import STORY
from examples.stage.coordinators import CHOICES, names_of_our_own
from examples.stage.process import WorkerProcess
from examples.stage.run import Demo, Options, run
from examples.stage.screen import Screen
from fencing import FencingError
from storage_guards import SQLAlchemyGuard


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0: each act had the expected result. 1: one had not, or failed. 130, 143: interrupted."""
    failures = (FencingError, SQLAlchemyError, redis.RedisError)
    return run(Demo("examples.http_service", __doc__, STORY, set_up, failures, tuple(CHOICES)), arguments)


def set_up(stack: ExitStack, screen: Screen, recorder: Recorder, options: Options) -> Director:
    """Two clients, a service with a SQLite file, a coordinator; the stack removes all of it again."""
    starting = "starting three processes and servers"
    screen.wait(starting)
    processes = {}
    for name in (*AMOUNTS, "service"):  # they import while Redis starts
        module = f"examples.http_service.{'worker' if name in AMOUNTS else 'service'}"
        processes[name] = WorkerProcess(name, module)
        stack.callback(processes[name].close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencing-demo-")))
    engine = create_engine(f"sqlite:///{folder / 'accounts.sqlite'}")
    stack.callback(engine.dispose)
    metadata.create_all(engine)
    SQLAlchemyGuard(engine).create_tables()
    choice = CHOICES[options.coordinator]
    address = choice.start(stack)
    service = processes.pop("service")
    service.send(database=str(engine.url))
    url = f"http://127.0.0.1:{wait_for_port(service)}"
    for worker in processes.values():
        worker.send(coordinator=options.coordinator, address=address, service=url, ttl=options.ttl)
    for worker in processes.values():
        worker.report(lambda: screen.wait(starting))
    pids = ", ".join(f"{name} is process {process.pid}" for name, process in processes.items())
    screen.say(f"{pids}; the service is process {service.pid}, at {url}; {choice.title}.", "2")
    coordinator = stack.enter_context(choice.open(address, ttl=options.ttl))
    prefix = names_of_our_own()
    return Director(processes, service, coordinator, engine, recorder, screen, ttl=options.ttl, prefix=prefix)


if __name__ == "__main__":
    sys.exit(main())

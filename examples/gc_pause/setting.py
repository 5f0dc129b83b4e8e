"""What a demo with deposits starts: two worker processes, and a database with the accounts."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from sqlalchemy import Engine, create_engine

from examples.gc_pause.deposits import metadata
from examples.gc_pause.director import AMOUNTS
from examples.servers import start_postgres
from examples.stage.coordinators import CHOICES
from examples.stage.process import WorkerProcess
from examples.stage.run import version
from examples.stage.screen import Screen
from fencing import Coordinator
from storage_guards import SQLAlchemyGuard


class Setting(NamedTuple):
    workers: dict[str, WorkerProcess]
    coordinator: Coordinator
    engine: Engine


def set_up_deposits(
    stack: ExitStack, screen: Screen, ttl: float, coordinator: str, start_locks: Callable[[ExitStack], str]
) -> Setting:
    """Start it; the stack removes it all again.

    `coordinator`: one of `CHOICES`. `start_locks`: starts its servers, and returns their address.
    """
    starting = "starting two processes and servers"
    screen.wait(starting)
    workers = {}
    for name in AMOUNTS:  # they import while the servers start
        workers[name] = WorkerProcess(name, "examples.gc_pause.worker")
        stack.callback(workers[name].close)
    address = start_locks(stack)
    postgres = stack.enter_context(start_postgres())
    url = postgres.create_database()
    stack.callback(postgres.drop_database, url)
    engine = create_engine(url)
    stack.callback(engine.dispose)
    metadata.create_all(engine)
    SQLAlchemyGuard(engine).create_tables()
    for worker in workers.values():
        worker.send(address=address, coordinator=coordinator, database=url, ttl=ttl)
    for worker in workers.values():
        worker.report(lambda: screen.wait(starting))
    pids = ", ".join(f"{name} is process {worker.pid}" for name, worker in workers.items())
    screen.say(f"{pids}; {CHOICES[coordinator].title}, data in PostgreSQL {version(postgres.version)}.", "2")
    locks = stack.enter_context(CHOICES[coordinator].open(address, ttl=ttl))
    return Setting(workers, locks, engine)

"""What a demo with deposits starts: two worker processes, and a database with the accounts."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from sqlalchemy import Engine, create_engine

from examples.gc_pause.deposits import metadata
from examples.gc_pause.director import AMOUNTS
from examples.servers import start_postgres
from examples.stage.process import WorkerProcess
from examples.stage.run import version
from examples.stage.screen import Screen
from storage_guards import SQLAlchemyGuard


class Setting(NamedTuple):
    workers: dict[str, WorkerProcess]
    engine: Engine


def set_up_deposits(
    stack: ExitStack, screen: Screen, ttl: float, start_locks: Callable[[], tuple[Any, str]], coordinator: str = ""
) -> Setting:
    """Start it; the stack removes it all again.

    `start_locks`: starts the servers of the locks; returns what the workers are told of them, and what the user is.
    `coordinator`: one of `CHOICES`; empty: Redis through a client.
    """
    starting = "starting two processes and servers"
    screen.wait(starting)
    workers = {}
    for name in AMOUNTS:  # they import while the servers start
        workers[name] = WorkerProcess(name, "examples.gc_pause.worker")
        stack.callback(workers[name].close)
    where, servers = start_locks()
    postgres = stack.enter_context(start_postgres())
    url = postgres.create_database()
    stack.callback(postgres.drop_database, url)
    engine = create_engine(url)
    stack.callback(engine.dispose)
    metadata.create_all(engine)
    SQLAlchemyGuard(engine).create_tables()
    for worker in workers.values():
        worker.send(locks=where, coordinator=coordinator, database=url, ttl=ttl)
    for worker in workers.values():
        worker.report(lambda: screen.wait(starting))
    pids = ", ".join(f"{name} is process {worker.pid}" for name, worker in workers.items())
    screen.say(f"{pids}; {servers}, PostgreSQL {version(postgres.version)}.", "2")
    return Setting(workers, engine)

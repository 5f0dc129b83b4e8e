"""A worker process of a story in one file: it runs functions of that file, and of those it imports.

Started as ``python -m examples.stage.actor NAME MODULE``.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from examples.stage.coordinators import CHOICES
from examples.stage.reports import command, report, serve
from fencing import Fence, FencedLock, Lease, LeaseLost, StaleFence
from storage_guards import PsycopgGuard


class Actor:
    """What a function of a story has: a lock, a guarded database, and ways to show what it does."""

    def __init__(self, name: str, coordinator: str, address: str, database: str, ttl: float, seed: int) -> None:
        self.name = name
        self.address = address
        self.ttl = ttl
        self.seed = seed
        self.connection = psycopg.connect(database, autocommit=True)
        self.guard = PsycopgGuard(self.connection)
        self._coordinator = CHOICES[coordinator].open(address, ttl=ttl, owner=name)

    @contextmanager
    def hold(self, resource: str, *, guarded: bool, **options: Any) -> Iterator[Lease]:
        """Hold the lock, and show how that begins and ends. `guarded`: it also claims in the database.

        `options`: those in which this lock differs from the others of the coordinator.
        """
        guards = [self.guard] if guarded else []
        lock = FencedLock(self._coordinator, resource, owner=self.name, guards=guards, **options)
        try:
            with lock.hold(timeout=15) as lease:
                report("acquired", number=lease.fence.number)
                yield lease
        except LeaseLost as loss:
            report("lost", reason=str(loss))
        except StaleFence as late:
            report("refused", reason=str(late), newest=late.mark.number if late.mark else None)
        else:
            report("released")

    def show(self, kind: str, text: str, **data: Any) -> None:
        """Show an event in this actor's lane. `data`: as a drawing knows it."""
        report(kind, text=text, **data)

    def wait(self) -> None:
        """Go on when the director says so."""
        command()

    def write(self, lease: Lease | Fence | None, query: str, parameters: Any) -> None:
        """Write with one statement: through the guard, or without a lease directly."""
        if lease:
            self.guard.write(lease, query, parameters)
        else:
            self.connection.execute(query, parameters)


def set_up(**settings: Any) -> Callable[..., None]:
    name, module = sys.argv[1:]
    actor = Actor(name, **settings)
    importlib.import_module(module)  # while the servers start

    def play(module: str, function: str, arguments: dict[str, Any]) -> None:
        getattr(importlib.import_module(module), function)(actor, **arguments)
        report("done")

    return play


if __name__ == "__main__":
    serve(set_up)

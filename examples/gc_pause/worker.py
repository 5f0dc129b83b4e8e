"""A worker process: makes deposits on command, and reports what happens, one JSON object a line.

Started by the director as ``python -m examples.gc_pause.worker NAME``. Commands come in on stdin, reports go out on
stdout.
"""

import sys
from collections.abc import Callable

from sqlalchemy import create_engine

from examples.gc_pause.deposits import Deposit, RowHasNewerFence, guarded, lock_only, textbook
from examples.stage.coordinators import CHOICES
from examples.stage.reports import command, report, serve
from fencing import Coordinator, FencedLock, Lease, LeaseLost, StaleFence
from storage_guards import SQLAlchemyGuard


class Reports:
    """`Show`, for the director."""

    def acquired(self, lease: Lease) -> None:
        report("acquired", number=lease.fence.number)

    def think(self, balance: int, amount: int) -> int:
        report("read", balance=balance, sum=balance + amount)
        command()  # thinking takes until the director says so
        return balance + amount

    def wrote(self, balance: int) -> None:
        report("wrote", balance=balance)

    def refused(self, late: StaleFence) -> None:
        report("refused", reason=str(late), newest=late.mark.number if late.mark else None)


class Worker:
    def __init__(self, name: str, locks: Coordinator, database_url: str) -> None:
        self._name = name
        self._locks = locks
        self._engine = create_engine(database_url)
        self._guard = SQLAlchemyGuard(self._engine)
        self._engine.connect().close()  # so that the first act does not wait for it

    def deposit(self, how: str, resource: str, account: int, amount: int) -> None:
        deposit, show = Deposit(account, amount), Reports()
        guards = [self._guard] if how == "guarded" else []
        lock = FencedLock(self._locks, resource, owner=self._name, guards=guards)
        try:
            if how == "lock_only":
                lock_only(lock, self._engine, deposit, show)
            elif how == "textbook":
                textbook(lock, self._engine, deposit, show)
            else:
                guarded(lock, self._engine, self._guard, deposit, show)
        except RowHasNewerFence:
            report("refused", reason="the row has a newer fence", newest=None)
        except LeaseLost as loss:  # on leaving the block, when all has been written
            report("lost", reason=str(loss))
        else:
            report("released")
        report("done")


def set_up(address: str, coordinator: str, database: str, ttl: float) -> Callable[..., None]:
    return Worker(sys.argv[1], CHOICES[coordinator].open(address, ttl=ttl), database).deposit


if __name__ == "__main__":
    serve(set_up)

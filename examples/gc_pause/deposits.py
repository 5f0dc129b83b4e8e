"""Three ways to add money to an account under a lock. They differ in one or two lines; copy the third.

`show` belongs to the demo and can be left out. It reports what has happened. `show.think` stands for work that takes
time between reading and writing. The demo pauses the process there, as a long garbage collection would.
"""

from typing import NamedTuple, Protocol

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, Table, select, update

from fencing import FencedLock, Lease, StaleFence
from storage_guards import SQLAlchemyGuard

metadata = MetaData()
accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("balance", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),  # only textbook fencing needs it
    Column("version", Integer, nullable=False, server_default="0"),  # only a service needs it
)


class Deposit(NamedTuple):
    account: int
    amount: int


class Show(Protocol):
    """The demo's reports."""

    def acquired(self, lease: Lease) -> None: ...
    def think(self, balance: int, amount: int) -> int:
        """Return the sum, after some time."""

    def wrote(self, balance: int) -> None: ...
    def refused(self, late: StaleFence) -> None: ...


class RowHasNewerFence(Exception):
    """Textbook fencing refused the write."""


def lock_only(lock: FencedLock, engine: Engine, deposit: Deposit, show: Show) -> None:
    """Act 1. A lock that expires, and nothing else."""
    with lock.hold(timeout=10) as lease:
        show.acquired(lease)
        balance = read_balance(engine, deposit.account)
        balance = show.think(balance, deposit.amount)
        with engine.begin() as connection:
            connection.execute(update(accounts).where(accounts.c.id == deposit.account).values(balance=balance))
        show.wrote(balance)


def textbook(lock: FencedLock, engine: Engine, deposit: Deposit, show: Show) -> None:
    """Act 2. Every write carries the lock's fencing number; the row refuses a lower one than it has seen."""
    with lock.hold(timeout=10) as lease:
        show.acquired(lease)
        balance = read_balance(engine, deposit.account)
        balance = show.think(balance, deposit.amount)
        with engine.begin() as connection:
            changed = connection.execute(
                update(accounts)
                .where(accounts.c.id == deposit.account, accounts.c.fence <= lease.fence.number)
                .values(balance=balance, fence=lease.fence.number)
            )
        if changed.rowcount == 0:
            raise RowHasNewerFence
        show.wrote(balance)


def guarded(lock: FencedLock, engine: Engine, guard: SQLAlchemyGuard, deposit: Deposit, show: Show) -> None:
    """Act 3. The lock was made with the guard: `FencedLock(redis.Redis(), "account:1", ttl=10, guards=[guard])`.
    So it claims its fence in the database before we read. We write through the guard.

    Only a refused deposit starts again. A LeaseLost on leaving the block comes after the write, and the write counts.
    """
    for _ in range(3):
        try:
            with lock.hold(timeout=10) as lease:
                show.acquired(lease)
                balance = read_balance(engine, deposit.account)
                balance = show.think(balance, deposit.amount)
                guard.write(
                    lease,
                    update(accounts).where(accounts.c.id == deposit.account).values(balance=balance),
                )
                show.wrote(balance)
                return
        except StaleFence as late:
            show.refused(late)
    raise TimeoutError(f"account {deposit.account} is too busy")


def read_balance(engine: Engine, account: int) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(accounts.c.balance).where(accounts.c.id == account)).scalar_one())

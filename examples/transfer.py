"""Money between accounts: two locks at once, one transaction. ``python -m examples.transfer`` runs it.

Workers move money in both directions at the same time. Each transfer holds the locks of both accounts, reads both
balances, and writes both. It starts a Redis and a PostgreSQL of its own, and stops them at the end.
"""

from __future__ import annotations

import argparse
import random
from concurrent.futures import ThreadPoolExecutor

import redis
from sqlalchemy import Connection, create_engine, text

from examples.servers import start_postgres, start_redis
from fencing import Coordinator, RedisCoordinator
from storage_guards import SQLAlchemyGuard

ACCOUNTS = ("alice", "bob", "carol")
WORKERS = 4
BALANCE = text("SELECT balance FROM account WHERE name = :name")
UPDATE = text("UPDATE account SET balance = :balance WHERE name = :name")


def transfer(coordinator: Coordinator, guard: SQLAlchemyGuard, source: str, target: str, amount: int) -> None:
    """Move money from one account to another."""
    accounts = [f"account:{source}", f"account:{target}"]
    with coordinator.hold_all(accounts, timeout=30) as leases, guard.begin(*leases) as connection:
        balances = {name: balance_of(connection, name) for name in (source, target)}
        connection.execute(UPDATE, {"name": source, "balance": balances[source] - amount})
        connection.execute(UPDATE, {"name": target, "balance": balances[target] + amount})


def balance_of(connection: Connection, name: str) -> int:
    """Return the balance of an account."""
    return int(connection.execute(BALANCE, {"name": name}).scalar_one())


def run(redis_url: str, database_url: str, transfers: int) -> dict[str, int]:
    """Make the accounts, and let the workers transfer money between them. Return the balances."""
    engine = create_engine(database_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (name varchar(20) PRIMARY KEY, balance int NOT NULL)"))
        for name in ACCOUNTS:
            connection.execute(text("INSERT INTO account VALUES (:name, 1000)"), {"name": name})

    with RedisCoordinator(redis.Redis.from_url(redis_url), guards=[guard]) as coordinator:

        def work(seed: int) -> None:
            choice = random.Random(seed)
            for _ in range(transfers):
                source, target = choice.sample(ACCOUNTS, 2)
                transfer(coordinator, guard, source, target, choice.randint(1, 10))

        with ThreadPoolExecutor(WORKERS) as workers:
            list(workers.map(work, range(WORKERS)))
    with engine.connect() as connection:
        balances = {name: balance_of(connection, name) for name in ACCOUNTS}
    engine.dispose()
    return balances


def main() -> None:
    """Start the servers, transfer, and print the balances."""
    argparse.ArgumentParser(prog="python -m examples.transfer", description=__doc__).parse_args()
    with start_redis(own=True) as redis_server, start_postgres(own=True) as postgres:
        balances = run(redis_server.url, postgres.create_database(), transfers=50)
    print(f"{WORKERS * 50} transfers; balances {balances}, together {sum(balances.values())} of 3000")


if __name__ == "__main__":
    main()

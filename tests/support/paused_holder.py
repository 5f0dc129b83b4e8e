"""The process that test_paused_holder.py pauses: holds the lock, reads, says so, and writes when it is told to."""

from __future__ import annotations

import sys

import redis
from sqlalchemy import create_engine, text

from fencing import FencedLock, StaleFence
from storage_guards import SQLAlchemyGuard


def main(redis_url: str, database_url: str) -> None:
    guard = SQLAlchemyGuard(create_engine(database_url))
    lease = FencedLock(redis.Redis.from_url(redis_url), "r", ttl=0.5, guards=[guard]).acquire(timeout=5)
    with guard.begin(lease) as connection:
        balance = connection.execute(text("SELECT balance FROM account WHERE name = 'r'")).scalar_one()
    print(f"read {balance}", flush=True)
    sys.stdin.readline()  # paused (SIGSTOP) here, until long after the lease
    try:
        guard.write(lease, text("UPDATE account SET balance = :new WHERE name = 'r'"), {"new": balance + 1})
    except StaleFence as error:
        print(f"refused {error.fence.number} {error.mark.number if error.mark else None}", flush=True)
    else:
        print("written", flush=True)
    print(f"released {lease.release()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

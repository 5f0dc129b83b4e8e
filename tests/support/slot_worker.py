"""A process that takes slots: `python -m tests.support.slot_worker REDIS_URL DATABASE_URL SLOTS TTL`.

Each line of the input is a command, and after each it prints the result. "acquire SECONDS": the slot and the number, or
"none". "write": add one to the row of the slot, in a guarded transaction. "release". "count N": N times all three.
"""

from __future__ import annotations

import sys
from typing import Any

import redis
from sqlalchemy import create_engine, text

from fencing import Lease, LeaseLost, NotAcquired, RedisCoordinator, StaleFence
from storage_guards import SQLAlchemyGuard

READ = text("SELECT n FROM used WHERE slot = :slot")
WRITE = text("UPDATE used SET n = :n WHERE slot = :slot")


class Worker:
    def __init__(self, redis_url: str, database_url: str, slots: str, ttl: str) -> None:
        self.guard = SQLAlchemyGuard(create_engine(database_url))
        client = redis.Redis.from_url(redis_url)
        self.coordinator = RedisCoordinator(client, ttl=float(ttl), guards=[self.guard])
        self.slots = self.coordinator.slots("gpu", int(slots))
        self.lease: Lease | None = None

    def acquire(self, seconds: str = "60") -> Any:
        try:
            self.lease = self.slots.acquire(float(seconds))
        except NotAcquired:
            return "none"
        return f"{self.lease.slot} {self.lease.fence.number}"

    def write(self) -> str:
        assert self.lease is not None
        fence, slot = self.lease.fence, {"slot": self.lease.slot}
        try:
            with self.guard.begin(fence) as connection:
                n = connection.execute(READ, slot).scalar_one()
                connection.execute(WRITE, {"n": n + 1} | slot)
        except StaleFence:
            holder = self.coordinator.holder(fence.resource)
            return "refused, and holds it" if holder is not None and holder.number == fence.number else "refused"
        return "wrote"

    def release(self) -> str:
        assert self.lease is not None
        try:
            return str(self.lease.release())
        except LeaseLost:
            return "lost"

    def count(self, times: str) -> str:
        for _ in range(int(times)):
            self.acquire()
            said = self.write()
            if said != "refused":
                print(said, flush=True)
            self.release()
        return "counted"


def main() -> None:
    worker = Worker(*sys.argv[1:])
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        print(getattr(worker, command)(*arguments), flush=True)


if __name__ == "__main__":
    main()

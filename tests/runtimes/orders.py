"""What the workers of a server run: a total in PostgreSQL, to which each request adds one under a lock and a guard.

The lock and the guard are made, and used once, as the module is loaded: where a server loads it and forks after that,
by the parent, which has connections and threads then.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import redis
from sqlalchemy import create_engine, text

from fencing import RedisCoordinator
from storage_guards import SQLAlchemyGuard

TTL = 3.0

engine = create_engine(os.environ["ORDERS_DATABASE"])
guard = SQLAlchemyGuard(engine)
coordinator = RedisCoordinator(redis.Redis.from_url(os.environ["ORDERS_REDIS"]), ttl=TTL, guards=[guard])


def add() -> dict[str, Any]:
    """Add one to the total."""
    with coordinator.hold("orders:42", timeout=60) as lease, guard.begin(lease) as connection:
        total = connection.execute(text("SELECT total FROM orders")).scalar_one()
        connection.execute(text("UPDATE orders SET total = :total"), {"total": total + 1})
    return {"number": lease.fence.number, "token": lease.fence.token, "pid": os.getpid(), "loaded_by": loaded_by}


def hold_on() -> dict[str, Any]:
    """Keep the lock until its lease has been renewed twice."""
    with coordinator.hold("orders:42", timeout=60) as lease:
        for _ in range(2):
            before = lease.remaining()
            while (left := lease.remaining()) <= before:
                lease.ensure_held()
                before = left
                time.sleep(0.01)
    return {"number": lease.fence.number, "token": lease.fence.token, "pid": os.getpid(), "loaded_by": loaded_by}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve `/add` and `/hold-on`, as WSGI."""
    done = {"/add": add, "/hold-on": hold_on}[environ["PATH_INFO"]]()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(done).encode()]


loaded_by = os.getpid()
add()

"""Jobs for workers whose threads are greenlets: a Celery application and a WSGI application.

Each job adds one to a row of PostgreSQL, under a lock and a guard: it reads in one transaction and writes in another.
A few take longer than the ttl. Variables name the servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import redis
from sqlalchemy import create_engine, text

from fencing import RedisCoordinator
from storage_guards import SQLAlchemyGuard

TTL = 3.0
LONG_SECONDS = 4.0
"""How long a job takes that needs its lease to be renewed."""


@cache
def parts() -> tuple[RedisCoordinator, SQLAlchemyGuard]:
    """Return the coordinator and the guard of this process."""
    guard = SQLAlchemyGuard(create_engine(os.environ["JOBS_DATABASE"]))
    client = redis.Redis.from_url(os.environ["JOBS_REDIS"])
    return RedisCoordinator(client, ttl=TTL, guards=[guard]), guard


if os.environ.get("JOBS_MAKE_AT_ONCE"):  # before a server has forked, and replaced the threads
    parts()


def add_one(seconds: float) -> int:
    """Add one to the row, and return what it has then."""
    coordinator, guard = parts()
    with coordinator.hold("total", timeout=60) as lease:
        with guard.begin(lease) as connection:
            total: int = connection.execute(text("SELECT total FROM jobs")).scalar_one()
        time.sleep(seconds)
        with guard.begin(lease) as connection:
            connection.execute(text("UPDATE jobs SET total = :total"), {"total": total + 1})
    return total + 1


def web(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve /add?SECONDS."""
    total = add_one(float(environ["QUERY_STRING"] or "0"))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{total} {type(time.sleep).__name__}".encode()]


if os.environ.get("JOBS_BROKER"):
    from celery import Celery

    celery = Celery("jobs", broker=os.environ["JOBS_BROKER"])
    celery.conf.update(broker_connection_retry_on_startup=True, worker_prefetch_multiplier=4)

    @celery.task(name="add_one")  # type: ignore[untyped-decorator, unused-ignore]
    def add_one_later(seconds: float) -> None:
        """Add one to the row."""
        add_one(seconds)

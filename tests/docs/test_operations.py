"""What the pages tell an operator to type works as it stands: the rule for Redis, the correction of a mark."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import Fence, MarkImplausible, RedisCoordinator
from fencing.kernel import MAX_NUMBER
from fencing.redis.keys import keys_of
from storage_guards import RedisGuard, SQLAlchemyGuard
from tests.support import wait_until
from tests.support.fixtures import RedisFactory

DOCS = Path(__file__).resolve().parents[2] / "docs"
INCIDENTS = (DOCS / "operations" / "incidents.md").read_text("utf-8")
ORDER = "orders:42"


@pytest.mark.parametrize("version", ["7", *[pytest.param(each, marks=pytest.mark.thorough) for each in ("8", "6.2")]])
def test_the_rule_for_redis_allows_locks_and_waiting_and_no_other_keys(fresh_redis: RedisFactory, version: str) -> None:
    rule, in_cluster = re.findall(r"(?m)^ACL SETUSER .*$", (DOCS / "coordinators" / "redis.md").read_text("utf-8"))
    assert in_cluster.startswith(f"{rule} "), "a Cluster needs more"  # tests/redis/test_cluster_connections.py
    server = fresh_redis(version=version)
    admin: Any = server.client()
    admin.execute_command(*rule.split())
    worker = redis.Redis(host=server.host, port=server.port, username="worker", password="secret")
    with RedisCoordinator(worker) as coordinator:
        lease = coordinator.acquire(ORDER, timeout=5)
        granted = threading.Event()

        def wait() -> None:
            with coordinator.hold(ORDER, timeout=30):
                granted.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: admin.zcard(keys_of(ORDER).queue) == 1)
        lease.release()
        waiter.join(30)
        assert granted.is_set()
    for key in ("invoices:1", "orders"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            worker.get(key)
    worker.close()


@pytest.mark.thorough
def test_the_name_of_the_counter_is_what_the_command_prints() -> None:
    [(command, printed)] = re.findall(r"(?m)^ +\$ (python -c .*)\n +(fencing.*)$", INCIDENTS)
    done = subprocess.run([sys.executable, *shlex.split(command)[1:]], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed
    assert INCIDENTS.count(printed) == 3


def test_a_mark_that_was_too_high_can_be_corrected(any_redis: RedisServer, postgres_url: str) -> None:
    [correction] = re.findall(r"(?m)^ +(UPDATE fencing_marks .*);$", INCIDENTS)
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with RedisCoordinator(any_redis.client(), guards=[guard]) as coordinator:
        coordinator.acquire(ORDER).release()
        guard.claim(Fence(ORDER, MAX_NUMBER - 1, "a" * 22))
        with pytest.raises(MarkImplausible):
            coordinator.acquire(ORDER, timeout=5)
        with engine.begin() as connection:
            connection.execute(text(correction.replace(":42", r"\:42")))
        with coordinator.hold(ORDER, timeout=5) as lease, guard.begin(lease):
            pass
    engine.dispose()


def test_a_mark_in_redis_that_was_too_high_can_be_corrected(any_redis: RedisServer) -> None:
    [key, value] = re.findall(r"(?m)redis-cli HSET '(.*?)' number \"(.*)\"$", INCIDENTS)[0]
    [pattern] = re.findall(r"(?m)redis-cli --scan --pattern '(.*)'$", INCIDENTS)
    assert value == "$(date +%s)000000"
    client = any_redis.client()
    guard = RedisGuard(client)
    with RedisCoordinator(any_redis.client(), guards=[guard]) as coordinator:
        coordinator.acquire(ORDER).release()
        guard.claim(Fence(ORDER, MAX_NUMBER - 1, "a" * 22))
        with pytest.raises(MarkImplausible):
            coordinator.acquire(ORDER, timeout=5)
        assert list(client.scan_iter(pattern)) == [key.encode()]
        client.hset(key, "number", f"{int(time.time())}000000")
        with coordinator.hold(ORDER, timeout=5) as lease:
            guard.write(lease, ("SET", "total", 1))
    assert client.get("total") == b"1"


def test_a_floor_that_was_too_high_can_be_corrected(any_redis: RedisServer, postgres_url: str) -> None:
    [correction] = re.findall(r"(?m)^(UPDATE public.fencing_marks .*);$", INCIDENTS)
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    floor = f"UPDATE fencing_marks SET number = {MAX_NUMBER - 1} WHERE resource = 'fencing:floor'"
    with RedisCoordinator(any_redis.client(), guards=[guard]) as coordinator:
        for statement, refused in ((floor, True), (correction, False)):
            with engine.begin() as connection:
                connection.execute(text(statement.replace(":floor", r"\:floor")))
            if refused:
                with pytest.raises(MarkImplausible):
                    coordinator.acquire(ORDER, timeout=5)
        coordinator.acquire(ORDER, timeout=5).release()
    engine.dispose()

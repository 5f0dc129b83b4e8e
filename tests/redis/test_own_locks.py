"""Workers of another language, with raw commands and the lock of docs/guide/moving.md, and workers of this library."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers import RedisServer
from fencing import LeaseLost, RedisCoordinator
from tests.support import wait_until
from tests.support.fixtures import missing
from tests.support.redis_requests import times_run

ROOT = Path(__file__).resolve().parents[2]
NAME = "orders:42"
Worker = subprocess.Popen[str]


@pytest.fixture
def worker(any_redis: RedisServer) -> Iterator[Worker]:
    node = shutil.which("node")
    if node is None:
        missing("node", "found no node on PATH")
    [code] = re.findall(r"```js\n(.*?)```", (ROOT / "docs/guide/moving.md").read_text("utf-8"), re.DOTALL)
    arguments = [node, str(ROOT / "tests/support/own_lock.js"), any_redis.url, NAME, code]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        yield process
        process.kill()


def say(worker: Worker, line: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{line}\n")
    worker.stdin.flush()


def line_of(worker: Worker) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().rstrip()


def test_a_worker_with_raw_commands_and_ours_exclude_each_other(worker: Worker, any_redis: RedisServer) -> None:
    with any_redis.client() as client, RedisCoordinator(client) as coordinator:
        say(worker, "hold")
        assert line_of(worker) == "held"
        assert coordinator.try_acquire(NAME) is None
        holder = coordinator.holder(NAME)
        assert holder is not None
        assert (holder.owner, holder.number, holder.expires) == (None, None, True)
        say(worker, "release")
        assert line_of(worker) == "free"
        with coordinator.hold(NAME, timeout=5) as lease:
            before = times_run(any_redis, "set")
            say(worker, "hold")
            wait_until(lambda: times_run(any_redis, "set") >= before + 2)  # it polls, and our lock sends none meanwhile
            assert client.get(NAME) == lease.fence.token.encode()
        assert line_of(worker) == "held"  # not before our release: it holds it now
        say(worker, "release")
        assert line_of(worker) == "free"


@pytest.mark.thorough
def test_no_update_of_both_is_lost(worker: Worker, any_redis: RedisServer) -> None:
    """Neither side has a guard: what is counted is what the lock alone excludes."""
    ours = 30
    with any_redis.client() as client, RedisCoordinator(client) as coordinator:
        say(worker, "count")
        assert line_of(worker) == "counting"
        for _ in range(ours):
            while (lease := coordinator.try_acquire(NAME)) is None:
                time.sleep(0.001)
            seen = int(client.get(f"{NAME}:count") or 0)
            time.sleep(0.001)
            client.set(f"{NAME}:count", seen + 1)
            lease.release()
        say(worker, "stop")
        theirs = int(line_of(worker))
        assert theirs > 1
        assert int(client.get(f"{NAME}:count") or 0) == ours + theirs


def test_a_release_by_hand_is_noticed_at_the_next_renewal(any_redis: RedisServer) -> None:
    with any_redis.client() as client, RedisCoordinator(client, ttl=60, renew=False) as coordinator:
        lease = coordinator.acquire(NAME)
        client.delete(NAME)
        assert lease.held  # nothing has notified it
        for notices in (lease.renew, lease.ensure_held):
            with pytest.raises(LeaseLost) as caught:
                notices()
            assert caught.value.reason == "gone"
        assert lease.remaining() == 0.0
        with coordinator.hold(NAME, timeout=0):
            pass  # it is free

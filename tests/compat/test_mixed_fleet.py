"""Old workers with the lock of redis-py and new ones with ours exclude each other, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples.servers import RedisServer
from fencing.redis.keys import keys_of
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]
COUNT = 20


class Worker:
    def __init__(self, url: str, kind: str) -> None:
        command = [sys.executable, "-m", "tests.support.fleet_worker", url, kind]
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)

    def send(self, command: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{command}\n")
        self.popen.stdin.flush()

    def answer(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.send(command)
        return self.answer()

    def close(self) -> None:
        with self.popen:
            self.popen.kill()


@pytest.fixture
def fleet(any_redis: RedisServer) -> Iterator[Callable[[str], Worker]]:
    with ExitStack() as stack:

        def start(kind: str) -> Worker:
            worker = Worker(any_redis.url, kind)
            stack.callback(worker.close)
            return worker

        yield start


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", ["", "-async"], ids=["sync", "async"])
def test_old_and_new_workers_exclude_each_other(
    any_redis: RedisServer, fleet: Callable[[str], Worker], suffix: str
) -> None:
    client = any_redis.client()
    workers = [fleet(f"{kind}{suffix}") for kind in ("old", "new", "old", "new")]
    old, new = workers[:2]
    for first, second in ((old, new), (new, old)):
        assert first.ask("acquire") == "True"
        token = client.get("r")
        assert second.ask("try") == "False"
        second.send("acquire")
        if second is new:
            wait_until(lambda: client.zcard(keys_of("r").queue) == 1)
        assert client.get("r") == token
        assert first.ask("release") == "None"
        assert second.answer() == "True"
        assert client.get("r") not in (None, token)
        assert second.ask("release") == "None"
    for worker in workers:
        worker.send(f"count {COUNT}")
    assert [worker.answer() for worker in workers] == ["counted"] * 4
    assert client.get("number") == str(4 * COUNT).encode()

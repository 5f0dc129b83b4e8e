"""Replicas of a service, each a process: terms end by SIGTERM, by SIGKILL, by a freeze, and the next one leads."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisServer
from tests.support.replica import COUNT

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
LONG = 120.0  # a ttl: no lock frees itself within the test
SOON = 60.0  # a limit of the test


class Process:
    """A replica, and what it prints."""

    def __init__(self, stack: ExitStack, url: str, name: str, ttl: float, kind: str, *more: str) -> None:
        self.name = name
        command = [sys.executable, "-m", "tests.support.replica", url, name, str(ttl), kind, *more]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        stack.callback(self.end)
        self.expect("campaigns")

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line.strip())

    def line(self) -> str:
        """Wait for the next line."""
        return self._lines.get(timeout=SOON)

    def expect(self, word: str) -> str:
        """Wait for a line that begins with the word. Return what follows it."""
        line = self.line()
        assert line.split(" ")[0] == word, f"{self.name}: {line}"
        return line.partition(" ")[2]

    def expect_all(self, *words: str) -> None:
        """Wait for as many lines: one for each of the words, in any order."""
        assert sorted(self._lines.get(timeout=SOON) for _ in words) == sorted(words)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SOON)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_rolling_restart_hands_over_at_once(stack: ExitStack, any_redis: RedisServer, kind: str) -> None:
    """The ttl is longer than the test: without the handler the next replica would not lead within it."""
    replicas = [Process(stack, any_redis.url, f"replica {i}", LONG, kind) for i in range(3)]
    numbers = []
    leader = replicas[0]
    for _ in range(3):
        numbers.append(int(leader.expect("leads")))
        leader.send(signal.SIGTERM)
        assert leader.process.wait(SOON) == -signal.SIGTERM, "it ends as Python's own handler ends it"
        replicas.remove(leader)
        replicas.append(Process(stack, any_redis.url, f"next {len(numbers)}", LONG, kind))
        leader = replicas[0]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 3


def test_the_handler_that_is_there_is_called_behind(stack: ExitStack, any_redis: RedisServer, kind: str) -> None:
    exits = Process(stack, any_redis.url, "exits", LONG, kind, "exit")
    exits.expect("leads")
    goes_on = Process(stack, any_redis.url, "goes on", LONG, kind, "goes-on")
    exits.send(signal.SIGTERM)
    if kind == "async":
        exits.expect_all("handler", "ends")  # its election was stopped; then comes the handler
    else:
        exits.expect("handler")
    assert exits.process.wait(SOON) == 7
    goes_on.expect("leads")
    last = Process(stack, any_redis.url, "last", LONG, kind)
    goes_on.send(signal.SIGTERM)
    goes_on.expect_all("handler", "ends")  # its election was stopped
    assert goes_on.process.wait(SOON) == 0
    last.expect("leads")


def test_a_replica_that_waits_is_ended_at_once(stack: ExitStack, any_redis: RedisServer, kind: str) -> None:
    leader = Process(stack, any_redis.url, "leader", LONG, kind)
    leader.expect("leads")
    waits = Process(stack, any_redis.url, "waits", LONG, kind, "goes-on")
    waits.send(signal.SIGTERM)
    waits.expect_all("handler", "ends")
    assert waits.process.wait(SOON) == 0
    assert leader.process.poll() is None


def test_a_leader_that_was_frozen_is_refused_and_campaigns_again(
    stack: ExitStack, any_redis: RedisServer, kind: str
) -> None:
    """Two believe to lead. What the deposed one writes is refused; nothing of it is counted."""
    first = Process(stack, any_redis.url, "first", 1.0, kind)
    first.expect("leads")
    second = Process(stack, any_redis.url, "second", 1.0, kind)
    first.send(signal.SIGSTOP)
    deposed_by = int(second.expect("leads"))
    second.send(signal.SIGSTOP)
    counted = any_redis.client().get(COUNT)
    first.send(signal.SIGCONT)
    if kind == "sync":
        first.expect("refused")  # the async one may be cancelled before it writes
        assert any_redis.client().get(COUNT) == counted
    while (line := first.line()).startswith("refused"):
        pass
    assert line.startswith("leads")
    assert int(line.partition(" ")[2]) > deposed_by


def test_a_leader_that_was_killed_is_followed_after_its_ttl(
    stack: ExitStack, any_redis: RedisServer, kind: str
) -> None:
    first = Process(stack, any_redis.url, "first", 1.0, kind)
    number = int(first.expect("leads"))
    second = Process(stack, any_redis.url, "second", 1.0, kind)
    first.send(signal.SIGKILL)
    assert int(second.expect("leads")) > number


def test_one_that_does_not_end_has_no_lock_after_the_signal_and_is_killed_after_the_grace(
    stack: ExitStack, any_redis: RedisServer
) -> None:
    """As an orchestrator does it: SIGTERM, and SIGKILL when the grace is over."""
    hangs = Process(stack, any_redis.url, "hangs", LONG, "sync", "hangs")
    hangs.expect("leads")
    next_one = Process(stack, any_redis.url, "next", LONG, "sync")
    hangs.send(signal.SIGTERM)
    hangs.expect("handler")
    next_one.expect("leads")  # within the grace
    hangs.expect("refused")  # it writes on, and the guard knows the next one
    assert hangs.process.poll() is None
    hangs.send(signal.SIGKILL)
    assert hangs.process.wait(SOON) == -signal.SIGKILL
    assert next_one.process.poll() is None


def test_a_loop_that_hangs_does_not_keep_the_process(any_redis: RedisServer) -> None:
    command = [sys.executable, "-m", "tests.support.busy_holder", any_redis.url, "hangs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(SOON) == -signal.SIGTERM
        finally:
            process.kill()

"""Waiters for the tests of waiting: of either colour, here and in other processes; and the queue as Redis has it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from examples.servers import RedisServer
from fencing.redis.keys import keys_of
from tests.support import wait_until
from tests.support.sides import Side

ROOT = Path(__file__).resolve().parents[2]
KEYS = keys_of("r")


class Queue:
    """The queue of the resource "r", looked at past the library."""

    def __init__(self, server: RedisServer) -> None:
        self.client: Any = server.client()

    def entries(self) -> list[bytes]:
        """`<hub> <token>` each, the first one first."""
        return list(self.client.zrange(KEYS.queue, 0, -1))

    def __len__(self) -> int:
        return int(self.client.zcard(KEYS.queue))

    def has(self, count: int) -> None:
        """Wait until so many are in it."""
        wait_until(lambda: len(self) == count, 20)

    def left_behind(self) -> list[bytes]:
        """All keys but the counter."""
        return [key for key in self.client.scan_iter() if not key.endswith(b":counter")]


class Waiter:
    """A thread that acquires "r", notes when, and releases; by a coordinator of either colour."""

    def __init__(self, side: Side, coordinator: Any, timeout: float | None = 60, hold: float = 0.0) -> None:
        self.granted_at = 0.0
        self.error: Exception | None = None
        self.lease: Any = None

        def work() -> None:
            try:
                self.lease = side.call(coordinator.acquire, "r", timeout=timeout)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.error = error
                return
            self.granted_at = time.monotonic()
            time.sleep(hold)
            side.call(self.lease.release)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def join(self) -> Waiter:
        self._thread.join(60)
        assert not self._thread.is_alive(), "it waits for ever"
        return self


class Process:
    """Runs `waiting_process`: so many waiters in a process of their own."""

    def __init__(self, url: str, colour: str, count: int, hold: float, ttl: float) -> None:
        command = [sys.executable, "-m", "tests.support.waiting_process", url, "r", colour]
        self.popen = subprocess.Popen(
            [*command, str(count), str(hold), str(ttl)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._said: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as stdout:
            for line in stdout:
                self._said.put(line)

    def granted_at(self, seconds: float = 30.0) -> float:
        """The moment of its next grant."""
        word, moment = self._said.get(timeout=seconds).split()
        assert word == "got"
        return float(moment)

    def goes_on_to_its_end(self, count: int) -> None:
        """Wake it; so many more waiters of it are served, and it leaves."""
        self.popen.send_signal(signal.SIGCONT)
        for _ in range(count):
            self.granted_at()
        assert self.popen.wait(30) == 0

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


@contextmanager
def process(
    server: RedisServer, colour: str, count: int = 1, *, hold: float = 0.0, ttl: float = 30.0
) -> Iterator[Process]:
    """Waiters in another process, which is killed at the end."""
    made = Process(server.url, colour, count, hold, ttl)
    try:
        yield made
    finally:
        made.kill()

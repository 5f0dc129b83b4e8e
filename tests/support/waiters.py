"""Waiters for the tests of waiting, sync or async, here and in other processes; and the queue as Redis has it."""

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

from examples.servers import RedisCluster, RedisServer
from fencing.redis.keys import keys_of
from tests.support import wait_until
from tests.support.sides import Side

ROOT = Path(__file__).resolve().parents[2]
KEYS = keys_of("r")


class Queue:
    """The queue of a resource, read without the library."""

    def __init__(self, server: RedisServer | RedisCluster, resource: str = "r", **options: Any) -> None:
        self.client: Any = server.client(**options)
        self._key = keys_of(resource).queue

    def entries(self) -> list[bytes]:
        """Return the entries in order, each `<listener> <token>`."""
        return list(self.client.zrange(self._key, 0, -1))

    def __len__(self) -> int:
        return int(self.client.zcard(self._key))

    def has(self, count: int, seconds: float = 90) -> None:
        """Wait until it has so many entries, at most so long."""
        wait_until(lambda: len(self) == count, seconds)

    def left_behind(self) -> list[bytes]:
        """Return all keys but the counters, which stay."""
        return [key for key in self.client.scan_iter() if not key.endswith(b":counter")]

    def vanishes(self, seconds: float) -> bool:
        """Return whether every key but the counters expires within so many seconds."""
        left = [self.client.pttl(key) for key in self.left_behind()]
        return all(milliseconds == -2 or 0 <= milliseconds <= 1000 * seconds for milliseconds in left)


class Waiter:
    """A thread that acquires "r", notes when, and releases.

    Args:
        side: of the coordinator.
        hold: what it waits for before it releases; None: it releases at once.
    """

    def __init__(
        self, side: Side, coordinator: Any, timeout: float | None = 60, hold: threading.Event | None = None
    ) -> None:
        self.granted_at = 0.0
        self.error: Exception | None = None
        self.lease: Any = None

        def work() -> None:
            try:
                self.lease = side.call(coordinator.acquire, "r", timeout=timeout)
            except Exception as error:  # noqa: BLE001 - the test reads it
                self.error = error
                return
            self.granted_at = time.monotonic()
            if hold is not None:
                hold.wait(60)
            side.call(self.lease.release)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def join(self) -> Waiter:
        """Wait until it has released, or failed."""
        self._thread.join(120)
        assert not self._thread.is_alive(), "it still waits"
        return self


class Process:
    """Waiters in a process of their own, which runs `waiting_process`.

    Args:
        kind: "sync" or "async".
        count: how many wait.
        hold: seconds that each holds the lock.
        max_waiters: of their lock; 0: no limit.
    """

    def __init__(self, url: str, kind: str, count: int, hold: float, ttl: float, max_waiters: int) -> None:
        command = [sys.executable, "-m", "tests.support.waiting_process", url, "r", kind]
        self.popen = subprocess.Popen(
            [*command, str(count), str(hold), str(ttl), str(max_waiters)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as stdout:
            for line in stdout:
                self._lines.put(line)

    def next_grant(self, seconds: float = 120.0) -> float:
        """Wait for its next grant, and return the moment of that."""
        word, moment = self._lines.get(timeout=seconds).split()
        assert word == "granted"
        return float(moment)

    @property
    def reports(self) -> int:
        """How many reports it has made that were not read."""
        return self._lines.qsize()

    def words(self, count: int, seconds: float = 120.0) -> list[str]:
        """Wait for its next reports, and return their words."""
        return [self._lines.get(timeout=seconds).split()[0] for _ in range(count)]

    def thaw_and_finish(self, count: int) -> None:
        """Let the stopped process go on, until its remaining waiters were served and it ends."""
        self.popen.send_signal(signal.SIGCONT)
        for _ in range(count):
            self.next_grant()
        assert self.popen.wait(120) == 0

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


@contextmanager
def process(
    server: RedisServer, kind: str, count: int = 1, *, hold: float = 0.0, ttl: float = 30.0, max_waiters: int = 0
) -> Iterator[Process]:
    """Start waiters in another process, which is killed at the end."""
    made = Process(server.url, kind, count, hold, ttl, max_waiters)
    try:
        yield made
    finally:
        made.kill()

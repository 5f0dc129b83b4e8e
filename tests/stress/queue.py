"""Many processes wait for the same locks, while some are stopped, killed and cut off: what must hold all the same.

For each resource: no two leases that were held to their release overlap; numbers grow; a live waiter waits not much
longer than a dead one can block the lock; without faults, grants come in the order of tickets. At the end all workers
leave, and nothing is left in Redis but counters.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from examples.servers import RedisServer, freeze
from tests.stress.worker import TTL
from tests.support import wait_until

__all__ = ["Outcome", "run"]

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 4
NAMES = "a b"
LEAVING_SECONDS = 30.0
MOST_SECONDS = 9.0
"""The longest wait allowed: far more than the faults add up to, and less than the longest recheck."""


class Granted(NamedTuple):
    """One line of a worker's output."""

    process: int
    name: str
    number: int
    ticket: int | None
    began: float
    got: float
    left: float
    held: bool


class Outcome(NamedTuple):
    grants: list[Granted]
    faults: dict[str, int]
    out_of_order: int

    def __str__(self) -> str:
        waited = sorted(each.got - each.began for each in self.grants)
        faults = ", ".join(f"{count} {kind}" for kind, count in self.faults.items()) or "no faults"
        queued = sum(each.ticket is not None for each in self.grants)
        return (
            f"{len(self.grants)} grants ({queued} from the queue, {self.out_of_order} out of order), {faults}; waited "
            f"at most {1000 * waited[-1]:.0f} ms, 99 % less than {1000 * waited[int(len(waited) * 0.99)]:.0f} ms"
        )


class _Worker:
    def __init__(self, index: int, url: str, kind: str, seed: int) -> None:
        command = [sys.executable, "-m", "tests.stress.worker", url, kind, str(seed), NAMES]
        self.grants: list[Granted] = []
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.killed = False
        self._index = index
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=target, daemon=True) for target in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                words = line.split()
                if len(words) == 7 and line.endswith("\n"):  # the last one of a killed process may be cut short
                    name, number, ticket, *moments, held = words
                    waited = None if ticket == "-" else int(ticket)
                    began, got, left = map(float, moments)
                    self.grants.append(Granted(self._index, name, int(number), waited, began, got, left, held == "1"))

    def _read_errors(self) -> None:
        assert self.popen.stderr is not None
        with self.popen.stderr as lines:
            self._errors.extend(lines)

    def stop(self) -> None:
        if not self.killed:
            assert self.popen.stdin is not None
            self.popen.stdin.write("stop\n")
            self.popen.stdin.flush()

    def join(self, seconds: float) -> str:
        """Return what it wrote to its standard error; AssertionError if it does not end."""
        try:
            self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError("a worker does not end") from None
        finally:
            self.kill()
        return "" if self.killed_on_purpose else "".join(self._errors)

    killed_on_purpose = False

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for reader in self._readers:
            reader.join()
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.close()
        except BrokenPipeError:
            pass


def run(server: RedisServer, seconds: float, seed: int, *, faults: bool = True) -> Outcome:
    """Run the workers for so many seconds, and check what they report; AssertionError says what did not hold."""
    chance = random.Random(seed)
    client = server.client()
    counts: dict[str, int] = defaultdict(int)
    workers: list[_Worker] = []

    def start() -> _Worker:
        worker = _Worker(len(workers), server.url, chance.choice(["threads", "tasks"]), chance.randrange(2**32))
        workers.append(worker)
        return worker

    alive = [start() for _ in range(PROCESSES)]
    try:
        wait_until(lambda: all(worker.grants for worker in alive), 30)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(chance.uniform(0.05, 0.4))
            if not faults:
                continue
            victim = chance.randrange(PROCESSES)
            kind = chance.choice(["stopped", "killed", "cut off"])
            counts[kind] += 1
            if kind == "stopped":
                freeze(alive[victim].popen)
                time.sleep(chance.choice([0.05, 0.3, 1.5 * TTL]))
                alive[victim].popen.send_signal(signal.SIGCONT)
            elif kind == "killed":
                alive[victim].killed = alive[victim].killed_on_purpose = True
                alive[victim].kill()
                alive[victim] = start()
            else:
                client.client_kill_filter(_type=chance.choice(["pubsub", "normal"]), skipme=True)
        for worker in alive:
            worker.stop()
        complaints = [worker.join(LEAVING_SECONDS) for worker in alive]
        assert not any(complaints), "\n".join(complaints)
        wait_until(lambda: not [key for key in client.scan_iter() if not key.endswith(b":counter")], 10)
    finally:
        for worker in workers:
            worker.kill()
        client.close()
    grants = [each for worker in workers for each in worker.grants]
    longest = max(each.got - each.began for each in grants)
    assert longest < MOST_SECONDS, f"a worker waited {longest:.1f} s: it got no message, and a recheck helped"
    return Outcome(grants, dict(counts), _check(grants))


def _check(grants: list[Granted]) -> int:
    """Check exclusion and growing numbers. Return how many grants were out of the order of tickets."""
    out_of_order = 0
    for name in NAMES.split():
        mine = sorted((each for each in grants if each.name == name), key=lambda each: each.number)
        assert len({each.number for each in mine}) == len(mine), "two grants have the same number"
        held = [each for each in mine if each.held]
        for earlier, later in itertools.pairwise(held):
            assert earlier.left <= later.got, f"two hold {name!r} at once: {earlier}, {later}"
        last = 0
        for each in mine:
            if each.ticket is not None:
                out_of_order += each.ticket < last
                last = max(last, each.ticket)
    return out_of_order

"""A fault under three workers: for how long nobody got the lock, and what became of the counters."""

from __future__ import annotations

import itertools
import json
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import create_engine, text

from examples.servers import freeze
from storage_guards import SQLAlchemyGuard
from tests.outages.deployments import FAULT_SECONDS, REPLACED, TTL, Deployment, Running
from tests.outages.worker import DATA, VALUE

WORKERS = 3
WARM_GRANTS = 30
"""How many grants there must be before the fault."""

AFTER_SECONDS = 1.0
"""How long the workers go on when the lock can be had again."""

HOLD_SECONDS = 1.0
"""How long a holder still works when its server was replaced."""

LIMIT = 60.0
FREEZE_TTLS = 1.5
HOLDER_KILLED, HOLDER_FROZEN = "holder killed", "holder frozen"


class Outcome(NamedTuple):
    """What a fault has cost.

    Args:
        gap: the longest time without a grant, in seconds.
        double: for how many seconds two workers believed to hold the lock.
        fell: how many numbers were not above that of the grant before.
        lost: updates that were acknowledged, and are gone, without a guard.
        lost_guarded: the same with a guard.
        refused: writes that the guard refused.
        grants: all that there were.
    """

    gap: float
    double: float
    fell: int
    lost: int
    lost_guarded: int
    refused: int
    grants: int


class Worker:
    """A process of worker.py."""

    def __init__(self, running: Running, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.jsonl"
        command = [sys.executable, "-m", "tests.outages.worker", running.kind, running.address, str(TTL)]
        self.process = subprocess.Popen(
            [*command, str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def say(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def until(self, word: str) -> None:
        """Wait until it says so."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], LIMIT)[0] or self.process.stdout.readline() != f"{word}\n":
            raise RuntimeError(f"a worker did not say {word!r}")

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text("utf-8").splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def play(deployment: Deployment, fault: str) -> Outcome | None:
    """Let a fault happen, and return what it has cost; None: this service cannot have it."""
    with ExitStack() as stack:
        running = deployment.start(stack)
        if fault not in (HOLDER_KILLED, HOLDER_FROZEN, *running.faults) or running.kind == "memory":
            return None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fencing-outages-")))
        _prepare(folder)
        workers = [Worker(running, folder, f"worker-{number}") for number in range(WORKERS)]
        for worker in workers:
            stack.callback(worker.close)
            worker.until("ready")
        _wait(lambda: len(_events(workers)) >= WARM_GRANTS)
        began = time.monotonic()
        if fault == HOLDER_KILLED:
            _as_it_holds(workers[0]).kill()
            began = time.monotonic()
        elif fault == HOLDER_FROZEN:
            holder = _as_it_holds(workers[0])
            freeze(holder)
            began = time.monotonic()
            time.sleep(FREEZE_TTLS * TTL)
            holder.send_signal(signal.SIGCONT)
            workers[0].say("go on")
        elif fault == REPLACED:
            running.lag()
            _as_it_holds(workers[0])
            began = time.monotonic()
            running.faults[fault]()
            time.sleep(HOLD_SECONDS)
            workers[0].say("go on")
        else:
            began = time.monotonic()
            undo = running.faults[fault]()
            time.sleep(FAULT_SECONDS)
            undo()
        over = time.monotonic()
        _wait(lambda: any(event["granted"] > over for event in _events(workers)))
        time.sleep(AFTER_SECONDS)
        ended = time.monotonic()
        living = [worker for worker in workers if worker.process.poll() is None]
        for worker in living:
            worker.say("stop")
        for worker in living:
            worker.process.wait(LIMIT)
        return _outcome(workers, folder, began, ended)


def _prepare(folder: Path) -> None:
    (folder / "plain").write_text("0", "ascii")
    engine = create_engine(DATA.format(folder=folder))
    SQLAlchemyGuard(engine).create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE counter (value INTEGER)"))
        connection.execute(text("INSERT INTO counter VALUES (0)"))
    engine.dispose()


def _as_it_holds(worker: Worker) -> subprocess.Popen[str]:
    """Return the process of a worker as soon as it holds the lock, for long."""
    worker.say("hold")
    worker.until("holds")
    return worker.process


def _events(workers: Sequence[Worker]) -> list[dict[str, Any]]:
    return [event for worker in workers for event in worker.events()]


def _outcome(workers: Sequence[Worker], folder: Path, began: float, ended: float) -> Outcome:
    by_worker = [worker.events() for worker in workers]
    events = sorted(itertools.chain(*by_worker), key=lambda event: event["granted"])
    moments = [began, *(event["granted"] for event in events if began < event["granted"] < ended), ended]
    numbers = [event["number"] for event in events]
    outcomes = [event["outcome"] for event in events]
    engine = create_engine(DATA.format(folder=folder))
    with engine.connect() as connection:
        guarded = connection.execute(VALUE).scalar_one()
    engine.dispose()
    return Outcome(
        gap=max(later - earlier for earlier, later in itertools.pairwise(moments)),
        double=sum(_overlap(one, other) for one, other in itertools.combinations(by_worker, 2)),
        fell=sum(later <= earlier for earlier, later in itertools.pairwise(numbers)),
        lost=max(len(events) - int((folder / "plain").read_text("ascii")), 0),
        lost_guarded=max(outcomes.count("written") - guarded, 0),
        refused=outcomes.count("refused"),
        grants=len(events),
    )


def _overlap(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> float:
    """Return for how many seconds both believed."""
    both = (min(a["believed"], b["believed"]) - max(a["granted"], b["granted"]) for a in one for b in other)
    return float(sum(max(seconds, 0.0) for seconds in both))


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT:g} s")
        time.sleep(0.02)

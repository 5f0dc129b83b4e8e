"""A process that takes the lock, updates two counters, and frees it, again and again. One counter has a guard."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from fencing import FencingError, StaleFence
from storage_guards import SQLAlchemyGuard
from tests.outages.deployments import RESOURCE, open_coordinator

HOLD = 0.005
"""Seconds between reading a counter and writing it."""

LONGEST_HOLD = 30.0
"""The same, at most, if the director asks for it. It kills, freezes or forgets this process meanwhile."""

RECHECK = 0.005
"""Seconds between two rechecks of the time that is left of the lease."""

PATIENCE = 1.0
"""Seconds that one call waits for the lock."""

DATA = "sqlite:///{folder}/data.db"
VALUE = text("SELECT value FROM counter")
WRITE = text("UPDATE counter SET value = :value")


class Orders:
    """What the director says on standard input: a line "hold", "go on" or "stop"."""

    def __init__(self) -> None:
        self.hold, self.go_on, self.stop = threading.Event(), threading.Event(), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            {"hold": self.hold, "go on": self.go_on}.get(line.strip(), self.stop).set()
        self.stop.set()


def main(kind: str, address: str, ttl: str, folder: str, name: str) -> None:
    logging.disable(logging.CRITICAL)  # servers go away on purpose
    engine = create_engine(DATA.format(folder=folder))
    guard, orders, plain = SQLAlchemyGuard(engine), Orders(), Path(folder) / "plain"
    with (
        open_coordinator(kind, address, ttl=float(ttl), guards=[guard], owner=name) as coordinator,
        (Path(folder) / f"{name}.jsonl").open("w", buffering=1, encoding="utf-8") as log,
    ):
        lock = coordinator.lock(RESOURCE)
        print("ready", flush=True)
        while not orders.stop.is_set():
            try:
                lease = lock.acquire(timeout=PATIENCE)
            except FencingError:
                continue
            log.write(json.dumps(_update(lease, guard, engine, plain, orders)) + "\n")
            try:
                lease.release()
            except FencingError:  # then it expires
                pass


def _update(lease: Any, guard: Any, engine: Any, plain: Path, orders: Orders) -> dict[str, Any]:
    """Count both counters up. Only the guard looks whether the lock is still this one's."""
    granted = believed = time.monotonic()
    unguarded = int(plain.read_text("ascii"))
    with engine.connect() as connection:
        guarded = connection.execute(VALUE).scalar_one()
    ends = granted + HOLD
    if orders.hold.is_set():
        orders.hold.clear()
        print("holds", flush=True)
        ends = granted + LONGEST_HOLD
    while time.monotonic() < ends and not orders.go_on.is_set():
        time.sleep(RECHECK)
        if lease.remaining() > 0:
            believed = time.monotonic()
    orders.go_on.clear()
    written = plain.with_suffix(f".{lease.fence.number}")
    written.write_text(str(unguarded + 1), "ascii")
    written.rename(plain)
    try:
        guard.write(lease, WRITE, {"value": guarded + 1})
        outcome = "written"
    except StaleFence:
        outcome = "refused"
    except FencingError as error:
        outcome = type(error).__name__
    return {"granted": granted, "believed": believed, "number": lease.fence.number, "outcome": outcome}


if __name__ == "__main__":
    main(*sys.argv[1:])

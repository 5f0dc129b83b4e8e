"""A holder and those that wait behind it, in threads: how long each hand-off takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tests.benchmarks.closed_loop import Grant
from tests.benchmarks.contended import hand_offs
from tests.benchmarks.contenders import Way

CROWD = 8
"""How many wait."""

HOLD = 0.001
LONGEST_WAIT = 60.0


def hand_over(
    ways: Sequence[Way], is_enlisted: Callable[[], bool], patience: float, busy: Callable[[], float]
) -> tuple[list[float], float]:
    """Return the seconds of each hand-off, and the processor time of all.

    Args:
        ways: of the holder, and of those that wait.
        is_enlisted: says whether all stand in the queue.
        patience: seconds that pass in the queue before the first release.
        busy: the processor time so far.
    """
    first, *waiting = ways
    grants: list[Grant] = []
    first.acquire()

    def wait(worker: int) -> None:
        waiting[worker].acquire()
        acquired = time.perf_counter()
        time.sleep(HOLD)
        grants.append(Grant(worker, acquired, time.perf_counter()))
        waiting[worker].release()

    threads = [threading.Thread(target=wait, args=(worker,), daemon=True) for worker in range(len(waiting))]
    for thread in threads:
        thread.start()
    wait_until(is_enlisted)
    time.sleep(patience)
    before = busy()
    began = time.perf_counter()
    grants.append(Grant(len(waiting), began, began))
    first.release()
    for thread in threads:
        thread.join(LONGEST_WAIT)
    return times_of(grants, len(waiting)), busy() - before


def times_of(grants: list[Grant], waiting: int) -> list[float]:
    """Return the seconds of each hand-off, all of which must have been."""
    if len(grants) != waiting + 1:
        raise RuntimeError(f"{len(grants) - 1} of {waiting} got the lock")
    return hand_offs(sorted(grants, key=lambda grant: grant.acquired))


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; raise TimeoutError if it does not for long."""
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.002)


def all_at_once(works: Sequence[Callable[[], None]]) -> None:
    """Do all of these works, each in a thread."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

"""Measure how long this process stands still, and which ttl of a lock follows from it.

``python -m fencing.pauses --seconds 60`` measures the machine: its own process does nothing else. In your program::

    import fencing.pauses

    with fencing.pauses.record() as pauses:
        main()
    print(pauses.report())

A pause that was not measured can be longer. So a ttl makes losses rare, and only a guard makes data safe.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from fencing.kernel.process import now
from fencing.kernel.workers import START_SECONDS, DaemonThread
from fencing.locks.holding import RENEWED_AFTER, RETRIED_AFTER
from fencing.locks.settings import DRIFT_FACTOR, DRIFT_SECONDS, check_seconds

INTERVAL = 0.002
"""Seconds for which the recording thread sleeps each time."""

LONGEST_KEPT = 10
"""How many of the longest pauses are kept with their moments."""

MARGIN = 3.0
"""By how much the longest pause is multiplied: an hour has longer ones than a minute."""

LEAST_TTL = 1.0
"""Seconds. A shorter ttl helps the others little after a crash, and the first longer pause ends it."""

REQUEST_SHARE = 1 / 3
"""The time limit of one renewal request, as a share of the ttl."""

PAUSE_SHARE = 1 - DRIFT_FACTOR - RENEWED_AFTER[1] - REQUEST_SHARE - RETRIED_AFTER[1]
"""What is left of a ttl for a pause, at worst: after the wait for a renewal, a lost request, and the next try."""

_STAT = "/proc/stat"
_STEPS = 8  # buckets for each factor of two: a quantile is at most 9 % too high
_BUCKETS = 36 * _STEPS  # from a microsecond to 19 hours


@dataclass(frozen=True, order=True)
class Pause:
    """One of the longest pauses.

    Attributes:
        seconds: how much too late the thread woke.
        at: when it woke, as ``time.time()``.
    """

    seconds: float
    at: float


class Durations:
    """A summary of any number of durations, in bounded memory."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.longest = 0.0
        self._counts = [0] * _BUCKETS

    def add(self, seconds: float) -> None:
        """Count one duration, in seconds."""
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)
        step = math.ceil(_STEPS * math.log2(seconds * 1e6)) if seconds > 1e-6 else 0
        self._counts[min(step, _BUCKETS - 1)] += 1

    def quantile(self, share: float) -> float:
        """Return the seconds that this share of the durations did not exceed, at most 9 % too high; 0.0 for none.

        Args:
            share: from 0 to 1; 0.5 is the median.
        """
        left = share * self.count
        for step, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                return min(2 ** (step / _STEPS) / 1e6, self.longest)
        return self.longest


class Pauses:
    """What :func:`record` measures. It can be read while that goes on.

    A pause is how much too late a thread wakes that sleeps for 2 ms. Its cause may be the scheduler, Python's lock
    (the GIL), a garbage collection, a stopped process or a stopped machine.

    Attributes:
        wakes: how late the thread woke.
        collections: how long garbage collections took.
    """

    def __init__(self) -> None:
        self.wakes = Durations()
        self.collections = Durations()
        self._longest: list[Pause] = []  # a heap
        self._began, self._ended = now(), math.inf
        self._steal_before = _read_steal()
        self._collecting_since = math.inf
        self._stopping = False

    def _add(self, late: float) -> None:
        self.wakes.add(late)
        if len(self._longest) < LONGEST_KEPT:
            heapq.heappush(self._longest, Pause(late, time.time()))
        elif late > self._longest[0].seconds:
            heapq.heapreplace(self._longest, Pause(late, time.time()))

    @property
    def longest(self) -> list[Pause]:
        """The longest pauses, the longest one first, at most ten."""
        return sorted(self._longest, reverse=True)

    @property
    def seconds(self) -> float:
        """For how many seconds it has been measured."""
        return min(now(), self._ended) - self._began

    def steal(self) -> float | None:
        """Return the share of the CPU time since the begin that a hypervisor gave to others; None: it is not known.

        Only Linux tells (steal time of /proc/stat), and only if the hypervisor tells Linux.
        """
        after = _read_steal()
        if after is None or self._steal_before is None:
            return None
        stolen, spent = (late - early for late, early in zip(after, self._steal_before, strict=True))
        return stolen / spent if spent else 0.0

    def report(self, *, block: float | None = None, outage: float = 0.0, margin: float = MARGIN) -> str:
        """Return what was measured, and a ttl that follows from it with its sum, as lines for people.

        Args:
            block: seconds: the sum of all time-outs inside the block of a lock; None: it is not known.
            outage: seconds for which the lock service may be silent and the lease be kept, such as a failover.
            margin: by how much the longest pause is multiplied.

        Raises:
            TypeError, ValueError: one of them is no number of seconds, or negative. Call it again: nothing is lost.
        """
        _check(block=0.0 if block is None else block, outage=outage, margin=margin)
        slept = f"slept for {INTERVAL * 1000:g} ms {self.wakes.count} times in {self.seconds:.0f} s"
        lines = [f"A thread {slept}. It woke late by"]
        for share in (0.5, 0.99, 0.999):
            lines.append(f"  {self.wakes.quantile(share) * 1000:10.2f} ms  or less, in {share:.1%} of the cases")
        for pause in self.longest:
            moment = time.strftime("%H:%M:%S", time.localtime(pause.at)) + f"{pause.at % 1:.3f}"[1:]
            lines.append(f"  {pause.seconds * 1000:10.2f} ms  at {moment}")
        lines.append(
            f"{self.collections.count} garbage collections took {self.collections.total:.3f} s, "
            f"the longest {self.collections.longest * 1000:.2f} ms."
        )
        steal = self.steal()
        if steal is not None:
            lines.append(f"A hypervisor gave {steal:.1%} of the CPU time to others.")
        return "\n".join([*lines, *self._report_ttl(block, outage, margin)])

    def _report_ttl(self, block: float | None, outage: float, margin: float) -> Iterator[str]:
        pause = self.wakes.longest
        needed = margin * pause
        ttl = derive_ttl(pause, outage=outage, margin=margin)
        yield "The ttl of leases that renew themselves:"
        yield f"  the longest pause x {margin:g}: {needed:.3f} s, and {DRIFT_SECONDS * 1000:g} ms for the clocks,"
        yield f"  must fit into what is left of the ttl at worst, {PAUSE_SHARE:.1%} of it:"
        yield "      100.0%"
        yield f"    - {RENEWED_AFTER[1]:6.1%}  until a renewal is due"
        yield f"    - {REQUEST_SHARE:6.1%}  its request, if that is lost"
        yield f"    - {RETRIED_AFTER[1]:6.1%}  until it is tried again"
        yield f"    - {DRIFT_FACTOR:6.1%}  for clocks that run at other rates"
        yield f"  so at least {_pause_ttl(needed):.2f} s, and never less than {LEAST_TTL:g} s"
        if outage:
            yield f"  the lock service may be silent for {outage:g} s: at least {outage / REQUEST_SHARE:.2f} s"
        yield f"  ttl={ttl:g}"
        yield f"  A holder that dies blocks the others for up to {ttl:g} s."
        yield f"  Each lease alone asks {1 / (RENEWED_AFTER[0] * ttl):.2g} times a second, at most."
        if block is not None:
            yield "The ttl with renew=False:"
            yield f"  the time-outs in the block, {block:g} s, + {needed:.3f} s + the clocks"
            yield f"  ttl={max(_round_up((block + needed + DRIFT_SECONDS) / (1 - DRIFT_FACTOR)), LEAST_TTL):g}"


def derive_ttl(pause: float, *, outage: float = 0.0, margin: float = MARGIN) -> float:
    """Return a ttl in seconds, for leases that renew themselves, of which a pause loses none.

    It allows for one lost request beside the pause. It does not allow for an outage and a pause at the same time.

    Args:
        pause: the longest pause that was measured, in seconds.
        outage: seconds for which the lock service may be silent and the lease be kept, such as a failover.
        margin: by how much the pause is multiplied.

    Raises:
        TypeError, ValueError: one of them is no number of seconds, or negative.
    """
    _check(pause=pause, outage=outage, margin=margin)
    return _round_up(max(_pause_ttl(margin * pause), outage / REQUEST_SHARE, LEAST_TTL))


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if check_seconds(value, name) < 0:
            raise ValueError(f"{name} must not be negative, not {value}")


@contextmanager
def record() -> Iterator[Pauses]:
    """Record the pauses of this process until the block ends. It costs about one percent of a CPU.

    Memory is bounded, so it may run for days. With gevent or eventlet it measures their event loop. A forked child
    records nothing.
    """
    pauses = Pauses()
    thread = DaemonThread(_watch, "fencing-pauses", pauses)
    on_collection = _collection_callback(pauses)
    try:
        gc.callbacks.append(on_collection)
        thread.start()
        yield pauses
    finally:
        pauses._stopping = True  # first: if this is interrupted, the thread ends all the same
        with suppress(ValueError):  # an interruption came before it was there
            gc.callbacks.remove(on_collection)
        pauses._ended = now()
        if thread.is_alive():
            thread.join(START_SECONDS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure for some time, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m fencing.pauses", description=(__doc__ or "").partition("\n")[0])
    measured, seconds = _number(0.01, threading.TIMEOUT_MAX), _number(0.0, threading.TIMEOUT_MAX)
    parser.add_argument("--seconds", type=measured, default=60.0, help="how long to measure (60)")
    parser.add_argument(
        "--block", type=seconds, help="the sum of all time-outs inside the block of the lock, in seconds"
    )
    parser.add_argument("--outage", type=seconds, default=0.0, help="for how long the lock service may be silent (0)")
    parser.add_argument(
        "--margin", type=_number(0.0, 1000.0), default=MARGIN, help=f"multiplies the longest pause ({MARGIN:g})"
    )
    options = parser.parse_args(arguments)
    with record() as pauses, suppress(KeyboardInterrupt):  # the report of what was measured until then
        time.sleep(options.seconds)
    report = pauses.report(block=options.block, outage=options.outage, margin=options.margin)
    sys.stdout.write(f"{report}\n")


def _number(least: float, most: float) -> Callable[[str], float]:
    """Return what reads an argument. A wrong one must be told before the measurement, not after it."""

    def read(said: str) -> float:
        value = float(said)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a number from {least:g} to {most:g}, not {said}")
        return value

    read.__name__ = "number"  # argparse names it where float() fails
    return read


def _watch(pauses: Pauses) -> None:
    """Sleep again and again, and note how late the sleep ends."""
    due = now() + INTERVAL
    while not pauses._stopping:
        time.sleep(max(due - now(), 0.0))
        woke = now()
        pauses._add(max(woke - due, 0.0))
        due = woke + INTERVAL  # from before the lines above: a pause in them counts, too


def _collection_callback(pauses: Pauses) -> Callable[[str, dict[str, int]], None]:
    """Return a function for gc.callbacks. One collection runs at a time: a process has no second one meanwhile."""

    def on_collection(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            pauses._collecting_since = now()
        elif pauses._collecting_since < math.inf:  # or else it began before the recording
            pauses.collections.add(now() - pauses._collecting_since)

    return on_collection


def _read_steal() -> tuple[int, int] | None:
    """Return the stolen and the whole CPU time of the machine since its start, in ticks; None where Linux is not."""
    try:
        with open(_STAT, encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]  # up to steal: proc_stat(5)
    except (OSError, ValueError):
        return None
    return (fields[7], sum(fields)) if len(fields) == 8 else None


def _pause_ttl(pause: float) -> float:
    return (pause + DRIFT_SECONDS) / PAUSE_SHARE


def _round_up(seconds: float) -> float:
    """Round up to two digits, so that nobody takes the result for more exact than it is."""
    digit = 10.0 ** (math.floor(math.log10(seconds)) - 1)
    return round(math.ceil(seconds / digit - 1e-9) * digit, 6)


if __name__ == "__main__":
    main()

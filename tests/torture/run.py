"""A whole run: servers, workers and faults, from one seed; then what the checker says of the history."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fencing import CoordinatorUnavailable
from tests.torture.checker import Violation, check
from tests.torture.faults import kinds_for, plan
from tests.torture.history import Event, write_history
from tests.torture.nemesis import Nemesis
from tests.torture.processes import Processes
from tests.torture.services import Place, Services, at_hand

__all__ = ["Outcome", "torture"]

TTL = 1.5
SLACK = 4.0
"""Seconds that a busy machine may add to each bound."""

FAILOVER_SECONDS = 30.0
"""For how long locks may not be had at the end of a run: the last fault may have been a failover."""

LEADER_SECONDS = 10.0
"""For how long nobody may lead at the end of a run where nothing fails over."""

FAILING_OVER = frozenset({"sentinel", "cluster", "etcd", "zookeeper"})

PAUSE = 0.03


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has shown."""

    history: Sequence[Event]
    violations: Sequence[Violation]
    faults: Counter[str]
    path: Path

    def writes(self, counter: str = "") -> Counter[str]:
        """Count the writes by their outcome."""
        return Counter(
            event.outcome or "unfinished"
            for event in self.history
            if event.kind == "write" and counter in ("", event.counter)
        )

    def ways(self) -> Counter[str]:
        """Count the acknowledged writes by the way they were made."""
        begun = {event.write: event.text for event in self.history if event.kind == "write"}
        return Counter(begun.values())

    def __str__(self) -> str:
        answers = Counter(event.outcome for event in self.history if event.kind == "landed")
        lines = []
        for counter in sorted({event.counter for event in self.history if event.kind == "final"}):
            lines.append(f"{counter:<18} {_counted(self.writes(counter))}")
        lines.append(f"landed             {_counted(answers) or 'was not asked'}")
        lines.append(f"faults             {_counted(self.faults) or 'none'}")
        by_rule = Counter(violation.rule for violation in self.violations)
        lines += [str(violation) for violation in self.violations[:10]]
        lines.append(f"violations         {_counted(by_rule) or 'none'}")
        lines.append(f"history            {self.path}")
        return "\n".join(lines)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name or 'no answer'}" for name, count in sorted(counts.items()))


def torture(
    seed: int,
    seconds: float,
    on: Sequence[str] = (),
    *,
    contender: str = "",
    kinds: Sequence[str] = (),
    processes: int = 3,
    workers: int = 3,
    slack: float = SLACK,
    pause: float = PAUSE,
    folder: Path | None = None,
) -> Outcome:
    """Run it, and check its history.

    Args:
        seed: of all choices; time, processes and servers still do as they please.
        seconds: how long faults happen.
        on: the services that take part; all that are at hand by default.
        contender: what is used in the place of the library: see `contenders.py`.
        kinds: of faults; all that there are for these services by default.
        processes: how many at a time.
        workers: threads or tasks of each.
        slack: seconds that a busy machine may add to each bound.
        pause: seconds that a holder works at most before it begins, and again between reading and writing.
        folder: where logs and the history go; a new temporary one by default.
    """
    folder = folder or Path(tempfile.mkdtemp(prefix="torture-"))
    folder.mkdir(parents=True, exist_ok=True)
    only = is_for_contenders if contender else is_for_all
    with Services(on or at_hand(), TTL, seed, only) as services:
        setup = {**services.setup, "seed": seed, "workers": workers, "slack": slack, "pause": pause, "with": contender}
        group = Processes(setup, folder, processes)
        nemesis = Nemesis(services, group)
        found: list[Event] = []
        try:
            group.are_ready()
            nemesis.run(plan(seed, seconds, kinds or kinds_for(services), TTL), seconds)
            group.are_ready()  # those that were started last, or nobody could lead
            found += _wait_for_leaders(services, group)
            group.rest()
            found += _left(services)
            group.leave()
            for place in services.places:
                now = time.monotonic()
                found.append(Event("final", now, now, counter=place.name, **services.final(place)))
            found += (event for service in services for event in service.events)
        finally:
            group.close()
    history = sorted([*group.history(), *nemesis.events, *found], key=lambda event: event.start)
    path = folder / "history.jsonl"
    write_history(path, history)
    return Outcome(history, check(history), nemesis.counts, path)


def is_for_all(place: Place) -> bool:
    return True


def is_for_contenders(place: Place) -> bool:
    """Whether a lock without guards can be used for this counter."""
    return place.use == "lock" and place.storage in ("postgresql", "sqlite") and place.coordinator == "redis"


def _wait_for_leaders(services: Services, group: Processes) -> list[Event]:
    """Wait until each election has a leader that writes, but not for ever. Nothing disturbs it any more."""
    elections = [place.name for place in services.places if place.use == "election"]
    began = time.monotonic()
    patience = LEADER_SECONDS + (FAILOVER_SECONDS if FAILING_OVER & set(services.names) else 0.0)
    while any(group.led(name) < began for name in elections) and time.monotonic() < began + patience:
        time.sleep(0.05)
    now = time.monotonic()
    return [Event("calm", began, now, counter=name) for name in elections]


def _left(services: Services) -> list[Event]:
    """Wait until killed holders' locks have expired, and note what is still taken. A failover may still go on."""
    began = time.monotonic()
    while True:
        now = time.monotonic()
        try:
            taken = services.left()
        except CoordinatorUnavailable:
            if now - began > FAILOVER_SECONDS:
                raise
        else:
            if not taken or now - began > TTL + 1:
                break
        time.sleep(0.05)
    return [Event("left", now, now, counter=name, text="its lock is taken, and no process holds it") for name in taken]

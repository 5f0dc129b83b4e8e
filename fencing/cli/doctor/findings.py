"""What the doctor finds: facts about a service, what to change, and the exit status of them all. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Literal

from fencing.cli import status

Level = Literal["ok", "warning", "wrong", "unknown"]

WARNINGS = 1
WRONG = 2

SECONDS = 5
"""How long one request of the doctor may take."""

MOST_OFFSET = 1.0
"""From how many seconds on a clock's offset is a warning. Numbers grow across a failover where clocks agree within a
second: docs/coordinators/redis.md."""

CLOCKS = "docs/operations/incidents.md#the-clock-of-redis-jumps"

SAMPLES = 3
"""How often a server is asked for its time. The fastest answer counts."""


class NotExamined(Exception):
    """A service does not answer, or refuses us, so nothing is known about it. The text says why."""


@dataclass(frozen=True)
class Finding:
    """One fact about a service.

    Args:
        level: ``"ok"``; ``"warning"``: it works, and should be changed. ``"wrong"``: locks or guards do not work, or do
            not protect. ``"unknown"``: it could not be looked at.
        what: the fact.
        why: what follows from it. Empty: nothing.
        change: what to do. Its lines from the second on are commands.
        page: the page and the heading that explain it.
    """

    level: Level
    what: str
    why: str = ""
    change: str = ""
    page: str = ""


@dataclass(frozen=True)
class Examined:
    """A service, and what was found.

    Args:
        service: its URL, without secrets.
    """

    service: str
    findings: tuple[Finding, ...]

    def as_json(self) -> list[dict[str, str]]:
        """Return the findings as ``--json`` shows them."""
        return [{"service": self.service, **asdict(finding)} for finding in self.findings]


def status_of(examined: Iterable[Examined]) -> int:
    """Return the exit status: the worst finding decides. What could not be looked at is worse than a warning."""
    levels = {finding.level for each in examined for finding in each.findings}
    if "wrong" in levels:
        return WRONG
    if "unknown" in levels:
        return status.UNAVAILABLE
    return WARNINGS if "warning" in levels else 0


def of_servers(findings: Iterable[tuple[str, Finding]], count: int) -> Iterator[Finding]:
    """Yield the findings of several servers, equal ones once. Each names its servers.

    Args:
        findings: with the name of the server.
        count: of the servers.
    """
    names: dict[Finding, list[str]] = {}
    for name, finding in findings:
        names.setdefault(finding, []).append(name)
    for finding, of in names.items():
        whose = f"all {count}" if len(of) == count > 1 else ", ".join(of)
        yield replace(finding, what=f"{whose}: {finding.what}")


def measured_offset(ask: Callable[[], float]) -> tuple[float, float]:
    """Return by how many seconds a server's clock is ahead of ours, and how far that may be wrong.

    Args:
        ask: returns the server's time in seconds since 1970.
    """
    best = (0.0, float("inf"))
    for _ in range(SAMPLES):
        before, began = time.time(), time.monotonic()
        there = ask()
        half = (time.monotonic() - began) / 2
        if half < best[1]:
            best = there - before - half, half
    return best


def clock(offset: float, error: float, page: str = CLOCKS) -> Finding:
    """Return the finding about a server's clock.

    Args:
        offset: by how many seconds it is ahead.
        error: how far that may be wrong.
        page: what explains it.
    """
    size = abs(offset)
    side = "ahead of" if offset > 0 else "behind"
    if size - error > MOST_OFFSET:
        return Finding(
            "warning",
            f"the server's clock is {size:.1f} s {side} the clock of this machine",
            "Numbers start from the server's clock. After a change to a server with another clock, the first claims "
            "may be refused once.",
            "let NTP set both clocks",
            page,
        )
    return Finding("ok", f"the server's clock is within {max(size, error):.3f} s of this machine's", page=page)

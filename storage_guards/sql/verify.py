"""What ``verify`` reports. No I/O, and no driver is known here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fencing.kernel.errors import GuardNotEnforceable

__all__ = ["Finding", "Report", "conclude"]


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Args:
        threatens: ``"safety"``: the rules do not hold, or no guarded write can succeed. ``"durability"``: what was
            acknowledged may be gone after a crash. ``"waiting"``: a wait without a bound. ``"upkeep"``: all holds now,
            and one safeguard of several is missing, or cannot be seen from here.
        what: was found.
        change: what to do about it.
    """

    threatens: Literal["safety", "durability", "waiting", "upkeep"]
    what: str
    change: str

    def __str__(self) -> str:
        return f"{self.threatens}: {self.what}; {self.change}"


@dataclass(frozen=True)
class Report:
    """All that was found; nothing of it breaks safety.

    Args:
        database: kind and version.
        findings: may be empty.
    """

    database: str
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        return "\n".join([self.database, *map(str, self.findings)])


def conclude(database: str, findings: Iterable[Finding]) -> Report:
    """The report; GuardNotEnforceable where a finding threatens safety."""
    report = Report(database, tuple(findings))
    broken = [f"{finding.what}; {finding.change}" for finding in report.findings if finding.threatens == "safety"]
    if broken:
        raise GuardNotEnforceable(f"{database} cannot enforce the rules as it is: {'. '.join(broken)}")
    return report

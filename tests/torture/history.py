"""What happened in a run, as plain data: one JSON object a line, in the order of time.

All times are seconds of CLOCK_MONOTONIC, which the processes of one machine share. A counter holds a value and the id
of the write that put it there. A write names the write that it has read. So the writes of a counter form a chain, and
the chain shows which writes count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["Event", "merge", "read_history", "write_history"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a process did, that was done to it, or that was found at the end.

    Args:
        kind: what.
            acquire: ``outcome`` is granted or refused.
            claim: acknowledged at the counter's storage, at the latest at ``end``.
            read: ``write`` is the id of the write that it saw; empty is the counter as it was made.
            write: ``write`` is its id, ``before`` that of the write that it has read. ``outcome`` is acknowledged,
                refused or unknown.
            landed: the answer about ``write``, in ``outcome``: True, False or None.
            held: its holder believed in the lease at ``start``.
            release: ``outcome`` is released, no answer or lost.
            stopped: the process stood still.
            hung: the process did not come to an end.
            once: an attempt to do what has the key ``key``. ``outcome`` is done, already (AlreadyDone, under the fence
                of number ``value``), too old (TooOld, with the floor ``before``), or failed.
            pruned: the keys below ``key`` were deleted, or some of them.
            seen: an observer was told that ``text`` leads, in term ``number``; 0: that nobody does.
            calm: no fault happened any more, and ``end`` is when the run stopped to wait for a leader.
            left: a lock was there after all holders had ended.
            error: the process met an error that no page of the documentation names.
            rewound: a failover, a restore or a flush took the storage back to what it was at ``since``, or a little
                later. It was over at ``end``: from then on, nothing else answers.
            final: ``write`` is the counter's last one, ``effects`` all that were ever committed if the storage knows.
            fault: for people.
        start: when it began.
        end: when it was over; None: it was not over, or its process died before it could say so.
        process: which one. A process that is started again has a new number.
        number, token: of the fence.
        allowed: seconds that it may take at most.
        key: of what is done once; of a write, the key under which it is made, if any.
        at_least: seconds after the grant for which the lock stays taken.
        since: what was acknowledged before is still there; see ``rewound``.
        text: for people.
    """

    kind: str
    start: float
    end: float | None = None
    process: int = 0
    counter: str = ""
    number: int = 0
    token: str = ""
    write: str = ""
    before: str = ""
    outcome: str = ""
    value: int = 0
    allowed: float | None = None
    key: str = ""
    at_least: float = 0.0
    since: float = 0.0
    effects: tuple[str, ...] | None = None
    text: str = ""


_DEFAULTS = {field.name: field.default for field in fields(Event)}


def merge(lines: Iterable[dict[str, Any]]) -> list[Event]:
    """Return the events of one process. A line with ``op`` begins one, a second line with this ``op`` ends it."""
    events: list[dict[str, Any]] = []
    begun: dict[int, dict[str, Any]] = {}
    for line in lines:
        op = line.pop("op", None)
        if op in begun:
            begun[op].update(line)
        else:
            events.append(line)
            if op is not None:
                begun[op] = line
    return [_event(line) for line in events]


def _event(line: dict[str, Any]) -> Event:
    effects = line.get("effects")
    return Event(**{**line, "effects": None if effects is None else tuple(effects)})


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; the last one of a killed process may be cut short, and is left out."""
    lines = path.read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def read_history(path: Path) -> list[Event]:
    return merge(read_lines(path))


def write_history(path: Path, events: Iterable[Event]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for event in sorted(events, key=lambda event: event.start):
            changed = {name: value for name, value in asdict(event).items() if value != _DEFAULTS[name]}
            print(json.dumps({"kind": event.kind, "start": event.start, **changed}), file=file)

"""A part of a history as a picture, drawn as those of the demos are: what one counter saw around a moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from examples.drawing import events as drawn
from examples.drawing.picture import picture
from tests.torture.checker import check
from tests.torture.history import Event, read_history

__all__ = ["draw", "draw_file"]

FAULTS = "faults"
MOST_EVENTS = 60
KINDS = {"acquire": "acquired", "claim": "claimed", "stopped": "paused", "landed": "found"}


def draw(history: Sequence[Event], counter: str, moment: float, seconds: float = 0.5) -> str:
    """Return an SVG of a counter's events, and of all faults, so many seconds before the moment and after it.

    At most 60 events are drawn, those that are nearest to the moment.
    """
    near = [
        event
        for event in history
        if event.counter in (counter, "")
        and event.kind != "final"
        and (event.kind != "claim" or event.end is not None)
        and abs(event.start - moment) <= seconds
    ]
    near = sorted(near, key=lambda event: abs(event.start - moment))[:MOST_EVENTS]
    shown = sorted((_event(event) for event in near), key=lambda event: event.start)
    processes = sorted({event.lane for event in shown} - {FAULTS})
    lanes = [drawn.Lane(FAULTS, FAULTS)]
    lanes += [drawn.Lane(name, name, 1 + index % 3) for index, name in enumerate(processes)]
    return picture(shown, lanes, name="torture", title=f"{counter} around {moment:.3f} s", alone=True)


def draw_file(path: Path, at: str = "") -> Path:
    """Draw a part of a file's history into a picture beside it, and return its path.

    Args:
        path: of the history.
        at: COUNTER@SECONDS. By default, what is around the first violation, or else around the last event.

    Raises:
        ValueError: the file has no such counter.
    """
    history = read_history(path)
    counters = {event.counter for event in history if event.counter}
    violations = [violation.event for violation in check(history) if violation.event.counter]
    found = violations or [event for event in history if event.counter and event.kind != "final"]
    counter, separator, moment = at.rpartition("@")
    if not separator and found:
        shown = found[0] if violations else found[-1]
        counter, moment = shown.counter, str(shown.start)
    if counter not in counters:
        raise ValueError(f"there is no counter {counter!r}; choose among {', '.join(sorted(counters))}")
    target = path.with_suffix(".svg")
    target.write_text(draw(history, counter, float(moment)), "utf-8")
    return target


def _event(event: Event) -> drawn.Event:
    lane = FAULTS if event.kind in ("fault", "rewound") else f"process {event.process}"
    lasts = event.kind in ("stopped", "rewound")
    end = event.end if lasts else None
    return drawn.Event(lane, _kind(event), _text(event), event.start, end, lasting=lasts)


def _kind(event: Event) -> str:
    if event.kind == "write":
        return {"acknowledged": "written", "refused": "refused"}.get(event.outcome, "tried")
    return KINDS.get(event.kind, event.kind)


def _text(event: Event) -> str:
    number = f"#{event.number % 1_000_000}: " if event.number else ""
    if event.kind == "fault":
        return event.text
    if event.kind == "rewound":
        return f"back to {event.since:.3f} s" if event.since else "everything is gone"
    if event.kind == "read":
        return f"{number}reads {event.write[:6] or 'the beginning'}"
    if event.kind in ("write", "landed"):
        before = f" over {event.before[:6] or 'the beginning'}" if event.kind == "write" else ""
        return f"{number}{event.kind} {event.write[:6]}{before}: {event.outcome or 'no answer'}"
    return f"{number}{event.kind} {event.outcome}".rstrip()

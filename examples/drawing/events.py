"""Recorded events. Nothing here knows what should happen."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple


class Lane(NamedTuple):
    name: str
    title: str
    hue: int = 0
    """The colour of the lane, its arrows and the locks it holds in pictures: 1, 2 or 3; 0: none."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a moment, or that lasted (then it has an end).

    Args:
        lane: where: a process, a server.
        kind: what, in one word; a drawing chooses its style by it.
        text: what, as a user reads it.
        start: seconds of CLOCK_MONOTONIC, which all processes of one machine share.
        end: seconds too; None: a moment, or not over yet.
        end_text: how it ended.
        lasting: whether it is something that lasts.
        because: the start of the event in another lane that caused this one; drawn beside it.
        act: the part of the run it belongs to.
        data: JSON values. A drawing knows these:
            source, target: the lane that an arrow comes from, or goes to; its other end is the event's own lane.
            label: written on the arrow.
            holder: the lane whose colour the bar has.
            flag: a warning, drawn prominently.
            reason: a long explanation.
    """

    lane: str
    kind: str
    text: str
    start: float
    end: float | None = None
    end_text: str = ""
    lasting: bool = False
    because: float | None = None
    act: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


class Recorder:
    """Events in the order in which they came in; a listener gets each of them."""

    def __init__(self, listener: Callable[[Event], None] = lambda _: None) -> None:
        self.events: list[Event] = []
        self.act = ""
        self._listener = listener
        self._aliases: dict[int, str] = {}
        self._wall = time.time() - time.monotonic()

    def begin(self, act: str) -> None:
        """Begin an act: later events belong to it."""
        self.act = act
        self._aliases = {}

    def alias(self, number: int) -> str:
        """Return a short name for a fencing number in this act: the numbers have 16 digits."""
        return self._aliases.setdefault(number, f"#{len(self._aliases) + 1}")

    @property
    def aliases(self) -> Mapping[int, str]:
        return self._aliases

    def add(
        self,
        lane: str,
        kind: str,
        text: str,
        *,
        at: float | None = None,
        because: float | None = None,
        **data: Any,
    ) -> Event:
        """Record a moment; `at`: its time, by default now."""
        start = time.monotonic() if at is None else at
        return self._record(Event(lane, kind, text, start, because=because, act=self.act, data=data))

    def open(self, lane: str, kind: str, text: str, *, at: float | None = None, **data: Any) -> Event:
        """Record the start of something that lasts."""
        start = time.monotonic() if at is None else at
        return self._record(Event(lane, kind, text, start, lasting=True, act=self.act, data=data))

    def close(self, event: Event, text: str, *, at: float | None = None) -> Event:
        """Record its end."""
        ended = replace(event, end=time.monotonic() if at is None else at, end_text=text)
        self.events[self.events.index(event)] = ended
        self._listener(ended)
        return ended

    def of(self, act: str) -> list[Event]:
        return [event for event in self.events if event.act == act]

    def write_json(self, path: Path) -> None:
        """Write one event per line, with `wall`, its start in seconds of the epoch."""
        with path.open("w", encoding="utf-8") as file:
            for event in self.events:
                print(json.dumps({**asdict(event), "wall": self._wall + event.start}), file=file)

    def _record(self, event: Event) -> Event:
        self.events.append(event)
        self._listener(event)
        return event

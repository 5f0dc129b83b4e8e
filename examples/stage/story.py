"""The texts and the page that all demos share. The result of an act is told from what was recorded and measured."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from examples.drawing.events import Event, Lane, Recorder
from examples.drawing.kinds import KINDS
from examples.drawing.kinds import Style as Look
from examples.drawing.page import Section, Table, legend, page, reasons, write_page
from examples.drawing.picture import picture
from examples.drawing.terminal import STYLES, Style, draw
from examples.stage.director import Act
from examples.stage.screen import Screen


class Outcome(Protocol):
    """The measured result of an act."""

    @property
    def act(self) -> Act: ...
    @property
    def refused(self) -> Sequence[str]:
        """The messages that refused workers got."""

    @property
    def good(self) -> bool:
        """Whether the data is correct."""

    @property
    def as_expected(self) -> bool: ...


O = TypeVar("O", bound=Outcome)  # noqa: E741 - an outcome


WIDTH = 1000
"""Pixels: of a picture, at least."""


def pause_of(ttl: float, when: str) -> str:
    """Return the sentence about the pause."""
    return (
        f"But A is paused for longer than its lock lives ({ttl:g} s), {when}: "
        "the signal SIGSTOP pauses it, and SIGCONT resumes it."
    )


class Story(ABC, Generic[O]):
    NAME: ClassVar[str]
    """Of the page's file."""
    TITLE: ClassVar[str]
    """Of the page."""
    ACTS: ClassVar[Sequence[Act]]
    SETTINGS: ClassVar[Mapping[str, str]]
    """Shown before an act."""
    WHY: ClassVar[Mapping[str, str]]
    """Shown after an act, where the result is the expected one."""
    LANES: ClassVar[Sequence[Lane]]
    STYLES: ClassVar[Mapping[str, Style]] = STYLES
    """How kinds of events look in the terminal."""
    KINDS: ClassVar[Mapping[str, Look]] = KINDS
    """How they look in a picture."""
    HEAD: ClassVar[Sequence[str]]
    """Over the columns of the table with the results."""
    LOCK_ENDS: ClassVar[Mapping[str, str]] = {
        "expires": "has expired. It cannot know that A is only paused",
        "free": "is free again",
    }

    @abstractmethod
    def introduction(self, ttl: float) -> list[str]:
        """Return the first sentences; `ttl`: the seconds a lock lives."""

    @abstractmethod
    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        """Return, by kind, the functions that describe an event; other kinds are not described."""

    def measured(self, outcome: O) -> dict[str, Any]:
        """Return what is recorded of an outcome, beside what all stories record."""
        return {}

    @abstractmethod
    def verdict(self, outcome: O, events: Sequence[Event]) -> str:
        """Return the result of an act in one or two sentences."""

    @abstractmethod
    def cells(self, outcome: O) -> Sequence[str]:
        """Return its line under ``HEAD``."""

    @abstractmethod
    def expectation(self, act: Act) -> str:
        """Return the result that is expected of an act."""

    def narrator(self, screen: Screen) -> Callable[[Event], None]:
        """Return a function that shows each event as it is recorded."""

        def narrate(event: Event) -> None:
            sentence = self._sentence(event)
            if sentence:
                screen.pass_by(f"  {sentence}")

        return narrate

    def _sentence(self, event: Event) -> str:
        who, data = event.lane, event.data
        begins = {
            "paused": lambda: f"{who} is paused: SIGSTOP to process {data['pid']}.",
            **self.sentences(event),
        }
        ends = {
            "paused": lambda: f"{who} resumes: SIGCONT. It does not know what has happened.",
            "held": lambda: f"The lock service: {data['holder']}'s lock {self.LOCK_ENDS[event.end_text]}.",
            "down": lambda: "A replica is the primary now.",
        }
        return (begins if event.end is None else ends).get(event.kind, str)()

    def open_act(self, screen: Screen, act: Act) -> None:
        screen.say()
        screen.say(f"ACT {act.key}: {act.title}", "1")
        screen.say(self.SETTINGS[act.key])
        screen.say()

    def close_act(self, screen: Screen, recorder: Recorder, outcome: O) -> None:
        screen.wipe()
        act = outcome.act
        events = recorder.of(act.key)
        verdict = self.verdict(outcome, events)
        recorder.add(
            "outcome",
            "measured",
            act.title,
            **self.measured(outcome),
            cells=list(self.cells(outcome)),
            good=outcome.good,
            as_expected=outcome.as_expected,
            setting=self.SETTINGS[act.key],
            verdict=verdict,
            why=self.WHY[act.key] if outcome.as_expected else self._not_as_expected(act),
        )
        screen.draw(draw(events, self.LANES, width=screen.width, look=screen.look, styles=self.STYLES))
        screen.say("  ".join(f"{alias} = {number}" for number, alias in recorder.aliases.items()), "2")
        for reason in outcome.refused:
            screen.say(f"StaleFence: {reason}", "2")
        screen.say()
        sign, colour = ("✓", "1;32") if outcome.good else ("✗", "1;31")
        screen.say(f"{sign} {verdict}", colour)
        if outcome.as_expected:
            screen.say(self.WHY[act.key])

    def summarize(self, screen: Screen, outcomes: Sequence[O]) -> None:
        """Show the measured results side by side."""
        title = max((len(outcome.act.title) for outcome in outcomes), default=0)
        rows = [self.HEAD, *(self.cells(outcome) for outcome in outcomes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        columns = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        head = f"{'ACT':4}{'':{title}}  {columns[0]}"
        acts = [outcome.act for outcome in outcomes]
        lines = [f"{act.key:4}{act.title:{title}}  {line}" for act, line in zip(acts, columns[1:], strict=True)]
        screen.say()
        screen.say("─" * min(screen.width, max(map(len, [head, *lines]))))
        screen.say(head, "1")
        for outcome, line in zip(outcomes, lines, strict=True):
            screen.say(line, "32" if outcome.good else "31")
        for outcome in outcomes:
            if not outcome.as_expected:
                screen.say(self._not_as_expected(outcome.act), "1;31")

    def draw_act(self, measured: Event, events: Sequence[Event], *, narrow: bool = False, alone: bool = False) -> str:
        """Return the picture of an act from its events; `alone`: as an SVG file of its own."""
        name, title = f"act-{measured.act}" + ("-narrow" if narrow else ""), f"Act {measured.act}: {measured.text}"
        width = 0 if alone else WIDTH
        kinds = self.KINDS
        return picture(events, self.LANES, name=name, title=title, width=width, kinds=kinds, narrow=narrow, alone=alone)

    def write_report(self, path: Path | None, introduction: str, events: Sequence[Event]) -> Path:
        """Write the page there, or into a new temporary directory, and return its path."""
        return write_page(path, f"{self.NAME}.html", self.report(introduction, events))

    def report(self, introduction: str, events: Sequence[Event]) -> str:
        """Return the page, made from the recorded events alone."""
        measured = [event for event in events if event.kind == "measured"]
        rows = [[f"Act {event.act}", event.text, *event.data["cells"]] for event in measured]
        table = Table(["Act", "", *self.HEAD], rows, [event.data["good"] for event in measured])
        sections = [self._section(event, [other for other in events if other.act == event.act]) for event in measured]
        return page(self.TITLE, introduction, table, sections)

    def _section(self, measured: Event, events: Sequence[Event]) -> Section:
        data = measured.data
        wide, narrow = self.draw_act(measured, events), self.draw_act(measured, events, narrow=True)
        notes = [note for note in (data["why"], legend(events), *reasons(events, "tried")) if note]
        title = f"Act {measured.act}: {measured.text}"
        return Section(
            f"act-{measured.act}", title, data["setting"], wide, narrow, data["verdict"], data["good"], notes
        )

    def _not_as_expected(self, act: Act) -> str:
        return f"Act {act.key} did NOT have the expected result: {self.expectation(act)}."

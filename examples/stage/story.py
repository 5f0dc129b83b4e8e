"""The texts that all demos share. The result of an act is told from what was recorded and measured."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from examples.drawing.events import Event, Lane, Recorder
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


class Story(ABC, Generic[O]):
    ACTS: ClassVar[Sequence[Act]]
    SETTINGS: ClassVar[Mapping[str, str]]
    """Shown before an act."""
    WHY: ClassVar[Mapping[str, str]]
    """Shown after an act, where the result is the expected one."""
    LANES: ClassVar[Sequence[Lane]]
    STYLES: ClassVar[Mapping[str, Style]] = STYLES
    COLUMNS: ClassVar[str]
    """Of the summary."""
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

    @abstractmethod
    def measured(self, outcome: O) -> dict[str, Any]:
        """Return what is recorded of an outcome."""

    @abstractmethod
    def verdict(self, outcome: O, events: Sequence[Event]) -> str:
        """Return the result of an act in one or two sentences."""

    @abstractmethod
    def cells(self, outcome: O) -> str:
        """Return its line under ``COLUMNS``."""

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
        head = f"{'ACT':4}{'':{title}}  {self.COLUMNS}"
        lines = [f"{outcome.act.key:4}{outcome.act.title:{title}}  {self.cells(outcome)}" for outcome in outcomes]
        screen.say()
        screen.say("─" * min(screen.width, max(map(len, [head, *lines]))))
        screen.say(head, "1")
        for outcome, line in zip(outcomes, lines, strict=True):
            screen.say(line, "32" if outcome.good else "31")
        for outcome in outcomes:
            if not outcome.as_expected:
                screen.say(self._not_as_expected(outcome.act), "1;31")

    def _not_as_expected(self, act: Act) -> str:
        return f"Act {act.key} did NOT have the expected result: {self.expectation(act)}."

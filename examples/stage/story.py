"""What every demo says in the same way. What came of an act is said from what was recorded and measured."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from examples.drawing.events import Event, Lane, Recorder
from examples.drawing.terminal import STYLES, Style, draw
from examples.stage.director import Act
from examples.stage.screen import Screen

_LOCK_ENDS = {"expires": "has expired; it does not know that A is only frozen", "free": "is free again"}


class Outcome(Protocol):
    """What an act came to, as measured."""

    @property
    def act(self) -> Act: ...
    @property
    def refused(self) -> Sequence[str]:
        """What refused workers were told."""

    @property
    def good(self) -> bool:
        """No harm was done."""

    @property
    def as_claimed(self) -> bool: ...


O = TypeVar("O", bound=Outcome)  # noqa: E741 - an outcome


class Story(ABC, Generic[O]):
    ACTS: ClassVar[Sequence[Act]]
    SETTINGS: ClassVar[Mapping[str, str]]
    """What is said before an act."""
    WHY: ClassVar[Mapping[str, str]]
    """Said after an act, where it came out as claimed."""
    LANES: ClassVar[Sequence[Lane]]
    STYLES: ClassVar[Mapping[str, Style]] = STYLES
    COLUMNS: ClassVar[str]
    """Of the summary."""

    @abstractmethod
    def introduction(self, ttl: float) -> list[str]:
        """The sentences it begins with, by the seconds a lock lives."""

    @abstractmethod
    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        """By kind, how an event is told, if it is told."""

    @abstractmethod
    def measured(self, outcome: O) -> dict[str, Any]:
        """What of an outcome is recorded."""

    @abstractmethod
    def verdict(self, outcome: O, events: Sequence[Event]) -> str:
        """What an act came to, in a sentence or two."""

    @abstractmethod
    def cells(self, outcome: O) -> str:
        """Its line under ``COLUMNS``."""

    @abstractmethod
    def claim(self, act: Act) -> str:
        """What is claimed of an act."""

    def narrator(self, screen: Screen) -> Callable[[Event], None]:
        """Says what is recorded, as it comes in."""

        def narrate(event: Event) -> None:
            sentence = self._sentence(event)
            if sentence:
                screen.pass_by(f"  {sentence}")

        return narrate

    def _sentence(self, event: Event) -> str:
        who, data = event.lane, event.data
        begins = {
            "frozen": lambda: f"{who} is frozen: SIGSTOP to process {data['pid']}.",
            **self.sentences(event),
        }
        ends = {
            "frozen": lambda: f"{who} wakes: SIGCONT. It knows nothing of what has happened.",
            "held": lambda: f"Redis: {data['holder']}'s lock {_LOCK_ENDS[event.end_text]}.",
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
            as_claimed=outcome.as_claimed,
            setting=self.SETTINGS[act.key],
            verdict=verdict,
            why=self.WHY[act.key] if outcome.as_claimed else self._not_as_claimed(act),
        )
        screen.draw(draw(events, self.LANES, width=screen.width, look=screen.look, styles=self.STYLES))
        screen.say("  ".join(f"{alias} = {number}" for number, alias in recorder.aliases.items()), "2")
        for reason in outcome.refused:
            screen.say(f"StaleFence: {reason}", "2")
        screen.say()
        sign, colour = ("✓", "1;32") if outcome.good else ("✗", "1;31")
        screen.say(f"{sign} {verdict}", colour)
        if outcome.as_claimed:
            screen.say(self.WHY[act.key])

    def summarize(self, screen: Screen, outcomes: Sequence[O]) -> None:
        """The measured results side by side."""
        title = max(len(outcome.act.title) for outcome in outcomes)
        head = f"{'ACT':4}{'':{title}}  {self.COLUMNS}"
        lines = [f"{outcome.act.key:4}{outcome.act.title:{title}}  {self.cells(outcome)}" for outcome in outcomes]
        screen.say()
        screen.say("─" * min(screen.width, max(map(len, [head, *lines]))))
        screen.say(head, "1")
        for outcome, line in zip(outcomes, lines, strict=True):
            screen.say(line, "32" if outcome.good else "31")
        for outcome in outcomes:
            if not outcome.as_claimed:
                screen.say(self._not_as_claimed(outcome.act), "1;31")

    def _not_as_claimed(self, act: Act) -> str:
        return f"Act {act.key} did NOT come out as claimed ({self.claim(act)})."

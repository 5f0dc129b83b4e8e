"""The acts, and what is said about them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from examples.drawing.events import Event
from examples.drawing.terminal import STYLES, Style
from examples.object_upload import director
from examples.object_upload.director import DAYS, SUNDAY, Outcome, whole_day
from examples.stage.director import Act
from examples.stage.story import Story

_STYLES = {**STYLES, "stopped": Style("31"), "torn": Style("1;31"), "whole": Style("32")}

_ACTS = (
    Act("1", "only a lock that expires", "lock_only", fenced=False, wakes_early=False, harms=True),
    Act("2", "textbook check before each put", "textbook", fenced=True, wakes_early=False, harms=True),
    Act("3a", "this library, paused as before", "guarded", fenced=True, wakes_early=False, harms=False),
    Act("3b", "this library, B not yet done", "guarded", fenced=True, wakes_early=True, harms=False),
)

_SETTINGS = {
    "1": "The files have fixed names, and are put one after the other. A is frozen while it uploads the second. "
    "It wakes when B is done.",
    "2": "Each time the lock is taken it comes with a higher number: #1, #2 ... Each object carries the number of its "
    "writer. Before a put A and B look at the number that is there, and stop if it is higher than their own.",
    "3a": "Whoever takes the lock also claims the dataset: first of all its number goes into the store. Files get "
    "names that nobody else uses, and become current all at once, by one conditional put of a small pointer. "
    "A wakes when B is done.",
    "3b": "A wakes when B has claimed, and published nothing yet.",
}

# Said only where the act came out as claimed.
_WHY = {
    "1": "To the store A's late puts were as good as any: it knows nothing of locks. Nothing will repair the dataset, "
    "and nobody was told but A, when it had ended. Also a reader between two puts of one uploader sees two days.",
    "2": "A had looked before its put, and B came in between. The late file even set its number back from #2 to #1.",
    "3a": "A's files are in the store, but nothing ever points to them; collect() deletes them.",
    "3b": "That B had claimed was enough to refuse A.",
}


class UploadStory(Story[Outcome]):
    ACTS = _ACTS
    SETTINGS = _SETTINGS
    WHY = _WHY
    LANES = director.LANES
    STYLES = _STYLES
    COLUMNS = "in the store   torn reads"

    def introduction(self, ttl: float) -> list[str]:
        days = {"Sunday": SUNDAY, "Monday": DAYS["A"], "Tuesday": DAYS["B"]}
        sums = {name: str(whole_day(day)) for name, day in days.items()}
        return [
            (
                "A dataset has three files: sales in the north, in the south, and their total: "
                f"{sums['Sunday']} on Sunday."
            ),
            f"One process, A, uploads Monday's ({sums['Monday']}); then another, B, Tuesday's ({sums['Tuesday']}).",
            "Each takes a lock in Redis. A third reads the files all the time, and adds up.",
            f"But A is frozen in mid-upload for longer than its lock lives ({ttl:g} s), as in a long GC pause.",
        ]

    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        who, data = event.lane, event.data
        return {
            "sent": lambda: f"{who} {event.text}.",
            "wrote": lambda: f"{who} publishes all three.",
            "tried": lambda: f"{who} tries to publish. The store REFUSES.",
            "stopped": lambda: f"{who} {event.text} there.",
            "written": lambda: f"In the store: {event.text}.",
            "damaged": lambda: f"In the store: {event.text}. {data['flag']}.",
            "whole": lambda: f"The reader sees {event.text}.",
            "torn": lambda: f"The reader sees {event.text}: TORN.",
        }

    def measured(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "final": str(outcome.final),
            "reads": outcome.reads,
            "torn": outcome.torn,
            "days": outcome.days,
        }

    def verdict(self, outcome: Outcome, events: Sequence[Event]) -> str:
        state = f"{outcome.final} in the store"
        if outcome.final.torn:
            state += ": files of different days"
        if outcome.refused:
            state += ", and the late publication was refused"
        days = ", then ".join(outcome.days)
        if outcome.torn:
            return f"{state}. {outcome.torn} of {outcome.reads} readings were torn; the whole ones: {days}."
        return f"{state}. None of {outcome.reads} readings was torn: {days}."

    def cells(self, outcome: Outcome) -> str:
        return f"{outcome.final!s:13}  {'✗' if outcome.torn else '✓'} {outcome.torn} of {outcome.reads}"

    def claim(self, act: Act) -> str:
        if act.harms:
            return "the dataset is torn for good"
        return "a late publication is refused, B's stands, and nobody reads files of different days"


STORY = UploadStory()

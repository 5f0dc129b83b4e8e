"""The acts, and what is said about them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from examples.drawing.events import Event
from examples.drawing.kinds import KINDS
from examples.drawing.kinds import Style as Look
from examples.drawing.terminal import STYLES, Style
from examples.object_upload import director
from examples.object_upload.director import DAYS, SUNDAY, Outcome, whole_day
from examples.stage.director import Act
from examples.stage.story import Story, pause_of

_STYLES = {**STYLES, "stopped": Style("31"), "torn": Style("1;31"), "whole": Style("32")}

_KINDS = {
    **KINDS,
    "stopped": Look("bad", dashed=True),
    "torn": Look("bad", chip=True, dashed=True),
    "whole": Look(dashed=True),
}

_ACTS = (
    Act("1", "only a lock that expires", "lock_only", fenced=False, resumes_early=False, harms=True),
    Act("2", "textbook check before each put", "textbook", fenced=True, resumes_early=False, harms=True),
    Act("3a", "this library, paused as before", "guarded", fenced=True, resumes_early=False, harms=False),
    Act("3b", "this library, B not yet done", "guarded", fenced=True, resumes_early=True, harms=False),
)

_SETTINGS = {
    "1": "The files have fixed names and are put one after the other. A is paused while it uploads the second file. "
    "It resumes after B has finished. Nothing checks the numbers here.",
    "2": "Textbook fencing: each object carries the number of its writer. "
    "Before each put, A and B read the number in the store. They stop if it is higher than their own.",
    "3a": "A process that takes the lock also claims the dataset: the store keeps its number. Each upload has file "
    "names of its own. One conditional put of a small pointer makes all its files current at once. "
    "A resumes after B has finished.",
    "3b": "A resumes when B has claimed the dataset, but has not published yet.",
}

# Shown only where the result is the expected one.
_WHY = {
    "1": "The store knows nothing of the lock. It accepts A's late puts like any other. Nothing repairs the dataset. "
    "Only A gets an error, after its last put: LeaseLost, its lock was lost. "
    "A reader between two puts of one uploader sees two days, too.",
    "2": "A checked before its put, and B wrote between the check and the put. "
    "The late put even set the number of the file back from #2 to #1.",
    "3a": "A's files are in the store, but no pointer leads to them; collect() deletes them.",
    "3b": "B's claim is enough to refuse A.",
}


class UploadStory(Story[Outcome]):
    NAME = "object-upload"
    TITLE = "A paused uploader goes on late"
    ACTS = _ACTS
    SETTINGS = _SETTINGS
    WHY = _WHY
    LANES = director.LANES
    STYLES = _STYLES
    HEAD = ("In the store", "Torn reads")
    KINDS: ClassVar[Mapping[str, Look]] = _KINDS

    def introduction(self, ttl: float) -> list[str]:
        days = {"Sunday": SUNDAY, "Monday": DAYS["A"], "Tuesday": DAYS["B"]}
        sums = {name: str(whole_day(day)) for name, day in days.items()}
        return [
            (
                "A dataset has three files: sales in the north, sales in the south and their total. "
                f"On Sunday: {sums['Sunday']}."
            ),
            f"Process A uploads Monday's ({sums['Monday']}), then process B uploads Tuesday's ({sums['Tuesday']}).",
            "Each takes a lock. Each grant of the lock has a number: #1 for the first, #2 for the next.",
            "A third process reads the files all the time. A read is torn if its files are from different days.",
            pause_of(ttl, "during its upload, as in a long GC pause"),
        ]

    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        who, data = event.lane, event.data
        return {
            "sent": lambda: f"{who} {event.text}.",
            "wrote": lambda: f"{who} publishes all three.",
            "tried": lambda: f"{who} tries to publish. The store REFUSES it.",
            "stopped": lambda: f"{who} {event.text}.",
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
            state += ": files from different days"
        if outcome.refused:
            state += ", and the late publication was refused"
        days = ", then ".join(outcome.days)
        if outcome.torn:
            return f"{state}. {outcome.torn} of {outcome.reads} reads were torn. The others saw {days}."
        return f"{state}. None of {outcome.reads} reads was torn. They saw {days}."

    def cells(self, outcome: Outcome) -> list[str]:
        return [str(outcome.final), f"{'✗' if outcome.torn else '✓'} {outcome.torn} of {outcome.reads}"]

    def expectation(self, act: Act) -> str:
        if act.harms:
            return "the dataset stays torn"
        return "the late publication is refused, B's files stay, and no read is torn"


STORY = UploadStory()

"""The acts, and what is said about them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from examples.dataset import director
from examples.dataset.director import Outcome
from examples.drawing.events import Event
from examples.drawing.kinds import Style as Look
from examples.drawing.terminal import Style
from examples.object_upload.story import STORY as UPLOADS
from examples.stage.director import Act
from examples.stage.story import Story, pause_of

_ACTS = (
    Act("1", "a hand-made latest.json", "latest_json", fenced=False, resumes_early=False, harms=True),
    Act("2a", "this library, paused as before", "guarded", fenced=True, resumes_early=False, harms=False),
    Act("2b", "this library, B not yet done", "guarded", fenced=True, resumes_early=True, harms=False),
)

_SETTINGS = {
    "1": "A worker takes the lock and reads the version in latest.json. It writes its files into the folder of the "
    "next version, and then names that version in latest.json. A is paused after its first file. "
    "It resumes after B has finished.",
    "2a": "A worker that takes the lock also claims the dataset. Its files have keys that nobody else uses. "
    "One conditional put of a small pointer makes all of them current. A resumes after B has finished.",
    "2b": "A resumes when B has claimed the dataset, but has not published yet.",
}

# Shown only where the result is the expected one.
_WHY = {
    "1": "A and B read the same version, so both wrote into the folder of the next one. A's late files replaced B's. "
    "Each query reads latest.json first, and it names a folder that is torn.",
    "2a": "A's files are in the store, but no pointer leads to them; collect() deletes them. Each query reads the "
    "objects of one publication.",
    "2b": "B's claim is enough to refuse A.",
}


class DatasetStory(Story[Outcome]):
    NAME = "dataset"
    TITLE = "A paused worker goes on writing its Parquet files"
    ACTS = _ACTS
    SETTINGS = _SETTINGS
    WHY = _WHY
    LANES = director.LANES
    STYLES: ClassVar[Mapping[str, Style]] = UPLOADS.STYLES
    HEAD = ("At the end", "Torn queries")
    KINDS: ClassVar[Mapping[str, Look]] = UPLOADS.KINDS

    def introduction(self, ttl: float) -> list[str]:
        return [
            "A dataset has a Parquet file for each of three months. Any of many workers may write all of it anew.",
            "Sunday's dataset is there. Process A writes Monday's, then process B writes Tuesday's.",
            "Each takes a lock. Each grant of the lock has a number: #1 for the first, #2 for the next.",
            "DuckDB and pyarrow query the dataset all the time.",
            "A query is torn if its months are of different days, or if a file changes while it is read.",
            pause_of(ttl, "behind its first file, as in a long GC pause"),
        ]

    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        who, data = event.lane, event.data
        return {
            "sent": lambda: f"{who} {event.text}.",
            "wrote": lambda: f"{who} {event.text}.",
            "tried": lambda: f"{who} tries to publish. The store REFUSES it.",
            "written": lambda: f"Current: {event.text}.",
            "damaged": lambda: f"Current: {event.text}. {data['flag']}.",
            "whole": lambda: f"{who} sees {event.text}.",
            "torn": lambda: f"{who} sees {event.text}: TORN.",
        }

    def measured(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "final": str(outcome.final),
            "reads": outcome.reads,
            "torn": outcome.torn,
            "days": outcome.days,
        }

    def verdict(self, outcome: Outcome, events: Sequence[Event]) -> str:
        state = f"{outcome.final} at the end"
        if outcome.final.torn:
            state += ": months of different days"
        if outcome.refused:
            state += ", and the late publication was refused"
        torn = ", ".join(f"{outcome.torn[name]} of {reads} by {name}" for name, reads in outcome.reads.items())
        return f"{state}. Torn queries: {torn}. The others saw {', then '.join(outcome.days)}."

    def cells(self, outcome: Outcome) -> list[str]:
        torn, reads = sum(outcome.torn.values()), sum(outcome.reads.values())
        return [str(outcome.final), f"{'✗' if torn else '✓'} {torn} of {reads}"]

    def expectation(self, act: Act) -> str:
        if act.harms:
            return "the dataset stays torn"
        return "the late publication is refused, B's dataset stays, and no query is torn"


STORY = DatasetStory()

"""The acts, and what is said about them. What came of an act is said from what was recorded and measured."""

from collections.abc import Sequence

from examples.drawing.events import Event, Recorder
from examples.drawing.terminal import STYLES, Style, draw
from examples.object_upload.director import DAYS, LANES, SUNDAY, Act, Outcome, whole_day
from examples.stage.screen import Screen

ACTS = (
    Act("1", "only a lock that expires", "lock_only", fenced=False, wakes_early=False, tears=True),
    Act("2", "textbook check before each put", "textbook", fenced=True, wakes_early=False, tears=True),
    Act("3a", "this library, paused as before", "guarded", fenced=True, wakes_early=False, tears=False),
    Act("3b", "this library, B not yet done", "guarded", fenced=True, wakes_early=True, tears=False),
)

_SETTING = {
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

LOOKS = {**STYLES, "stopped": Style("31"), "torn": Style("1;31"), "whole": Style("32")}

_LOCK_ENDS = {"expires": "has expired; it does not know that A is only frozen", "free": "is free again"}


def introduction(ttl: float) -> list[str]:
    days = {"Sunday": SUNDAY, "Monday": DAYS["A"], "Tuesday": DAYS["B"]}
    sums = {name: str(whole_day(day)) for name, day in days.items()}
    return [
        f"A dataset has three files: sales in the north, in the south, and their total: {sums['Sunday']} on Sunday.",
        f"One process, A, uploads Monday's ({sums['Monday']}); then another, B, Tuesday's ({sums['Tuesday']}).",
        "Each takes a lock in Redis. A third reads the files all the time, and adds up.",
        f"But A is frozen in mid-upload for longer than its lock lives ({ttl:g} s), as in a long GC pause.",
    ]


def open_act(screen: Screen, act: Act) -> None:
    screen.say()
    screen.say(f"ACT {act.key}: {act.title}", "1")
    screen.say(_SETTING[act.key])
    screen.say()


class Narrator:
    """Says what is recorded, as it comes in."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __call__(self, event: Event) -> None:
        sentence = _sentence(event)
        if sentence:
            self._screen.pass_by(f"  {sentence}")


def _sentence(event: Event) -> str:
    who, data = event.lane, event.data
    sentences = {
        "sent": lambda: f"{who} {event.text}.",
        "frozen": lambda: f"{who} is frozen: SIGSTOP to process {data['pid']}.",
        "wrote": lambda: f"{who} publishes all three.",
        "tried": lambda: f"{who} tries to publish. The store REFUSES.",
        "stopped": lambda: f"{who} {event.text} there.",
        "written": lambda: f"In the store: {event.text}.",
        "damaged": lambda: f"In the store: {event.text}. {data['flag']}.",
        "whole": lambda: f"The reader sees {event.text}.",
        "torn": lambda: f"The reader sees {event.text}: TORN.",
    }
    ends = {
        "frozen": lambda: f"{who} wakes: SIGCONT. It knows nothing of what has happened.",
        "held": lambda: f"Redis: {data['holder']}'s lock {_LOCK_ENDS[event.end_text]}.",
    }
    return (sentences if event.end is None else ends).get(event.kind, str)()


def close_act(screen: Screen, recorder: Recorder, outcome: Outcome) -> None:
    screen.wipe()
    events = recorder.of(outcome.act.key)
    recorder.add(
        "outcome",
        "measured",
        outcome.act.title,
        final=str(outcome.final),
        reads=outcome.reads,
        torn=outcome.torn,
        days=outcome.days,
        good=outcome.good,
        as_claimed=outcome.as_claimed,
        setting=_SETTING[outcome.act.key],
        verdict=verdict(outcome),
        why=_WHY[outcome.act.key] if outcome.as_claimed else _not_as_claimed(outcome),
    )
    screen.draw(draw(events, LANES, width=screen.width, look=screen.look, styles=LOOKS))
    screen.say("  ".join(f"{alias} = {number}" for number, alias in recorder.aliases.items()), "2")
    for reason in outcome.refused:
        screen.say(f"StaleFence: {reason}", "2")
    screen.say()
    sign, colour = ("✓", "1;32") if outcome.good else ("✗", "1;31")
    screen.say(f"{sign} {verdict(outcome)}", colour)
    if outcome.as_claimed:
        screen.say(_WHY[outcome.act.key])


def verdict(outcome: Outcome) -> str:
    """What an act came to, in a sentence or two."""
    state = f"{outcome.final} in the store"
    if outcome.final.torn:
        state += ": files of different days"
    if outcome.refused:
        state += ", and the late publication was refused"
    days = ", then ".join(outcome.days)
    if outcome.torn:
        return f"{state}. {outcome.torn} of {outcome.reads} readings were torn; the whole ones: {days}."
    return f"{state}. None of {outcome.reads} readings was torn: {days}."


def summarize(screen: Screen, outcomes: Sequence[Outcome]) -> None:
    """The measured results side by side."""
    screen.say()
    title = max(len(outcome.act.title) for outcome in outcomes)
    head = f"{'ACT':4}{'':{title}}  in the store   torn reads"
    screen.say("─" * min(screen.width, len(head) + 5))
    screen.say(head, "1")
    for outcome in outcomes:
        torn = f"{'✗' if outcome.torn else '✓'} {outcome.torn} of {outcome.reads}"
        line = f"{outcome.act.key:4}{outcome.act.title:{title}}  {outcome.final!s:13}  {torn}"
        screen.say(line, "32" if outcome.good else "31")
    for outcome in outcomes:
        if not outcome.as_claimed:
            screen.say(_not_as_claimed(outcome), "1;31")


def _not_as_claimed(outcome: Outcome) -> str:
    claim = (
        "the dataset is torn for good"
        if outcome.act.tears
        else "a late publication is refused, B's stands, and nobody reads files of different days"
    )
    return f"Act {outcome.act.key} did NOT come out as claimed ({claim})."

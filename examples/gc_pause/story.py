"""The acts, and what is said about them. What came of an act is said from what was recorded and measured."""

from collections.abc import Sequence

from examples.drawing.events import Event, Recorder
from examples.drawing.terminal import draw
from examples.gc_pause.director import AMOUNTS, LANES, OPENING, Act, Outcome
from examples.stage.screen import Screen

ACTS = (
    Act("1", "only a lock that expires", "lock_only", fenced=False, wakes_early=False, loses=True),
    Act("2", "textbook fencing of writes", "textbook", fenced=True, wakes_early=True, loses=True),
    Act("3a", "this library, paused as in act 1", "guarded", fenced=True, wakes_early=False, loses=False),
    Act("3b", "this library, paused as in act 2", "guarded", fenced=True, wakes_early=True, loses=False),
)

_SETTING = {
    "1": "A is frozen between its read and its write. It wakes when B is done.",
    "2": "Each time the lock is taken it comes with a higher number: #1, #2 ... "
    "The row keeps the number of its last write and refuses writes with lower ones. "
    "This time A wakes when B has read, but not yet written.",
    "3a": "Whoever takes the lock also claims the row: before anything is read, its number goes into the database. "
    "Only the last to claim may write. A wakes when B is done.",
    "3b": "A wakes when B has read, but not yet written: what textbook fencing missed.",
}

# Said only where the act came out as claimed.
_WHY = {
    "1": "To the database A's write was as good as any: it knows nothing of locks.",
    "2": "The check had nothing to refuse: #1 came before #2. But B had read before A wrote. "
    "A has learnt only that its lock is gone; its write had been confirmed.",
    "3a": "B had claimed the row, so A came too late. A started over, from B's balance.",
    "3b": "B had not written yet, but it had claimed: enough to refuse A. A started over.",
}

_LOCK_ENDS = {"expires": "has expired; it does not know that A is only frozen", "free": "is free again"}


def introduction(ttl: float) -> list[str]:
    deposits = " and ".join(f"{name} adds {amount}" for name, amount in AMOUNTS.items())
    right = OPENING + sum(AMOUNTS.values())
    return [
        f"An account holds {OPENING}. Of two processes {deposits}: {right} would be right.",
        "Each takes a lock in Redis, reads the balance in PostgreSQL, writes back the sum.",
        f"But A is frozen for longer than its lock lives ({ttl:g} s), as in a long GC pause.",
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
        "read": lambda: f"{who} has the lock, reads {data['balance']}, and is about to write {data['sum']}.",
        "frozen": lambda: f"{who} is frozen: SIGSTOP to process {data['pid']}.",
        "wrote": lambda: f"{who} writes {data['balance']}.",
        "tried": lambda: f"{who} tries to write {data['sum']}. PostgreSQL REFUSES.",
        "written": lambda: f"The row now holds {data['balance']}.",
        "damaged": lambda: f"The row now holds {data['balance']}, and should hold {data['should']}.",
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
        expected=outcome.expected,
        final=outcome.final,
        lost=outcome.lost,
        loser=outcome.loser,
        as_claimed=outcome.as_claimed,
        setting=_SETTING[outcome.act.key],
        verdict=verdict(outcome, events),
        why=_WHY[outcome.act.key] if outcome.as_claimed else _not_as_claimed(outcome),
    )
    screen.draw(draw(events, LANES, width=screen.width, look=screen.look))
    screen.say("  ".join(f"{alias} = {number}" for number, alias in recorder.aliases.items()), "2")
    for reason in outcome.refused:
        screen.say(f"StaleFence: {reason}", "2")
    screen.say()
    sign, colour = ("✗", "1;31") if outcome.lost else ("✓", "1;32")
    screen.say(f"{sign} {verdict(outcome, events)}", colour)
    if outcome.as_claimed:
        screen.say(_WHY[outcome.act.key])


def verdict(outcome: Outcome, events: Sequence[Event]) -> str:
    """What an act came to, in a sentence."""
    if outcome.lost:
        culprits = [event.data["by"] for event in events if event.kind == "damaged"]
        whose = f"{outcome.loser}'s deposit" if outcome.loser else "a deposit"
        how = f"{culprits[-1]} wrote over it" if culprits else "it is gone"
        return f"{outcome.final} instead of {outcome.expected}: {whose} had been accepted, then {how}."
    if outcome.refused:
        return f"{outcome.final}, and nothing is lost: the database refused the late write."
    return f"{outcome.final}, and nothing is lost; nothing was refused either."


def summarize(screen: Screen, outcomes: Sequence[Outcome]) -> None:
    """The measured results side by side."""
    screen.say()
    title = max(len(outcome.act.title) for outcome in outcomes)
    head = f"{'ACT':4}{'':{title}}  expected  in the row  lost"
    screen.say("─" * min(screen.width, len(head) + 7))
    screen.say(head, "1")
    for outcome in outcomes:
        lost = f"✗ {outcome.lost} ({outcome.loser}'s)" if outcome.lost else "✓ nothing"
        line = f"{outcome.act.key:4}{outcome.act.title:{title}}  {outcome.expected:8}  {outcome.final:10}  {lost}"
        screen.say(line, "31" if outcome.lost else "32")
    for outcome in outcomes:
        if not outcome.as_claimed:
            screen.say(_not_as_claimed(outcome), "1;31")


def _not_as_claimed(outcome: Outcome) -> str:
    claim = "a deposit is lost" if outcome.act.loses else "a late write is refused and nothing is lost"
    return f"Act {outcome.act.key} did NOT come out as claimed ({claim})."

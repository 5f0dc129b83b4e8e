"""The acts, and what is said about them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from examples.drawing.events import Event
from examples.gc_pause import director
from examples.gc_pause.director import AMOUNTS, OPENING, Outcome
from examples.stage.director import Act
from examples.stage.story import Story, pause_of

_ACTS: tuple[Act, ...] = (
    Act("1", "only a lock that expires", "lock_only", fenced=False, resumes_early=False, harms=True),
    Act("2", "textbook fencing of writes", "textbook", fenced=True, resumes_early=True, harms=True),
    Act("3a", "this library, paused as in act 1", "guarded", fenced=True, resumes_early=False, harms=False),
    Act("3b", "this library, paused as in act 2", "guarded", fenced=True, resumes_early=True, harms=False),
)

_SETTINGS = {
    "1": "A is paused between its read and its write. It resumes after B has finished. "
    "Nothing checks the numbers here.",
    "2": "Textbook fencing: the row keeps the number of its last write, and refuses writes with a lower one. "
    "This time A resumes when B has read, but not yet written.",
    "3a": "A process that takes the lock also claims the row: the database stores its number before the process reads. "
    "Only the last process that claimed may write. A resumes after B has finished.",
    "3b": "A resumes when B has read, but not yet written. Textbook fencing did not notice this.",
}

# Shown only where the result is the expected one.
_WHY = {
    "1": "The database knows nothing of the lock. It accepts A's write like any other. "
    "Only at the end A learns that its lock was lost: it gets the error LeaseLost.",
    "2": "The check had nothing to refuse: #1 wrote before #2. But B had read before A wrote. "
    "A gets the error LeaseLost: it learns only that its lock was lost. Its write had been confirmed.",
    "3a": "B had claimed the row, so A's write was refused. A started again, from B's balance.",
    "3b": "B had not written yet, but it had claimed the row. That is enough to refuse A. A started again.",
}


def deposits_into(account: str) -> str:
    """Return the sentences about the deposits; `account`: how they begin."""
    deposits = " and ".join(f"process {name} adds {amount}" for name, amount in AMOUNTS.items())
    right = OPENING + sum(AMOUNTS.values())
    return f"{account} {OPENING}. Two deposits: {deposits}. The correct result is {right}."


class DepositStory(Story[Outcome]):
    NAME = "gc-pause"
    TITLE = "A paused lock holder writes late"
    ACTS: ClassVar[Sequence[Act]] = _ACTS
    SETTINGS = _SETTINGS
    WHY = _WHY
    LANES = director.LANES
    HEAD = ("Expected", "In the row", "Lost")

    def introduction(self, ttl: float) -> list[str]:
        return [
            deposits_into("An account holds"),
            "Each takes a lock, reads the balance from PostgreSQL and writes back the sum.",
            "Each grant of the lock has a number: #1 for the first, #2 for the next.",
            pause_of(ttl, "as in a long GC pause"),
        ]

    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        who, data = event.lane, event.data
        return {
            "read": lambda: f"{who} has the lock, reads {data['balance']} and is about to write {data['sum']}.",
            "wrote": lambda: f"{who} writes {data['balance']}.",
            "tried": lambda: f"{who} tries to write {data['sum']}. PostgreSQL REFUSES the write.",
            "written": lambda: f"The row now holds {data['balance']}.",
            "damaged": lambda: f"The row now holds {data['balance']}. It should hold {data['should']}.",
        }

    def measured(self, outcome: Outcome) -> dict[str, Any]:
        return {
            "expected": outcome.expected,
            "final": outcome.final,
            "lost": outcome.lost,
            "loser": outcome.loser,
        }

    def verdict(self, outcome: Outcome, events: Sequence[Event]) -> str:
        if outcome.lost:
            culprits = [event.data["by"] for event in events if event.kind == "damaged"]
            whose = f"{outcome.loser}'s deposit" if outcome.loser else "a deposit"
            how = f"overwritten by {culprits[-1]}" if culprits else "lost"
            return f"{outcome.final} instead of {outcome.expected}: {whose} was accepted, then {how}."
        if outcome.refused:
            return f"{outcome.final}, and nothing is lost: the database refused the late write."
        return f"{outcome.final}, and nothing is lost; nothing was refused either."

    def cells(self, outcome: Outcome) -> list[str]:
        lost = f"✗ {outcome.lost} ({outcome.loser}'s)" if outcome.lost else "✓ nothing"
        return [str(outcome.expected), str(outcome.final), lost]

    def expectation(self, act: Act) -> str:
        return "a deposit is lost" if act.harms else "a late write is refused and nothing is lost"


STORY = DepositStory()

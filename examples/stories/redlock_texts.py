"""The acts of `redlock.py`, and what is said about them."""

from examples.drawing.events import Lane
from examples.stage.director import Act
from examples.stage.tale import Tale

PATIENT_TTL = 30.0
"""Seconds. No lock expires during an act, except by a clock that jumps."""

_TITLES = {
    "1": "a pause after the majority",
    "2": "a restart without the data",
    "3": "two clocks of five jump",
    "4": "a number that repeats",
}


def _acts(key: str) -> list[Act]:
    """Return the pair of acts of a story: by the book, and with this library."""
    book = Act(f"{key}a", f"{_TITLES[key]}, by the book", "book", fenced=False, resumes_early=False, harms=True)
    return [book, Act(f"{key}b", f"{_TITLES[key]}, this library", "library", True, resumes_early=False, harms=False)]


def _outage(key: str, title: str) -> Act:
    return Act(key, f"{title}, this library", "library", fenced=True, resumes_early=False, harms=False)


_OUTAGES = (
    _outage("6", "two of five die, then a third"),
    _outage("7", "a holder is cut off from three"),
    _outage("8", "the time of an acquire"),
)


class RedlockTexts(Tale):
    NAME = "redlock"
    TITLE = "Redlock, by the book and with fencing numbers"
    LANES = (Lane("A", "A", 1), Lane("nodes", "FIVE REDIS SERVERS"), Lane("B", "B", 2), Lane("data", "RESULT"))
    HEAD = ("At work at once", "Result")
    ACTS = (
        *(act for key in _TITLES for act in _acts(key)),
        Act("5", "a pause before the check", "book", fenced=False, resumes_early=False, harms=False),
        *_OUTAGES,
    )
    SETTINGS = {
        "1a": "All five grant the lock to A. A is paused at its work (SIGSTOP), until the lock has expired everywhere.",
        "1b": "The same pause. A and B claim in the database before they work.",
        "2a": "A reaches servers 1, 2 and 3, which grant it the lock. Then 3 restarts without its data.",
        "2b": "The same. But a server that has restarted grants nothing for as long as a lock may live.",
        "3a": "A has the lock at servers 1 to 4. Then the wall clocks of 3 and 4 jump by an hour.",
        "3b": "The same jump. A and B claim in the database before they work.",
        "4a": "Each server counts its grants. The highest count of a majority is the number, and the row refuses a "
        "lower one. B has tried before, and reached only server 1.",
        "4b": "The same counts, without clocks. But a majority must confirm the highest one before it is a number.",
        "5": "By the book, as in act 1. But A is paused earlier: behind the replies, before it looks at the time.",
        "6": "4 and 5 die, and A takes the lock. Then 3 dies, too, while A works. B tries. Then all three come back.",
        "7": "A has the lock, and its network loses servers 3, 4 and 5. B reaches all five, and waits for the lock.",
        "8": "A takes and frees a lock again and again. All five answer, then two hang (SIGSTOP), then one is "
        "dead, then two.",
    }
    WHY = {
        "1a": "A majority of five is no better than one server here: A cannot know that it was paused.",
        "1b": "B had claimed, so the database refused A's late write.",
        "2a": "Servers 3, 4 and 5 are a majority that knows nothing of A's lock. Nobody was paused.",
        "2b": "Server 3 waited, so B got no majority. A pause can still make two holders: keep the guard, here too.",
        "3a": "The locks at 3 and 4 were gone, and 5 had none. Nobody was paused.",
        "3b": "No lock service can see that a clock is wrong. B had claimed: the guard looks at no clock.",
        "4a": "Server 1 alone knew how high A's number was, and B did not reach it. So the row took A for as new as B.",
        "4b": "A's number had been confirmed by 1, 2 and 3. B reached 3, so it got a higher one.",
        "5": "Redlock survives each delay before its check, and none behind it. Compare act 1a.",
        "6": "Three of five go on. Two grant nothing to anybody, so no lock is granted twice. A server that comes back "
        "waits for as long as a lock may live.",
        "7": "Nobody renewed A's lock at 3, 4 and 5, so they freed it. A cut costs the others a ttl at most, "
        "and a moment between two tries.",
        "8": "An acquire asks all servers at once, and returns when three have granted. Nobody waits for the others.",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "A and B want a lock that counts when three of five independent Redis servers grant it.",
            "Each writes a result.",
            f"In acts 2 and 3 the lock lives {PATIENT_TTL:g} s, longer than an act lasts. In the others: {ttl:g} s.",
        ]

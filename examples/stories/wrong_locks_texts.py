"""The acts of `wrong_locks.py`: who does what when, the expected results, and what is said about them."""

from examples.drawing.events import Lane
from examples.stage.director import Act
from examples.stage.tale import Tale

PATIENT_TTL = 10.0
AHEAD = 11.0
"""Seconds: how long the lock of act 3c lives, and how much the clock of its B is ahead."""

_ACTS = (
    ("1", "SETNX, and DEL at the end", "SetOnly"),
    ("2", "SETNX, then EXPIRE", "SetThenExpire"),
    ("3a", "the expiry as value: a race", "ExpiryAsValue"),
    ("3b", "the expiry as value: who loses the race", "ExpiryAsValue"),
    ("3c", "the expiry as value: two clocks", "ExpiryAsValue"),
    ("3d", "the expiry as value: no owner", "ExpiryAsValue"),
    ("4", "anyone may DEL", "DeletedByAnyone"),
    ("5", "GET, compare, DEL", "CompareThenDelete"),
    ("6a", "an acquire that ends in True", "AlwaysTaken"),
    ("6b", "a release that is always True", "AlwaysFreed"),
    ("7a", 'comparing the reply of SET with "OK"', "TakenAsText"),
    ("7b", "comparing the script's 1 with a text", "FreedAsText"),
    ("8", "the right lock in one Redis", "Right"),
    ("9a", "the right lock, and a pause", "Right"),
    ("9b", "the same pause, with a guard", "guarded"),
)
_GOOD = ("3a", "8", "9b")


class WrongLocksTexts(Tale):
    NAME = "wrong-locks"
    TITLE = "Locks made by hand, and how each breaks"
    LANES = (Lane("A", "A", 1), Lane("lock", "REDIS"), Lane("B", "B", 2), Lane("C", "C", 3), Lane("data", "DATA"))
    HEAD = ("Most at work at once", "Result")
    ACTS = tuple(Act(key, title, how, how == "guarded", False, key not in _GOOD) for key, title, how in _ACTS)
    SETTINGS = {
        "1": "The step: SETNX takes the lock, and the DEL at the end frees it. A crashes in between.",
        "2": "The step: EXPIRE is a request of its own, behind SETNX. A crashes between the two.",
        "3a": "The step: GETSET takes over an expiry that is past, if it replies with the value that was read before. "
        "An earlier holder has crashed. A and B have both read the old expiry.",
        "3b": "The step: the one that GETSET refuses goes away. But its GETSET has written. A reads the old expiry, "
        "and is slow. B takes over, and then A's GETSET comes.",
        "3c": f"The step: each client compares the expiry with its own clock. The lock lives {PATIENT_TTL:g} s, and "
        f"B's clock is {AHEAD:g} s ahead of A's.",
        "3d": "The step: a holder looks at its clock, and then sends DEL. A is in time when it looks, and late when "
        "its DEL comes.",
        "4": "The step: DEL frees the lock. A has done its work, but its DEL comes late: the lock has expired, and B "
        "has it.",
        "5": "The step: GET, compare the token, DEL. A compares, then its lock expires. B gets it, and then A's DEL "
        "comes.",
        "6a": "The step: a loop tries a few times, and below it stands: return True. A has the lock, and B tries.",
        "6b": "The step: below the script of the release stands: return True. A's lock expires before A frees it. B "
        "gets the lock, works and frees it. Then A frees its lock.",
        "7a": 'The step: the reply of SET is compared with "OK", and this client library replies True.',
        "7b": 'The step: the reply of the script is compared with b"1", and it is the number 1. In Java, it is a Long '
        "that does not equal an Integer. A takes the lock and frees it, and then B takes it.",
        "8": "The same late release as in acts 4 and 5. Then B crashes, as A did in acts 1 and 2.",
        "9a": "A is paused at its work (SIGSTOP) for longer than its lock lives.",
        "9b": "The same, with a lock of this library. A and B claim in the database before they work.",
    }
    WHY = {
        "1": "Nothing ever frees the lock: the key has no expiry. Set it with the key: SET key token NX PX ttl.",
        "2": "The EXPIRE was never sent. SET with NX and PX is one request.",
        "3a": "GETSET replied to A with B's expiry, so the race has one winner. See the next acts for what it leaves.",
        "3b": "The key had A's expiry, which was past, though B was in time. So C took over. A refusal must not write: "
        "SET with NX does not.",
        "3c": "To B's clock, the lock was over at once. Let Redis count the time: one clock for all, with PX.",
        "3d": "The value is a time, and does not say whose. Put a random token into the key, and compare it in a "
        "script.",
        "4": "DEL does not ask whose lock it is. Put a random token into the key, and compare it.",
        "5": "Compare and DEL must be one script.",
        "6a": "Redis refused B three times. Return True where a try was granted, and False at the end.",
        "6b": "A was not alone, and its program will never know. Return what the script returned.",
        "7a": "Nobody works until the key expires, and again after each try. Test the reply's truth, not its text.",
        "7b": "The program takes each release for a loss, and does good work again. Compare numbers with numbers.",
        "8": "A's late release changed nothing, and said False. The crashed lock expired. Nobody else made a mistake.",
        "9a": "No lock can prevent this: A cannot know that it was paused. Its next write would be a late one.",
        "9b": "They were both at work again. But B had claimed, so the database refused A's late write.",
    }

    PLAYS = {
        "1": "A enters, A crashes, B waits, B enters",
        "2": "A enters, A crashes, B waits, B enters",
        "3a": "A enters, B enters, B goes on, A goes on",
        "3b": "A enters, B waits, B enters, B goes on, A goes on, C enters, C goes on",
        "3c": "A enters, B enters, B goes on",
        "3d": "A enters, A goes on, A goes on, B waits, B enters, B goes on, A goes on, C enters",
        "4": "A enters, A goes on, B waits, B enters, A goes on, C enters",
        "5": "A enters, A goes on, A goes on, B waits, B enters, A goes on, C enters",
        "6a": "A enters, B enters",
        "6b": "A enters, A goes on, B waits, B enters, B goes on, B goes on, A goes on",
        "7a": "A enters, B enters",
        "7b": "A enters, A goes on, A goes on, B enters",
        "8": "A enters, A goes on, B waits, B enters, A goes on, C enters, B crashes, C waits, C enters",
        "9a": "A enters, A is paused, B waits, B enters, A resumes",
        "9b": "A enters, A is paused, B waits, B enters, B goes on, A resumes, A goes on",
    }
    CELLS = {
        **dict.fromkeys("12", "stuck for ever"),
        **dict.fromkeys(("3b", "3c", "3d", "4", "5", "6a", "9a"), "two at work"),
        "3a": "one winner",
        "6b": "True is not true",
        "7a": "nobody can work",
        "7b": "False is not true",
        "8": "as it should be",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "Processes A, B and C want the same lock, so that one of them works at a time.",
            f"Most of these locks live {ttl:g} s. Each act plays a step of a published lock, and what breaks it.",
            "What a process believes stands beside its last command and the reply of Redis.",
        ]

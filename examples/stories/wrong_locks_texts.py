"""The acts of `wrong_locks.py`: who does what when, the expected results, and what is said about them."""

from examples.drawing.events import Lane
from examples.stage.director import Act
from examples.stage.tale import Tale

_ACTS = (
    ("1", "SETNX, and DEL at the end", "SetOnly"),
    ("2", "SETNX, then EXPIRE", "SetThenExpire"),
    ("3", "the expiry as value, GETSET", "ExpiryAsValue"),
    ("4", "anyone may DEL", "DeletedByAnyone"),
    ("5", "GET, compare, DEL", "CompareThenDelete"),
    ("6", "a release that is always True", "AlwaysTrue"),
    ("7", 'comparing the reply with "OK"', "WrongType"),
    ("8", "the right lock in one Redis", "Right"),
    ("9a", "the right lock, and a pause", "Right"),
    ("9b", "the same pause, with a guard", "guarded"),
)


class WrongLocksTexts(Tale):
    NAME = "wrong-locks"
    TITLE = "Locks made by hand, and how each breaks"
    LANES = (Lane("A", "A", 1), Lane("lock", "REDIS"), Lane("B", "B", 2), Lane("C", "C", 3), Lane("data", "DATA"))
    HEAD = ("Most at work at once", "Result")
    ACTS = tuple(Act(key, title, how, how == "guarded", False, key not in ("8", "9b")) for key, title, how in _ACTS)
    SETTINGS = {
        "1": "A crashes while it has the lock.",
        "2": "A crashes between the two requests.",
        "3": "An earlier holder has crashed. A and B both read the old expiry, and both take over.",
        "4": "A has done its work, but its DEL comes late: the lock has expired, and B has it.",
        "5": "A compares, then its lock expires. B gets it, and then A's DEL comes.",
        "6": "A's lock expires before A frees it. B gets the lock, works and frees it. Then A frees its lock.",
        "7": "A gets the lock from Redis, but its program does not believe it.",
        "8": "The same late release as in acts 4 and 5. Then B crashes, as A did in acts 1 and 2.",
        "9a": "A is paused at its work (SIGSTOP) for longer than its lock lives.",
        "9b": "The same, with a lock of this library. A and B claim in the database before they work.",
    }
    WHY = {
        "1": "Nothing ever frees the lock: the key has no expiry. Set it with the key: SET key token NX PX ttl.",
        "2": "The EXPIRE was never sent. SET with NX and PX is one request.",
        "3": "GETSET replaced B's new value as if it were the old one. Let Redis expire the key.",
        "4": "DEL does not ask whose lock it is. Put a random token into the key, and compare it.",
        "5": "Compare and DEL must be one script.",
        "6": "A was not alone, and its program will never know. Return what the script returned.",
        "7": "Nobody works until the key expires, and again after each try. Test the reply's truth, not its text.",
        "8": "A's late release changed nothing, and said False. The crashed lock expired. Nobody else made a mistake.",
        "9a": "No lock can prevent this: A cannot know that it was paused. Its next write would be a late one.",
        "9b": "They were both at work again. But B had claimed, so the database refused A's late write.",
    }

    PLAYS = {
        "1": "A enters, A crashes, B waits, B enters",
        "2": "A enters, A crashes, B waits, B enters",
        "3": "A enters, B enters, B goes on, A goes on",
        "4": "A enters, A goes on, B waits, B enters, A goes on, C enters",
        "5": "A enters, A goes on, A goes on, B waits, B enters, A goes on, C enters",
        "6": "A enters, A goes on, B waits, B enters, B goes on, B goes on, A goes on",
        "7": "A enters, B enters",
        "8": "A enters, A goes on, B waits, B enters, A goes on, C enters, B crashes, C waits, C enters",
        "9a": "A enters, A is paused, B waits, B enters, A resumes",
        "9b": "A enters, A is paused, B waits, B enters, B goes on, A resumes, A goes on",
    }
    CELLS = {
        **dict.fromkeys("12", "stuck for ever"),
        **dict.fromkeys(("3", "4", "5", "9a"), "two at work"),
        "6": "True is not true",
        "7": "nobody can work",
        "8": "as it should be",
    }

    def introduction(self, ttl: float) -> list[str]:
        return [
            "Processes A, B and C want the same lock, so that one of them works at a time.",
            f"Most of these locks live {ttl:g} s. Each act plays one lock, and one thing that happens.",
        ]

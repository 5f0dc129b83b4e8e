"""The checker's own assumptions: for each rule, a history that it must accept, and one that it must refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.torture.checker import (
    BROKEN,
    DONE_TWICE,
    FEWEST_KEPT,
    FREE_TOO_SOON,
    LATE_HOLDER,
    LOCK_LEFT,
    LONG_WAIT,
    LOST_UPDATE,
    LOWER_NUMBER,
    NO_LEADER,
    RULES,
    STALE_READ,
    SURVIVOR,
    TWO_HOLDERS,
    TWO_SLOTS,
    UNEXPECTED,
    WRONG_DONE,
    WRONG_LANDED,
    WRONG_LEADER,
    WRONG_REFUSAL,
    WRONG_SLOT,
    WRONG_TOO_OLD,
    check,
)
from tests.torture.drawing import draw, draw_file
from tests.torture.history import Event, merge, read_history, read_lines, write_history

N = "n"


def claim(at: float, number: int, **more: Any) -> Event:
    return Event("claim", at, at + 0.1, counter=N, number=number, token=f"t{number}", **more)


def read(at: float, saw: str, number: int = 1) -> Event:
    return Event("read", at, at + 0.1, counter=N, write=saw, number=number, token=f"t{number}")


def write(at: float, id_: str, before: str, number: int = 1, outcome: str = "acknowledged", **more: Any) -> Event:
    end = {"end": at + 0.1, "token": f"t{number}", **more}
    return Event("write", at, counter=N, write=id_, before=before, number=number, outcome=outcome, **end)


def landed(at: float, id_: str, answer: object) -> Event:
    return Event("landed", at, at + 0.1, counter=N, write=id_, outcome=str(answer))


def final(last: str, value: int, effects: tuple[str, ...] | None = None) -> Event:
    return Event("final", 100, 100, counter=N, write=last, value=value, effects=effects)


def rewound(since: float, start: float, end: float) -> Event:
    return Event("rewound", start, end, counter=N, since=since)


def acquired(at: float, number: int) -> Event:
    return Event("acquire", at, at + 0.1, counter=N, number=number, token=f"t{number}", outcome="granted")


def held(at: float, number: int) -> Event:
    return Event("held", at, at, counter=N, number=number, token=f"t{number}")


def once(at: float, key: str, outcome: str, **more: Any) -> Event:
    return Event("once", at, at + 0.1, counter=N, key=key, outcome=outcome, **more)


def pruned(at: float, key: str) -> Event:
    return Event("pruned", at, at + 0.1, counter=N, key=key)


def seen(at: float, number: int, leader: int = 0, observer: int = 0) -> Event:
    return Event("seen", at, at, counter=N, number=number, text=str(leader) if number else "", process=observer)


def released(at: float, number: int, outcome: str = "released") -> Event:
    return Event("release", at, at + 0.1, counter=N, token=f"t{number}", outcome=outcome)


def lasting(at: float, number: int, seconds: float) -> Event:
    return replace(acquired(at, number), at_least=seconds)


def many(count: int) -> list[Event]:
    """Return writes with so many keys, the lowest of which is 000."""
    ids = ["", *map(str, range(count))]
    return [write(5 + at / 10, ids[at + 1], ids[at], key=f"{at:03d}") for at in range(count)]


def fault(kind: str) -> Event:
    return Event("fault", 1, 2, text=kind)


GOOD = [claim(1, 1), read(2, ""), write(3, "a", ""), claim(4, 2), read(5, "a", 2), write(6, "b", "a", 2), final("b", 2)]

ACCEPTED = {
    "nothing": [],
    "two holders, one after the other": GOOD,
    "with the storage's own list": [*GOOD[:-1], final("b", 2, ("a", "b"))],
    "a refused write does not count": [*GOOD, write(7, "c", "b", outcome="refused")],
    "an unknown write that happened": [claim(1, 1), write(2, "a", "", outcome="unknown"), final("a", 1)],
    "an unknown write that did not": [claim(1, 1), write(2, "a", "", outcome="unknown"), final("", 0)],
    "a write whose process died, and that happened": [write(2, "a", "", outcome="", end=None), final("a", 1)],
    "a write whose process died, and that did not": [write(2, "a", "", outcome="", end=None), final("", 0)],
    "landed: it did": [write(2, "a", "", outcome="unknown"), landed(3, "a", True), final("a", 1)],
    "landed: it did not": [write(2, "a", "", outcome="unknown"), landed(3, "a", False), final("", 0)],
    "landed: cannot be known": [write(2, "a", "", outcome="unknown"), landed(3, "a", None), final("a", 1)],
    "a read beside the write that it does not see": [write(2, "a", ""), read(2.05, ""), final("a", 1)],
    "a read beside the write that it sees": [write(2, "a", ""), read(2.05, "a"), final("a", 1)],
    "a read of an unknown write": [write(2, "a", "", outcome="unknown"), read(3, "a"), final("a", 1)],
    "a read that failed": [write(2, "a", ""), replace(read(3, ""), end=None), final("a", 1)],
    "a write beside a newer claim": [claim(1, 1), claim(2.05, 2), write(2, "a", ""), final("a", 1)],
    "a claim repeated": [claim(1, 1), claim(2, 1), write(3, "a", ""), final("a", 1)],
    "a write after a newer claim that was not acknowledged": [
        claim(1, 1),
        replace(claim(2, 2), end=None),
        write(3, "a", ""),
        final("a", 1),
    ],
    "a rewind takes an acknowledged write back": [write(2, "a", ""), rewound(1, 3, 4), final("", 0)],
    "a rewind takes back a write that was begun meanwhile": [write(3.5, "a", ""), rewound(3, 3, 4), final("", 0)],
    "a rewind that takes nothing back": [write(2, "a", ""), rewound(1, 3, 4), read(5, "a"), final("a", 1, ("a",))],
    "a read, before the rewind, of what it takes back": [
        write(2, "a", ""),
        read(2.5, "a"),
        rewound(1, 3, 4),
        read(5, ""),
        final("", 0),
    ],
    "two holders of one number, and a rewind between them": [
        claim(1, 1),
        write(2, "a", ""),
        rewound(0, 3, 4),
        replace(claim(5, 1), token="x"),
        write(6, "b", "", token="x"),
        final("b", 1, ("b",)),
    ],
    "an older holder after a claim that a rewind took back": [
        claim(1, 1),
        claim(2, 2),
        rewound(1.5, 3, 4),
        write(5, "a", ""),
        final("a", 1),
    ],
    "an older claim after a claim that a rewind took back": [claim(2, 2), rewound(1, 3, 4), claim(5, 1), final("", 0)],
    "landed: it did, before the rewind": [
        write(2, "a", "", outcome="unknown"),
        landed(2.5, "a", True),
        rewound(1, 3, 4),
        final("", 0, ()),
    ],
    "landed: it did not, between two rewinds": [  # the second one brought an older copy back
        write(2, "a", "", outcome="unknown"),
        rewound(0, 3, 4),
        landed(5, "a", False),
        rewound(2.5, 6, 7),
        final("a", 1, ("a",)),
    ],
    "a read, between two rewinds, does not see what the second one brought back": [
        write(1, "a", ""),
        rewound(0, 3, 4),
        read(5, ""),
        rewound(2, 6, 7),
        final("a", 1, ("a",)),
    ],
    "two leases, one after the other": [acquired(1, 1), held(2, 1), acquired(3, 2), held(4, 2)],
    "a grant beside the last belief in another lease": [acquired(1, 1), held(2.1, 1), acquired(2, 2), held(3, 2)],
    "two leases after the locks have lost their data": [
        *(acquired(1, 1), acquired(2, 2), held(3, 1), held(4, 2), fault(f"flush {N}, in vain: it was down"))
    ],
    "numbers that fall, after the locks have lost their data": [
        *(acquired(1, 2), held(2, 2), fault(f"flush {N}"), acquired(3, 1), held(4, 1)),
    ],
    "a lower number that nobody believed in": [acquired(1, 2), held(2, 2), acquired(3, 1)],
    "a lock that outlasts its block": [
        lasting(1, 1, 2.0),
        held(1.5, 1),
        released(1.6, 1),
        acquired(2, 2),
        held(3.1, 2),
    ],
    "a lock that is lost, and does not outlast its block": [
        *(lasting(1, 1, 2.0), held(1.5, 1), released(1.6, 1, "no answer"), acquired(2, 2), held(2.5, 2)),
    ],
    "a lock that does not outlast its block, after the locks have lost their data": [
        *(lasting(1, 1, 2.0), released(1.6, 1), fault(f"flush {N}"), acquired(2, 2), held(2.5, 2)),
    ],
    "two holders of two slots": [acquired(1, 1), replace(acquired(1, 2), counter="m")],
    "terms in their order": [
        *(seen(0, 0), acquired(1, 1), seen(1.5, 1), held(2, 1), acquired(3, 2), held(3.5, 2), seen(4, 2), seen(5, 0)),
        *(seen(4, 1, observer=1), seen(4.5, 2, observer=1)),
    ],
    "an older term after a newer one, after the locks have lost their data": [
        *(seen(1, 2), fault(f"flush {N}"), seen(3, 1)),
    ],
    "an older term after a newer one, of Redlock, which names who may have a majority": [
        replace(event, counter="election/files/redlock") for event in (seen(1, 2), seen(3, 1))
    ],
    "a leader after the last fault": [
        *(write(2, "a", ""), Event("calm", 3, 5, counter=N), write(4, "b", "a"), final("b", 2)),
    ],
    "what is done once, by each key": [write(1, "a", "", key="1"), write(2, "b", "a", key="2"), final("b", 2)],
    "what is done once, and again after a refusal": [
        *(write(1, "a", "", outcome="refused", key="1"), write(2, "b", "", key="1"), final("b", 1)),
    ],
    "what is done once, and again after a rewind has taken it back": [
        *(write(2, "a", "", key="1"), rewound(1, 3, 4), write(5, "b", "", key="1"), final("b", 1, ("b",))),
    ],
    "AlreadyDone of what was done": [write(1, "a", "", 7, key="1"), once(2, "1", "already", value=7), final("a", 1)],
    "AlreadyDone of what has happened without an answer": [
        *(write(1, "a", "", 7, outcome="unknown", key="1"), once(2, "1", "already", value=7), final("a", 1)),
    ],
    "AlreadyDone of what a rewind takes back later": [
        *(write(1, "a", "", 7, key="1"), once(2, "1", "already", value=7), rewound(0.5, 3, 4), final("", 0)),
    ],
    "TooOld of what was pruned": [
        *(write(1, "a", "", key="1"), pruned(2, "3"), once(3, "0", "too old", before="1"), final("a", 1)),
    ],
    "TooOld where too many keys are kept": [
        *many(FEWEST_KEPT + 1),
        once(50, "000", "too old", before="000"),
        final(str(FEWEST_KEPT), FEWEST_KEPT + 1),
    ],
    "a wait as long as it may be": [Event("acquire", 1, 2, allowed=1.0)],
    "a wait while the process stood still": [
        Event("acquire", 1, 9, process=3, allowed=1.0),
        Event("stopped", 1.5, 8.5, process=3),
    ],
    "a wait with two stops, one in the other, and a third": [
        Event("acquire", 1, 9, process=3, allowed=1.0),
        Event("stopped", 1.5, 5.5, process=3),
        Event("stopped", 2.0, 3.0, process=3),
        Event("stopped", 5.0, 8.5, process=3),
    ],
}

REFUSED = {
    "acknowledged before the copy was made": (LOST_UPDATE, [write(2, "a", ""), rewound(2.5, 3, 4), final("", 0)]),
    "acknowledged after the rewind": (LOST_UPDATE, [rewound(1, 3, 4), write(5, "a", ""), final("", 0)]),
    "taken back, and written over by a holder that has read it": (
        SURVIVOR,
        [write(2, "a", ""), write(2.5, "b", "a"), rewound(1, 3, 4), write(5, "c", "b"), final("c", 3, ("a", "c"))],
    ),
    "a read, after the rewind, of what it took back": (
        STALE_READ,
        [write(2, "a", ""), rewound(1, 3, 4), read(5, "a"), final("", 0)],
    ),
    "a read, before the rewind, of a refused write": (
        STALE_READ,
        [write(2, "a", "", outcome="refused"), read(2.5, "a"), rewound(1, 3, 4), final("", 0)],
    ),
    "a read, before the rewind, that does not see what is there": (
        STALE_READ,
        [write(2, "a", ""), read(2.5, ""), rewound(2.2, 3, 4), final("a", 1)],
    ),
    "a write after a newer claim, and before the rewind": (
        LATE_HOLDER,
        [claim(1, 1), claim(2, 2), write(2.5, "a", ""), rewound(1.5, 3, 4), final("", 0)],
    ),
    "a write after a newer claim, both after the rewind": (
        LATE_HOLDER,
        [claim(1, 1), rewound(1.5, 3, 4), claim(5, 2), write(6, "a", ""), final("a", 1)],
    ),
    "a stale read, before a rewind that the next one undid": (
        STALE_READ,
        [write(1, "a", ""), read(2, ""), rewound(0, 3, 4), rewound(1.5, 6, 7), final("a", 1, ("a",))],
    ),
    "a claim after a newer one, both before the rewind": (
        LATE_HOLDER,
        [claim(1, 2), claim(2, 1), rewound(0, 3, 4), final("", 0)],
    ),
    "a claim after a newer one that the rewind left": (
        LATE_HOLDER,
        [claim(1, 2), rewound(2, 3, 4), claim(5, 1), final("", 0)],
    ),
    "landed says True, after the rewind": (
        WRONG_LANDED,
        [write(2, "a", "", outcome="unknown"), rewound(1, 3, 4), landed(5, "a", True), final("", 0, ())],
    ),
    "landed says False, before the rewind": (
        WRONG_LANDED,
        [write(1, "a", "", outcome="unknown"), landed(2, "a", False), rewound(1.5, 3, 4), final("a", 1, ("a",))],
    ),
    "landed says False of what no rewind could take back": (
        WRONG_LANDED,
        [write(1, "a", "", outcome="unknown"), rewound(2, 3, 4), landed(5, "a", False), final("a", 1, ("a",))],
    ),
    "two have read the same": (
        LOST_UPDATE,
        [claim(1, 1), write(2, "a", ""), claim(3, 2), write(4, "b", "", 2), final("b", 1)],
    ),
    "it happened, was unknown, and is overwritten": (
        LOST_UPDATE,
        [write(2, "a", "", outcome="unknown"), write(4, "b", "", 2), final("b", 1, ("a", "b"))],
    ),
    "an old request of the same grant lands": (
        LOST_UPDATE,
        [claim(1, 1), write(2, "a", "", outcome="unknown"), write(3, "b", ""), final("a", 1)],
    ),
    "a restore brings back what was before": (
        LOST_UPDATE,
        [claim(1, 1), write(2, "a", ""), write(3, "b", "a"), write(4, "c", "a"), final("c", 2)],
    ),
    "it was acknowledged, and is not there": (LOST_UPDATE, [write(2, "a", ""), final("", 0)]),
    "an acknowledged write is not seen": (STALE_READ, [write(2, "a", ""), read(3, ""), final("a", 1)]),
    "a write is seen that never counted": (
        STALE_READ,
        [write(2, "a", "", outcome="refused"), read(3, "a"), final("", 0)],
    ),
    "a write is seen before it began": (STALE_READ, [read(1, "a"), write(2, "a", ""), final("a", 1)]),
    "a write after a newer claim": (
        LATE_HOLDER,
        [claim(1, 1), claim(2, 2), write(3, "a", "", 1), final("a", 1)],
    ),
    "an unknown write that landed after a newer claim": (
        LATE_HOLDER,
        [claim(1, 1), claim(2, 2), write(3, "a", "", 1, outcome="unknown"), final("a", 1)],
    ),
    "a write after a newer write": (
        LATE_HOLDER,
        [write(3, "b", "", 2), write(3, "a", "b", 1), final("a", 2)],
    ),
    "two holders of one number": (
        LATE_HOLDER,
        [replace(write(1, "a", "", 1), token="x"), write(2, "b", "a", 1), final("b", 2)],
    ),
    "a claim after a newer claim": (LATE_HOLDER, [claim(1, 2), claim(2, 1), final("", 0)]),
    "a refused write that happened": (WRONG_REFUSAL, [write(2, "a", "", outcome="refused"), final("a", 1)]),
    "landed says True": (WRONG_LANDED, [write(2, "a", "", outcome="unknown"), landed(3, "a", True), final("", 0)]),
    "landed says False": (WRONG_LANDED, [write(2, "a", "", outcome="unknown"), landed(3, "a", False), final("a", 1)]),
    "a long wait": (LONG_WAIT, [Event("acquire", 1, 2.1, allowed=1.0)]),
    "a long wait, while another process stood still": (
        LONG_WAIT,
        [Event("acquire", 1, 9, process=3, allowed=1.0), Event("stopped", 1.5, 8.5, process=4)],
    ),
    "a long wait, with two stops at one time": (
        LONG_WAIT,
        [
            Event("acquire", 1, 9, process=3, allowed=1.0),
            Event("stopped", 1.5, 5.5, process=3),
            Event("stopped", 2.0, 5.0, process=3),
            Event("stopped", 5.0, 5.5, process=3),
        ],
    ),
    "a process that does not end": (LONG_WAIT, [Event("hung", 1, process=3)]),
    "an error that nothing explains": (UNEXPECTED, [Event("error", 1, process=3)]),
    "a lock is left": (LOCK_LEFT, [Event("left", 9, 9, counter=N)]),
    "two leases at once": (TWO_HOLDERS, [acquired(1, 1), acquired(2, 2), held(3, 1), held(4, 2)]),
    "two leases at once, the older one held for longer": (
        TWO_HOLDERS,
        [acquired(1, 1), acquired(2, 2), held(3, 2), held(4, 1)],
    ),
    "two leases under faults that lose no data of the locks": (
        TWO_HOLDERS,
        [fault(f"keep {N}"), fault("flush others"), acquired(1, 1), acquired(2, 2), held(3, 1), held(4, 2)],
    ),
    **{
        f"two leases under the fault {kind!r} of a leader": (
            TWO_HOLDERS,
            [fault(f"{kind} {N}"), acquired(1, 1), acquired(2, 2), held(3, 1), held(4, 2)],
        )
        for kind in ("kill leader", "partition")
    },
    "a number that falls": (LOWER_NUMBER, [acquired(1, 2), held(2, 2), acquired(3, 1), held(4, 1)]),
    "a number that stays": (
        LOWER_NUMBER,
        [*(acquired(1, 2), held(2, 2), replace(acquired(3, 2), token="x"), replace(held(4, 2), token="x"))],
    ),
    "a lock that is free too soon": (
        FREE_TOO_SOON,
        [lasting(1, 1, 2.0), held(1.5, 1), released(1.6, 1), acquired(2, 2), held(2.5, 2)],
    ),
    "a holder of two slots": (TWO_SLOTS, [acquired(1, 1), replace(acquired(1, 1), counter="m")]),
    "a slot above the highest": (WRONG_SLOT, [acquired(1, 1), replace(final("", 0), counter="m")]),
    "an older term after a newer one": (WRONG_LEADER, [seen(1, 2), seen(2, 0), seen(3, 1)]),
    "another leader than the one that was elected": (WRONG_LEADER, [acquired(1, 1), seen(2, 1, leader=5)]),
    "no leader after the last fault": (
        NO_LEADER,
        [write(2, "a", ""), Event("calm", 3, 5, counter=N), final("a", 1)],
    ),
    "a leader after the last fault whose writes are refused": (
        NO_LEADER,
        [Event("calm", 3, 5, counter=N), write(4, "a", "", outcome="refused"), final("", 0)],
    ),
    "done twice": (DONE_TWICE, [write(1, "a", "", key="1"), write(2, "b", "a", key="1"), final("b", 2)]),
    "done twice, the second time without an answer": (
        DONE_TWICE,
        [write(1, "a", "", key="1"), write(2, "b", "a", outcome="unknown", key="1"), final("b", 2)],
    ),
    "AlreadyDone of what nobody did": (WRONG_DONE, [once(2, "1", "already", value=7), final("", 0)]),
    "AlreadyDone of what was refused": (
        WRONG_DONE,
        [write(1, "a", "", 7, outcome="refused", key="1"), once(2, "1", "already", value=7), final("", 0)],
    ),
    "AlreadyDone before it was done": (
        WRONG_DONE,
        [once(1, "1", "already", value=7), write(2, "a", "", 7, key="1"), final("a", 1)],
    ),
    "AlreadyDone under another fence": (
        WRONG_DONE,
        [write(1, "a", "", 6, key="1"), once(2, "1", "already", value=7), final("a", 1)],
    ),
    "AlreadyDone after a rewind has taken it back": (
        WRONG_DONE,
        [write(1, "a", "", 7, key="1"), rewound(0.5, 3, 4), once(5, "1", "already", value=7), final("", 0)],
    ),
    "TooOld of a key above the floor": (
        WRONG_TOO_OLD,
        [write(1, "a", "", key="1"), pruned(2, "3"), once(3, "2", "too old", before="1"), final("a", 1)],
    ),
    "TooOld at a floor that was never done": (
        WRONG_TOO_OLD,
        [pruned(2, "3"), once(3, "1", "too old", before="2"), final("", 0)],
    ),
    "TooOld at a floor above what was pruned": (
        WRONG_TOO_OLD,
        [write(1, "a", "", key="3"), pruned(2, "3"), once(3, "1", "too old", before="3"), final("a", 1)],
    ),
    "TooOld before anything was pruned": (
        WRONG_TOO_OLD,
        [write(1, "a", "", key="1"), once(3, "1", "too old", before="1"), pruned(4, "3"), final("a", 1)],
    ),
    "TooOld where few keys are kept": (
        WRONG_TOO_OLD,
        [*many(FEWEST_KEPT), once(50, "000", "too old", before="000"), final(str(FEWEST_KEPT - 1), FEWEST_KEPT)],
    ),
    "a last write that nobody made": (BROKEN, [final("x", 1)]),
    "a write that has read one that nobody made": (BROKEN, [write(2, "a", "x"), final("a", 1)]),
    "a value that does not fit": (BROKEN, [write(2, "a", ""), final("a", 2)]),
    "an effect that nobody made": (BROKEN, [write(2, "a", ""), final("a", 1, ("a", "x"))]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_history_that_may_happen_is_accepted(name: str) -> None:
    assert check(ACCEPTED[name]) == []


@pytest.mark.parametrize("name", REFUSED)
def test_a_history_that_may_not_happen_is_refused(name: str) -> None:
    rule, history = REFUSED[name]
    assert {violation.rule for violation in check(history)} == {rule}


def test_each_rule_is_refused_once_at_least() -> None:
    assert {rule for rule, _ in REFUSED.values()} == set(RULES)


def test_the_order_of_the_lines_does_not_matter() -> None:
    for name, (rule, history) in REFUSED.items():
        assert {violation.rule for violation in check(history[::-1])} == {rule}, name


def test_counters_do_not_mix() -> None:
    other = [replace(event, counter="m", number=event.number + 5) for event in GOOD]
    assert check([*GOOD, *other]) == []
    assert [str(found) for found in check([*GOOD, *other, write(9, "z", "", 9)])] == [
        "lost update of n, process 0, at 9.000000: 'z' was acknowledged, and does not count"
    ]


def test_a_history_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    history = [*GOOD[:-1], final("b", 2, ("a", "b"))]
    write_history(tmp_path / "history.jsonl", history)
    assert read_history(tmp_path / "history.jsonl") == history


def test_a_history_can_be_drawn() -> None:
    faults = [Event("fault", 2.5, 2.5, text="flush"), Event("stopped", 2.1, 2.4, process=3)]
    history = [*GOOD, write(9, "far", "b", 2), *faults, replace(GOOD[0], counter="m", number=99)]
    picture = draw(history, N, 3.0, seconds=3.5)
    for text in ("process 0", "process 3", "flush", "#1: reads the beginning", "#2: write b over a: acknowledged"):
        assert text in picture, text
    assert "far" not in picture
    assert "#99" not in picture


def test_a_file_is_drawn_around_its_first_violation(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    late = [write(50, "z", "b", 2), Event("fault", 50.1, 50.1, text="freeze"), rewound(49.5, 49.9, 50)]
    write_history(path, [*GOOD[:-1], *late, final("b", 2)])
    picture = draw_file(path).read_text("utf-8")
    assert "freeze" in picture
    assert "back to 49.500 s" in picture
    assert "write a" not in picture
    assert "write a" in draw_file(path, f"{N}@3.0").read_text("utf-8")
    with pytest.raises(ValueError, match="there is no counter 'm'; choose among n"):
        draw_file(path, "m@3.0")


def test_two_lines_make_one_event_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    lines = (
        '{"op": 1, "kind": "write", "start": 1, "write": "a"}\n{"op": 2, "kind": "write", "start": 2, "write": "b"}\n'
    )
    (tmp_path / "log").write_text(lines + '{"op": 1, "end": 3, "outcome": "refused"}\n{"op": 2, "end')
    assert merge(read_lines(tmp_path / "log")) == [
        Event("write", 1, 3, write="a", outcome="refused"),
        Event("write", 2, write="b"),
    ]

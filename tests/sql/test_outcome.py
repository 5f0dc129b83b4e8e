"""The rule of ``landed`` without a database: random histories of a mark, and what may be said of each write in them."""

from __future__ import annotations

import os
import random
from collections import Counter

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence
from storage_guards.sql.outcome import Settled, verdict

REMEMBERED = 3  # fewer than the real marks have, so that short histories overflow


class Table:
    """A table of one mark, with its floor. Time may branch: a copy is a replica or a backup."""

    def __init__(self) -> None:
        self.name = "table"
        self.mark: list[str] | None = None
        self.number = 0
        self.floor = 0
        self.landed: set[str] = set()

    def copy(self) -> Table:
        other = Table()
        other.__dict__.update(self.__dict__, landed=set(self.landed))
        return other

    def recent_writes(self, write: str) -> list[str]:
        return [write, *([self.name] if self.mark is None else self.mark)][:REMEMBERED]

    def settled(self) -> Settled:
        return Settled(None if self.mark is None else " ".join(self.mark), self.name, self.floor)


def test_it_is_never_wrong() -> None:
    seed = int(os.environ.get("FENCING_SEED") or random.randrange(2**32))
    chance = random.Random(seed)
    seen: Counter[bool | None] = Counter()
    for _ in range(3_000):
        table = Table()
        backup = table.copy()
        asked: list[tuple[str, OutcomeUnknown]] = []
        for step in range(chance.randint(1, 9)):
            what = chance.choice(["write"] * 5 + ["claim", "claim", "prune", "back up", "restore"])
            if what == "write" and table.number >= table.floor:
                number = max(1, table.number + chance.randint(0, 1), table.floor + (table.mark is None))
                write = f"write-{step}"
                recent = table.recent_writes(write)
                fence = Fence("r", number, "t" * 22)
                asked.append((write, OutcomeUnknown(fence=fence, seq=1, recent_writes=" ".join(recent))))
                if chance.random() < 0.5:  # else it is rolled back
                    table.mark, table.number = recent, number
                    table.landed.add(write)
            elif what == "claim":
                table.number = max(table.number, table.floor) + 1
                table.mark = [f"claim-{step}", table.name] if table.mark is None else table.mark
            elif what == "prune" and table.mark is not None:
                table.mark, table.floor = None, max(table.floor, table.number)
            elif what == "back up":
                backup = table.copy()
            elif what == "restore":
                table = backup.copy()
        for write, unknown in asked:
            answer = verdict(unknown, table.settled())
            truth = write in table.landed
            assert answer in (truth, None), f"{write} of {unknown.recent_writes}: {answer}; FENCING_SEED={seed}"
            seen[answer] += 1
    assert min(seen[True], seen[False], seen[None]) > 300, seen


def test_of_an_error_without_a_history_nothing_is_known() -> None:
    unknown = OutcomeUnknown(fence=Fence("r", 1, "t" * 22), seq=1)
    assert verdict(unknown, Settled("", "", 0)) is None
    assert verdict(unknown, Settled(None, "", 0)) is None


def test_a_table_without_an_id_answers_for_no_first_write() -> None:
    unknown = OutcomeUnknown(fence=Fence("r", 1, "t" * 22), seq=1, recent_writes="mine ")
    assert verdict(unknown, Settled(None, "", 0)) is None
    assert verdict(unknown, Settled("other ", "", 0)) is None
    assert verdict(unknown, Settled("other mine ", "", 0)) is True

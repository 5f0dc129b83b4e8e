"""A small world of marks, floors and fences, in which statements are compared with the kernel's rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from storage_guards.sql.outcome import FLOOR

RESOURCE = "orders:1"
TOKENS = ("a" * 22, "b" * 22)


_NUMBERS = (1, 2, 3, MAX_NUMBER)
FENCES = [Fence(RESOURCE, number, token) for number in _NUMBERS for token in TOKENS]


class World(NamedTuple):
    """What a table has of the resource.

    Args:
        mark: None: there is none, or no holder's.
        floor: of marks that were pruned. Where there is a mark it does not count, so it is high.
        before: the row of a mark that readers made before any holder: number and readers. None: there is none.
    """

    mark: Mark | None
    floor: int
    before: tuple[int, int] | None = None

    def claimed(self, fence: Fence) -> Any:
        """What the rule says of a claim."""
        if self.before is None:
            return outcome(admit_claim, self.mark, fence, self.floor)
        admitted = outcome(admit_claim, None, fence, max(self.before))
        return replace(admitted, readers=self.before[1]) if isinstance(admitted, Mark) else admitted

    def checked(self, fence: Fence) -> Any:
        """What the rule says of a write."""
        return outcome(admit_write, self.mark, fence)


WORLDS = [
    *(World(None, floor) for floor in (0, 2, MAX_NUMBER)),
    *(World(None, MAX_NUMBER, before) for before in ((0, 2), (2, 0), (2, 3), (3, 1))),
    *(
        World(Mark(number, token, 4, readers), MAX_NUMBER)
        for number in _NUMBERS
        for token in TOKENS
        for readers in (0, 2, 3)
    ),
]


def set_world(connection: Connection, world: World) -> None:
    connection.execute(text("DELETE FROM fencing_marks"))
    insert = text(
        "INSERT INTO fencing_marks (resource, number, token, seq, readers) "
        "VALUES (:resource, :number, :token, :seq, :readers)"
    )
    connection.execute(insert, {"resource": FLOOR, "number": world.floor, "token": "", "seq": 0, "readers": 0})
    row: dict[str, Any] | None = None
    if world.mark is not None:
        mark = world.mark
        row = {"number": mark.number, "token": mark.token, "seq": mark.seq, "readers": mark.readers}
    elif world.before is not None:
        number, readers = world.before
        row = {"number": number, "token": "", "seq": 0, "readers": readers}
    if row is not None:
        connection.execute(insert, {"resource": RESOURCE, **row})


def outcome(function: Any, *args: Any) -> Any:
    """What it returns, or the refusal as a value that can be compared."""
    try:
        return function(*args)
    except (StaleFence, UnclaimedFence) as error:
        return type(error), vars(error)

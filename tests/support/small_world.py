"""A small world of marks, floors and fences, in which statements are compared with the kernel's rule."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from fencing.kernel.errors import StaleFence, UnclaimedFence
from fencing.kernel.fence import Mark
from storage_guards.sql.outcome import FLOOR

RESOURCE = "orders:1"
TOKENS = ("a" * 22, "b" * 22)


def set_mark(connection: Connection, mark: Mark | None, floor: int) -> None:
    connection.execute(text("DELETE FROM fencing_marks"))
    insert = text("INSERT INTO fencing_marks (resource, number, token, seq) VALUES (:resource, :number, :token, :seq)")
    connection.execute(insert, {"resource": FLOOR, "number": floor, "token": "", "seq": 0})
    if mark is not None:
        values = {"resource": RESOURCE, "number": mark.number, "token": mark.token, "seq": mark.seq}
        connection.execute(insert, values)


def outcome(function: Any, *args: Any) -> Any:
    """What it returns, or the refusal as a value that can be compared."""
    try:
        return function(*args)
    except (StaleFence, UnclaimedFence) as error:
        return type(error), vars(error)

"""What PyMySQL sends, also past SQLAlchemy's engine, whose hooks do not see the guard's own statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pymysql.connections import Connection


def note_requests(patch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of all requests from here on."""
    sent: list[str] = []
    execute: Any = Connection._execute_command  # type: ignore[attr-defined]

    def note(self: Any, command: int, request: Any) -> Any:
        sent.append(request if isinstance(request, str) else bytes(request).decode())
        return execute(self, command, request)

    patch.setattr(Connection, "_execute_command", note)
    return sent


def after_the_next_change_of_a_mark(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[Callable[[], object]]:
    """Act once when the next UPDATE of marks is answered. Return what is still to be done."""
    meant = [act]
    query: Any = Connection.query

    def query_and_act(self: Any, sql: Any, *arguments: Any, **options: Any) -> Any:
        answer = query(self, sql, *arguments, **options)
        if meant and str(sql).startswith("UPDATE") and "fencing_marks" in str(sql):
            meant.pop()()
        return answer

    patch.setattr(Connection, "query", query_and_act)
    return meant

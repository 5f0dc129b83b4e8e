"""SQL locks explored: their own plans and statements, on SQLite, with lost and late requests, and loss of data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fencing.sql import table
from tests.explorer.scenarios import DEEP, SAFE
from tests.explorer.search import explore
from tests.explorer.sqlite_locks import ClockedLocks, for_sql, locks_on_sqlite, polls
from tests.explorer.state import OVERLAP, STUCK, Scenario

OFTEN = ("2 clients, kept requests", True)
"""The others are for `make deep`."""


def scenarios() -> Iterator[Any]:
    """Yield each scenario; where data may be lost, also with a clock that goes back: else the number is above it."""
    longer = "2 clients, all faults but late requests"
    for name, scenario in {**SAFE, longer: DEEP[longer]}.items():
        for moves in (True, False) if scenario.bounds.resets and name in SAFE else (True,):
            if polls(scenario):
                marks = [] if (name, moves) == OFTEN else [pytest.mark.deep]
                yield pytest.param(scenario, moves, id=name if moves else f"{name}, clock back", marks=marks)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Any]:
    made: list[Any] = []

    def make(**options: Any) -> Any:
        server = locks_on_sqlite(tmp_path / f"{len(made)}.db", **options)
        made.append(server)
        return server

    yield make
    for server in made:
        server.close()


@pytest.mark.thorough
@pytest.mark.parametrize(("scenario", "moves"), list(scenarios()))
def test_sql_locks_are_safe(scenario: Scenario, moves: bool, servers: Any, say: Callable[[object], None]) -> None:
    """The same as for Redis. With a clock that goes back when data is lost, refused claims are repaired."""
    result = explore(for_sql(scenario, servers(moves=moves)))
    say(str(result))
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted
    assert result.world is not None
    assert result.most_refusals <= 3


class TakesAnything(ClockedLocks):
    """A lock that is held is granted to another token."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        taking = f"{table.INSERT} ON CONFLICT (resource) DO UPDATE SET {table.SET} WHERE true"
        self._acquire = self._text(
            f"{taking} RETURNING {{clock}} AS now, number, token, owner, granted_at, expires_at, released_at"
        )


class NeverExpires(ClockedLocks):
    """The end of a lease is not read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        free = table.IS_FREE.replace("OR l.expires_at <= {clock}", "")
        taking = f"{table.INSERT} ON CONFLICT (resource) DO UPDATE SET {table.SET} WHERE {free}"
        self._acquire = self._text(
            f"{taking} RETURNING {{clock}} AS now, number, token, owner, granted_at, expires_at, released_at"
        )


@pytest.mark.parametrize(
    ("kind", "violates", "length"),
    [(TakesAnything, OVERLAP, 2), (NeverExpires, STUCK, 4)],
    ids=["a held lock is refused", "a lease ends"],
)
def test_each_rule_is_needed(
    kind: Any, violates: str, length: int, servers: Any, say: Callable[[object], None]
) -> None:
    scenario = replace(SAFE["2 clients, most faults"], bounds=SAFE["2 clients, most faults"].bounds._replace(resets=0))
    result = explore(for_sql(scenario, servers(kind=kind)), until={violates})
    assert violates in result.violations
    print(result.violations[violates])
    assert len(result.violations[violates]) == length

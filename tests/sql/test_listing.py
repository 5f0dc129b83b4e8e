"""``marks``: every mark once, page by page, on every database and with every guard."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine

from fencing import Fence, GuardNotEnforceable
from fencing.kernel.fence import Mark
from storage_guards import SQLAlchemyGuard
from storage_guards.sql import listing
from tests.support.enforced import two_roles
from tests.support.sql_ways import Way, WayLender, ways

NAMES = ["a b", "orders:1", "orders:2", "orders:3", "o'r%d\\ers:{}", "Ö", "ö\n", "日本"]


@pytest.fixture(params=ways("psycopg", "sqlite", "AsyncPsycopgGuard"))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way


def listed(way: Way, *pattern: str) -> list[Any]:
    guard = way.guard  # made here, and not on the loop, which opens its pool

    async def collect() -> list[Any]:
        return [each async for each in guard.marks(*pattern)]

    return way.side.call(collect) if way.side.asynchronous else list(guard.marks(*pattern))


def test_every_mark_comes_once_whatever_the_pages(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    assert listed(way) == []
    fences = [Fence(name, 5 + index, f"{index:022d}") for index, name in enumerate(NAMES)]
    way.side.call(way.guard.claim, *fences)
    ordered = sorted(NAMES, key=str.encode)
    for page in (1, 3, len(NAMES), 1000):
        monkeypatch.setattr(listing, "PAGE", page)
        found = listed(way)
        assert [each.resource for each in found] == ordered
    assert {each.resource: each.mark for each in found} == {
        fence.resource: Mark(fence.number, fence.token) for fence in fences
    }
    assert all(-60 <= (each.claimed_at - before).total_seconds() <= 600 for each in found)
    assert [each.resource for each in listed(way, "orders:?")] == ["orders:1", "orders:2", "orders:3"]
    assert [each.resource for each in listed(way, "*{}")] == [NAMES[4]]


def test_the_floor_is_no_mark(way: Way) -> None:
    way.side.call(way.guard.claim, Fence("a", 5, "t" * 22), Fence("b", 9, "t" * 22))
    assert way.side.call(way.guard.prune, below=7) == 1
    assert [each.resource for each in listed(way)] == ["b"]


def test_a_wrong_pattern_is_refused_at_once(way: Way) -> None:
    with pytest.raises(TypeError, match="the pattern is a text"):
        way.guard.marks("")


@pytest.mark.thorough
def test_a_role_that_the_database_enforces_against_may_list(postgres_url: str) -> None:
    with two_roles(postgres_url) as roles, roles.as_owner() as owner:
        roles.owners_guard().create_tables()
        owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        roles.owners_guard().enforce("orders", resource="'orders:' || id", role=roles.app)
        roles.apps_guard().claim(Fence("a", 5, "t" * 22))
        assert [each.resource for each in roles.apps_guard().marks()] == ["a"]


def test_a_missing_table_is_named(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(GuardNotEnforceable, match="create_tables"):
        list(SQLAlchemyGuard(engine).marks())
    engine.dispose()

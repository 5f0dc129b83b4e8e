"""What belongs to another kind of guard: a fence that was claimed there, an unknown outcome. And what is no fence."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from examples.servers import RedisServer
from fencing import Fence, MemoryCoordinator, OutcomeUnknown, UnclaimedFence
from storage_guards import AsyncFileGuard, AsyncRedisGuard, AsyncSQLAlchemyGuard, FileGuard, RedisGuard, SQLAlchemyGuard
from storage_guards.redis.commands import mark_key
from tests.support.sides import Side

MINE = Fence("r", 5, "a" * 22)
KINDS = ("files", "redis", "sql")


class Kind(NamedTuple):
    """A guard, its smallest write, and the ids of its marks' last writes."""

    guard: Any
    what: Any
    ids: Callable[[], str]


@pytest.fixture
def kinds(side: Side, any_redis: RedisServer, tmp_path: Path) -> dict[str, Kind]:
    (tmp_path / "files").mkdir()
    url = f"sqlite:///{tmp_path / 'database'}"
    asynchronous = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
    direct = create_engine(url, poolclass=NullPool)
    files = (AsyncFileGuard if side.asynchronous else FileGuard)(tmp_path / "files")
    redis = (AsyncRedisGuard if side.asynchronous else RedisGuard)(side.client(any_redis.url))
    sql: Any = AsyncSQLAlchemyGuard(asynchronous) if side.asynchronous else SQLAlchemyGuard(direct)
    SQLAlchemyGuard(direct).create_tables()

    def ids_of_file() -> str:
        [current] = (tmp_path / "files").glob("*/current")
        return current.read_bytes().split(b"\n")[1].decode()

    def ids_of_row() -> str:
        with direct.connect() as connection:
            return str(
                connection.execute(text("SELECT recent_writes FROM fencing_marks WHERE token <> ''")).scalar_one()
            )

    def ids_of_hash() -> str:
        found: Any = any_redis.client().hget(mark_key("r"), "writes")
        return str(found.decode())

    return {
        "files": Kind(files, b"1", ids_of_file),
        "redis": Kind(redis, ("SET", "total", 1), ids_of_hash),
        "sql": Kind(sql, text("CREATE TABLE written (id INTEGER)"), ids_of_row),
    }


@pytest.mark.parametrize("name", KINDS)
def test_a_fence_that_was_claimed_at_another_kind_of_guard(side: Side, kinds: dict[str, Kind], name: str) -> None:
    for other in kinds.keys() - {name}:
        side.call(kinds[other].guard.claim, MINE)
    refused = side.expect(UnclaimedFence, kinds[name].guard.write, MINE, kinds[name].what)
    assert "pass guards=[guard]" in str(refused)
    assert side.call(kinds[name].guard.mark, "r") is None


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_fence(side: Side, kinds: dict[str, Kind], name: str) -> None:
    kind = kinds[name]
    lock = MemoryCoordinator().lock("r")
    for holder, hint in ((str(MINE), "Fence.parse"), (lock, "acquire the lock"), ([MINE], "separate arguments")):
        assert hint in str(side.expect(TypeError, kind.guard.write, holder, kind.what))
        assert hint in str(side.expect(TypeError, kind.guard.claim, holder))
    assert side.call(kind.guard.mark, "r") is None


@pytest.mark.parametrize("name", KINDS)
def test_the_unknown_outcome_of_another_kind_of_guard(side: Side, kinds: dict[str, Kind], name: str) -> None:
    """A guard that knows nothing of the write says neither True nor False."""
    for kind in kinds.values():
        side.call(kind.guard.claim, MINE)
    own = kinds[name]
    for other in kinds.keys() - {name}:
        for history in ("", " " + "f" * 40):
            unknown = OutcomeUnknown(fence=MINE, seq=1, recent_writes=f"{'w' * 12} {kinds[other].ids()}{history}")
            assert side.call(own.guard.landed, unknown) is None


def test_guards_are_not_pickled(kinds: dict[str, Kind]) -> None:
    for kind in kinds.values():
        with pytest.raises(TypeError, match="neither pickled nor copied; make one in each process"):
            pickle.dumps(kind.guard)

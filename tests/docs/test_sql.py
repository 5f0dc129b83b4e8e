"""The examples of the pages on SQL, and on a guard of one's own, are run as they stand, against real servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.servers import PostgresServer, RedisServer
from fencing import Fence, StaleFence
from storage_guards import PsycopgGuard, SQLAlchemyGuard
from tests.support.psycopg_database import dsn_of
from tests.support.servers import Proxy

ROOT = Path(__file__).resolve().parents[2]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["sqlalchemy", "psycopg"])
@pytest.mark.parametrize("lost", ["nothing", "reply", "request"])
def test_the_examples_work(
    any_redis: RedisServer,
    postgres_url: str,
    postgres_server: PostgresServer,
    proxy: Callable[[PostgresServer], Proxy],
    lost: str,
    page: str,
) -> None:
    direct = create_engine(postgres_url)
    Base.metadata.create_all(direct)
    with direct.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    network = proxy(postgres_server)
    names: dict[str, Any] = {"Order": Order}
    totals = []
    loss: Any = None
    for example in examples(f"guards/{page}.md"):
        if "django" in example:
            continue  # its settings are of a whole process
        if "landed(" in example and lost != "nothing":
            lose = network.drop_reply_when if lost == "reply" else network.drop_request_when
            loss = lose(commit_of_the_write())
        run(example, any_redis.url, network.url(postgres_url), names)
        with direct.connect() as connection:
            totals.append(connection.execute(text("SELECT total FROM orders")).scalar_one())
    # In the page's order. On sqlalchemy.md the asyncio example adds 2, and comes before the one of lost replies.
    assert totals == ([0, 1, 2, 3, 4, 6, 7] if page == "sqlalchemy" else [2, 3, 4, 5])
    assert lost == "nothing" or loss.fired == 1
    names["coordinator"].close()
    names["engine"].dispose() if page == "sqlalchemy" else names["pool"].close()
    direct.dispose()


def commit_of_the_write() -> Callable[[bytes], bool]:
    """Matches the first COMMIT after an UPDATE of the data; the one before is the claim's."""
    written = False

    def matches(request: bytes) -> bool:
        nonlocal written
        written = written or b"UPDATE orders" in request
        return written and b"COMMIT" in request

    return matches


def run(example: str, redis_url: str, database_url: str, names: dict[str, Any]) -> None:
    for placeholder, real in {
        '"postgresql+psycopg://localhost/shop"': repr(database_url),
        '"postgresql://localhost/shop"': repr(dsn_of(database_url)),
        "redis.Redis()": f"redis.Redis.from_url({redis_url!r})",
        "redis.asyncio.Redis()": f"redis.asyncio.Redis.from_url({redis_url!r})",
    }.items():
        example = example.replace(placeholder, real)
    exec(example, names)


EARLIER = (
    (
        'CREATE TABLE fencing_marks (resource TEXT COLLATE "C" PRIMARY KEY, number BIGINT NOT NULL, '
        "token TEXT NOT NULL, seq BIGINT NOT NULL, recent_writes TEXT DEFAULT '' NOT NULL, "
        "claimed_at TIMESTAMPTZ DEFAULT now() NOT NULL, xact xid8, "
        "CONSTRAINT fencing_marks_number CHECK (number >= 0), CONSTRAINT fencing_marks_seq CHECK (seq >= 0))"
    ),
    "INSERT INTO fencing_marks VALUES ('fencing:floor', 0, '', 0, 'abcdefghijkl')",
)


def test_the_upkeep_that_is_shown(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = create_engine(postgres_url)
    recipe, migration = examples("guards/databases.md")[::-1]
    verify, poolers, prune = examples("operations/upkeep.md")
    assert poolers.count('{"prepare_threshold": None}') == 2  # tests/sql/test_pooler.py runs it
    names: dict[str, Any] = {"engine": engine, "Base": Base, "SQLAlchemyGuard": SQLAlchemyGuard}
    exec(recipe, names)
    with engine.begin() as connection:
        for statement in EARLIER:
            connection.execute(text(statement))
    with engine.begin() as connection:
        op = SimpleNamespace(get_bind=lambda: connection, execute=lambda each: connection.execute(text(each)))
        exec(migration.replace("from alembic import op\n", ""), {"op": op})
    assert names["guard"].verify().findings is not None
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE fencing_marks, fencing_done"))
    made: Any = names["target_metadata"]
    assert {name for metadata in made for name in metadata.tables} == {"orders", "fencing_marks", "fencing_done"}
    for guard in (names["guard"], PsycopgGuard(dsn_of(postgres_url))):
        names["guard"] = guard
        guard.create_tables()
        guard.claim(Fence("young", 6, "a" * 22), Fence("old", 5, "a" * 22))
        with engine.begin() as connection:
            ago = "claimed_at = claimed_at - interval '91 days'"
            connection.execute(text(f"UPDATE fencing_marks SET {ago} WHERE resource = 'old'"))
        exec(verify, names)
        exec(prune, names)
        assert names["deleted"] == 1
        with pytest.raises(StaleFence):
            guard.claim(Fence("old", 5, "a" * 22))
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM fencing_marks WHERE resource <> 'fencing:floor'"))
            connection.execute(text("UPDATE fencing_marks SET number = 0"))
    printed = capsys.readouterr().out
    assert "fsync is off" in printed or "tcp_user_timeout" in printed
    engine.dispose()

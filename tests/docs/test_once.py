"""docs/guards/once.md: its examples are run as they stand, twice, and each job is done once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import AlreadyDone, MemoryCoordinator, RedisCoordinator, TooOld
from storage_guards import ObjectStoreGuard, RedisGuard, SQLAlchemyGuard

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guards" / "once.md").read_text("utf-8")
JOB, LOST, PRUNE, IN_REDIS, PUBLISHED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def names(tmp_path: Path) -> Iterator[dict[str, Any]]:
    engine = create_engine(f"sqlite:///{tmp_path}/data.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int)"))
        connection.execute(text("CREATE TABLE reports (day text, total int)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 7)"))
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with MemoryCoordinator(guards=[guard]) as coordinator:
        yield {"engine": engine, "guard": guard, "coordinator": coordinator}
    engine.dispose()


def test_the_examples_work(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    def rows(query: str) -> list[Any]:
        with names["engine"].connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    for example, says in (
        (JOB, r"made before, at .*\+00:00, under fence \d+\n"),
        (LOST, "another lease has done it\n"),
    ):
        exec(example, names)
        assert not capsys.readouterr().out
        exec(example, names)
        assert re.fullmatch(says, capsys.readouterr().out)
    assert rows("SELECT * FROM reports") == [("2026-11-23", 7)]
    assert rows("SELECT total FROM orders") == [(8,)]
    exec(PRUNE, names)
    assert names["deleted"] == 0
    exec(PRUNE.replace("2026-10-01", "2026-12-01"), names)
    assert names["deleted"] == 1
    with pytest.raises(TooOld):
        exec(JOB, names)


def test_the_example_in_redis(any_redis: RedisServer) -> None:
    client: Any = any_redis.client()
    guard = RedisGuard(client)
    with RedisCoordinator(client, guards=[guard]) as coordinator:
        for _ in range(2):
            exec(IN_REDIS, {"redis_coordinator": coordinator, "redis_guard": guard, "AlreadyDone": AlreadyDone})
    assert client.get("total:42") == b"10"


def test_the_example_of_a_publication() -> None:
    guard = ObjectStoreGuard(MemoryStore())
    with MemoryCoordinator(guards=[guard]) as coordinator:
        made = []
        for _ in range(2):
            exec(PUBLISHED, {"object_coordinator": coordinator, "object_guard": guard, "AlreadyDone": AlreadyDone})
            made.append(guard.read("report"))
    assert made[0] is not None
    assert made[0] == made[1]
    assert made[0].read("report.csv").startswith(b"day,total")

"""The examples of docs/guide/moving.md run as they stand, in their order; and what its tables name is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import fencing
from examples.servers import RedisServer
from fencing.compat import RedisPyLock
from storage_guards import SQLAlchemyGuard

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "moving.md").read_text("utf-8")


def test_the_examples_work(any_redis: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.sqlite")
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {"guard": guard, "text": text, "client": any_redis.client()}
    totals = []
    for example in examples:
        for kind in ("redis", "redis.asyncio"):
            example = example.replace(f"{kind}.Redis()", f"{kind}.Redis.from_url({any_redis.url!r})")
        exec(example, names)
        with engine.connect() as connection:
            totals.append(connection.execute(text("SELECT total FROM orders")).scalar_one())
    assert totals == [1, 1, 2, 2, 3, 4]
    numbers = [int(number) for number in capsys.readouterr().out.split()]
    assert len(numbers) == 2
    assert numbers[0] < numbers[1]
    assert isinstance(names["client"].lock("x", lock_class=names["GuardedLock"]), RedisPyLock)
    names["lock"].coordinator.close()
    engine.dispose()


CALLS = {
    "coordinator": fencing.RedisCoordinator,
    "lock": fencing.FencedLock,
    "lease": fencing.Lease,
}


def test_the_tables_name_calls_that_there_are() -> None:
    rows = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") >= 3]
    named = {(name, call) for row in rows for name, call in re.findall(r"`@?(coordinator|lock|lease)\.([a-z_]+)", row)}
    assert len(named) > 12
    for name, call in named:
        assert hasattr(CALLS[name], call), f"{name}.{call}"

"""The README's example is run as it stands, against real servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import Fence, plans
from storage_guards import SQLAlchemyGuard

README = Path(__file__).resolve().parents[2] / "README.md"


def example(redis_url: str, database_url: str) -> str:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    for placeholder, real in {
        '"postgresql+psycopg://localhost/shop"': repr(database_url),
        "redis.Redis()": f"redis.Redis.from_url({redis_url!r})",
    }.items():
        assert code.count(placeholder) == 1
        code = code.replace(placeholder, real)
    return str(code)


def test_the_example_works(any_redis: RedisServer, postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int, paid boolean DEFAULT false)"))
        connection.execute(text("INSERT INTO orders (id, total) VALUES (42, 7)"))
    code = example(any_redis.url, postgres_url)
    run(code)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT total, paid FROM orders")).one() == (8, True)

    newer = Fence("orders:42", 2**52, plans.new_token())  # somebody newer claims inside the block
    begin = "with guard.begin(lease) as connection:"
    run(code.replace(begin, f"newer()\n        {begin}"), newer=lambda: SQLAlchemyGuard(engine).claim(newer))
    assert "we were too late, and nothing was written: fence" in capsys.readouterr().out
    with engine.connect() as connection:
        assert connection.execute(text("SELECT total FROM orders")).scalar_one() == 8
    engine.dispose()


def run(code: str, **names: Any) -> None:
    exec(code, names)
    names["coordinator"].close()
    names["guard"]._engine.dispose()


def test_the_example_is_short() -> None:
    assert len(example("r", "d").strip().splitlines()) <= 22

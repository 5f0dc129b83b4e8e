"""docs/guide/several.md and examples/transfer.py: transfers in both directions lose no money, and all of them end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from examples import transfer
from examples.servers import RedisServer
from fencing import RedisCoordinator
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "several.md").read_text("utf-8"), re.DOTALL)


@pytest.mark.thorough
def test_transfers_in_both_directions(any_redis: RedisServer, postgres_url: str) -> None:
    balances = transfer.run(any_redis.url, postgres_url, transfers=8)
    assert sum(balances.values()) == 3000
    assert set(balances.values()) != {1000}


def test_the_page_shows_the_example() -> None:
    assert BLOCKS[0] in (ROOT / "examples" / "transfer.py").read_text("utf-8")


def test_locks_of_two_coordinators(any_redis: RedisServer, postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int, reserved int)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    with RedisCoordinator(any_redis.client()) as orders, RedisCoordinator(any_redis.client()) as stock:
        exec(BLOCKS[1], {"orders": orders, "stock": stock, "guard": guard, "text": text})
    with engine.connect() as connection:
        assert connection.execute(text("SELECT reserved FROM orders")).scalar_one() == 1
    engine.dispose()

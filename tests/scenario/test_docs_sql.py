"""The examples of docs/sql.md are run as they stand, against real servers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.servers import PostgresServer, Proxy, RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


@pytest.mark.parametrize("lost", ["nothing", "reply", "request"])
def test_the_examples_work(
    any_redis: RedisServer,
    postgres_url: str,
    postgres_server: PostgresServer,
    proxy: Callable[[PostgresServer], Proxy],
    lost: str,
) -> None:
    direct = create_engine(postgres_url)
    Base.metadata.create_all(direct)
    with direct.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    network = proxy(postgres_server)
    names: dict[str, Any] = {"Order": Order}
    totals = []
    loss: Any = None
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        if "landed(" in example and lost != "nothing":
            lose = network.drop_reply_when if lost == "reply" else network.drop_request_when
            loss = lose(commit_of_the_write())
        run(example, any_redis.url, network.url(postgres_url), names)
        with direct.connect() as connection:
            totals.append(connection.execute(text("SELECT total FROM orders")).scalar_one())
    assert totals == [0, 1, 2, 3, 5, 6]
    assert lost == "nothing" or loss.fired == 1
    names["coordinator"].close()
    names["engine"].dispose()
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
        "redis.Redis()": f"redis.Redis.from_url({redis_url!r})",
        "redis.asyncio.Redis()": f"redis.asyncio.Redis.from_url({redis_url!r})",
    }.items():
        example = example.replace(placeholder, real)
    exec(example, names)


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text("utf-8").splitlines()) <= 150

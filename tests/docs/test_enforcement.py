"""The examples of docs/guards/enforcement.md run in their order, against a real server with real roles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import InsufficientPrivilege

from examples.servers import RedisServer
from tests.support.enforced import Roles, two_roles

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guards" / "enforcement.md").read_text("utf-8")


@pytest.fixture
def roles(postgres_url: str) -> Iterator[Roles]:
    with two_roles(postgres_url) as roles:
        with roles.as_owner() as owner:
            owner.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
            owner.execute("INSERT INTO orders VALUES (42, -1)")
        yield roles


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_work(any_redis: RedisServer, roles: Roles, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    placeholders = {
        '"postgresql+psycopg://shop_owner@localhost/shop"': repr(roles.owner_url),
        '"postgresql+psycopg://shop_app@localhost/shop"': repr(roles.app_url),
        '"shop_app"': repr(roles.app),
        "redis.Redis()": f"redis.Redis.from_url({any_redis.url!r})",
    }
    for example in examples("python"):
        for placeholder, real in placeholders.items():
            example = example.replace(placeholder, real)
        exec(example, names)
    printed = capsys.readouterr().out
    assert "DO $fencing$" in printed
    assert "fencing: public.orders is enforced" in printed
    by_hand, operators = examples("sql")
    mark = names["guard"].mark("orders:42")
    fence = f"{mark.number}, '{mark.token}'"
    with roles.as_app() as app, roles.as_owner() as owner:
        app.execute(by_hand.replace("1763729528000001, 'the token'", fence).encode())
        assert app.execute("SELECT total FROM orders").fetchone() == (1,)
        owner.execute(operators.replace("total < 0", "total = 1").encode())
        assert app.execute("SELECT total FROM orders").fetchone() == (0,)
        with pytest.raises(InsufficientPrivilege) as caught:
            app.execute("UPDATE orders SET total = 1")
    said = caught.value.diag
    assert f"ERROR:  {said.message_primary}\nHINT:  {str(said.message_hint)[:60]}" in PAGE
    names["owner"].unenforce("orders")
    names["coordinator"].close()
    names["engine"].dispose()
    names["owner"]._engine.dispose()

"""The examples of docs/coordinators/sql.md run as they stand, on a real PostgreSQL and on SQLite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coordinators" / "sql.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_postgresql(postgres_url: str) -> None:
    names: dict[str, Any] = {}
    with create_engine(postgres_url).begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    exec(EXAMPLES[0].replace('"postgresql+psycopg://localhost/shop"', repr(postgres_url)), names)
    with names["engine"].begin() as connection:
        assert connection.execute(text("SELECT total FROM orders")).scalar_one() == 1
    number = names["lease"].fence.number
    [prune] = [each for each in EXAMPLES if "prune" in each]
    with names["engine"].begin() as connection:
        connection.execute(text("UPDATE fencing_locks SET granted_at = 0"))
    exec(prune, names)
    with names["engine"].begin() as connection:
        assert connection.execute(text("SELECT number FROM fencing_locks")).all() == [(number,)], "the floor"
    with names["coordinator"].hold("orders:42", timeout=5) as lease:
        assert lease.fence.number > number
    names["coordinator"].close()


def test_the_example_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(EXAMPLES[1], {})
    assert capsys.readouterr().out.startswith("the only one on this machine: 1")

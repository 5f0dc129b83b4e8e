"""docs/guide/quickstart.md: its steps run, first without a server, then with Redis and PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "quickstart.md"


def test_the_steps_work(
    any_redis: RedisServer,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_guard, make_coordinator, write, refused, real_servers = re.findall(
        r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for step in (make_guard, make_coordinator, write, refused):
        exec(step, names)
    assert total(names["engine"]) == 1
    assert capsys.readouterr().out.startswith("refused: fence")
    names["coordinator"].close()
    names["engine"].dispose()

    database = create_engine(postgres_url)
    real_servers = real_servers.replace('"postgresql+psycopg://localhost/shop"', repr(postgres_url))
    real_servers = real_servers.replace("redis.Redis()", f"redis.Redis.from_url({any_redis.url!r})")
    for step in (real_servers, write, refused):
        exec(step, names)
    assert total(database) == 1
    assert capsys.readouterr().out.startswith("refused: fence")
    names["coordinator"].close()
    names["engine"].dispose()
    database.dispose()


def total(engine: Any) -> Any:
    with engine.connect() as connection:
        return connection.execute(text("SELECT total FROM orders")).scalar_one()


def test_the_file_runs_and_runs_again(tmp_path: Path) -> None:
    steps = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (tmp_path / "shop.py").write_text("\n".join(steps[:4]), "utf-8")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "shop.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(PAGE.parents[2])},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert done.stdout.startswith("refused: fence")
        assert not done.stderr
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    assert total(engine) == 2
    engine.dispose()

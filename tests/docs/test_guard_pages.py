"""The pages of guards whose code needs a Redis, a folder, or a SQLite file: all of it runs, one page in one program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from examples.servers import RedisServer
from fencing import StaleFence
from storage_guards.files.content import decode

ROOT = Path(__file__).resolve().parents[2]


def run_page(name: str, redis_url: str = "") -> dict[str, Any]:
    """Run all Python of a page, in the current folder; return its names."""
    page = (ROOT / "docs" / "guards" / name).read_text("utf-8")
    page = page.replace("redis.Redis()", f"redis.Redis.from_url({redis_url!r})")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, name, "exec"), names)
    return names


def test_data_in_redis(any_redis: RedisServer) -> None:
    client = any_redis.client()
    client.mset({"balance:42": 25, "count:42": 2, "total:42": 9})
    names = run_page("redis.md", any_redis.url)
    assert client.mget("total:42", "balance:42", "average:42") == [b"10", b"15", b"5.0"]
    assert names["left"] == 15
    assert client.ttl("average:42") > 0
    late = names["lease"].fence
    with names["coordinator"].hold("orders:42", timeout=5), pytest.raises(StaleFence):
        names["guard"].write(late, ("SET", "total:42", 0))
    names["coordinator"].close()


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("files.md")
    assert names["guard"].read("settings") == b"theme = green\n"
    assert names["north"] == b"1,2\n"
    names["coordinator"].close()


def test_the_pointer_file_is_as_shown() -> None:
    page = (ROOT / "docs" / "guards" / "files.md").read_text("utf-8")
    [shown] = re.findall(r"```text\n(fencing .*?)```", page, re.DOTALL)
    content = decode(shown.encode(), "current")
    assert content.encode().decode() == shown
    assert (content.resource, content.kept.seq, content.data) == ("settings", 2, b"theme = blue\n")


def test_whose_job_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("whose-job.md")
    with names["engine"].connect() as connection:
        assert connection.execute(text("SELECT key, sent FROM outbox")).all() == [("invoice:42:reminder-1", 0)]
    assert re.fullmatch(r"invoice:42:\d+:quote", names["headers"]["Idempotency-Key"])
    sent: list[tuple[str, str]] = []
    for _ in range(2):
        names["send_waiting"](lambda *message: sent.append(message))
    assert sent == [("invoice:42:reminder-1", "Please pay.")]
    names["coordinator"].close()
    names["engine"].dispose()

"""The README's example is run as it stands, against real servers."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from examples.servers import RedisServer
from fencing import Fence, RedisCoordinator, StaleFence
from fencing.kernel import quirks
from fencing.kernel.fence import new_token
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
_OURS = tuple(f"{ROOT / name}/" for name in ("fencing", "storage_guards"))


def example(redis_url: str, database_url: str) -> str:
    code, _ = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    for placeholder, real in {
        '"postgresql+psycopg://localhost/shop"': repr(database_url),
        "redis.Redis()": f"redis.Redis.from_url({redis_url!r})",
    }.items():
        assert code.count(placeholder) == 1
        code = code.replace(placeholder, real)
    return str(code)


def engine_of_the_shop(postgres_url: str) -> Engine:
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int)"))
        connection.execute(text("INSERT INTO orders (id, total) VALUES (42, 7)"))
    return engine


def test_the_example_works(any_redis: RedisServer, postgres_url: str) -> None:
    engine = engine_of_the_shop(postgres_url)
    code = example(any_redis.url, postgres_url)
    run(code)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT total FROM orders")).scalar_one() == 8

    newer = Fence("orders:42", 2**52, new_token())  # somebody newer claims inside the block
    begin = "with guard.begin(lease) as connection:"
    with pytest.raises(StaleFence):
        run(code.replace(begin, f"newer()\n    {begin}"), newer=lambda: SQLAlchemyGuard(engine).claim(newer))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT total FROM orders")).scalar_one() == 8
    engine.dispose()


def test_a_fence_that_came_in_a_message_writes_until_a_newer_one_claims(postgres_url: str) -> None:
    engine = engine_of_the_shop(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    _, code = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    fence, newer = Fence("orders:42", 1, new_token()), Fence("orders:42", 2, new_token())
    names = {"guard": guard, "text": text, "message": {"fence": str(fence)}}
    guard.claim(fence)
    exec(code, names)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT total FROM orders")).scalar_one() == 0
    guard.claim(newer)
    with pytest.raises(StaleFence):
        exec(code, names)
    engine.dispose()


def run(code: str, **names: Any) -> None:
    try:
        exec(code, names)
    finally:
        close(names)


def close(names: dict[str, Any]) -> None:
    names["coordinator"].close()
    names["guard"]._engine.dispose()


@contextmanager
def entered_files() -> Iterator[dict[str, None]]:
    """Note the files of the two packages whose functions are called, in the order of the first calls."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OURS):
            files.setdefault(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    before = sys.getprofile()
    gc.disable()  # destructors of what other tests have left are none of its calls
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)
        gc.enable()


def test_the_example_enters_the_files_that_a_page_lists(any_redis: RedisServer, postgres_url: str) -> None:
    """They are counted once everything is connected."""
    engine_of_the_shop(postgres_url).dispose()
    preparation, block, rest = example(any_redis.url, postgres_url).partition("with coordinator.hold")
    page = (ROOT / "docs/internals/architecture.md").read_text("utf-8")
    section = page.split("## The way of a call")[1].split("## ")[0]
    listed = re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)
    names: dict[str, Any] = {}
    exec(preparation, names)
    compiled = compile(block + rest, "README.md", "exec")
    try:
        for _ in range(5):
            exec(compiled, names)
        for _ in range(5):  # a pause of the machine leads through files of its own
            with entered_files() as files:
                exec(compiled, names)
            # safe_lock()
            entered = [file for file in files if not (quirks.SKIPS_EXIT and file == "fencing/kernel/waking.py")]
            if entered == listed:
                break
    finally:
        close(names)
    assert entered == listed
    assert len(entered) <= 35


def test_the_example_has_fifteen_lines() -> None:
    assert len(example("r", "d").strip().splitlines()) <= 15


def test_the_page_on_locks_works(any_redis: RedisServer, postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE report (done int)"))
        connection.execute(text("INSERT INTO report VALUES (0)"))
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guide" / "locks.md").read_text("utf-8"), re.DOTALL)
    assert len(examples) == 12
    seen = []
    with RedisCoordinator(any_redis.client(), guards=[guard]) as coordinator:
        names = {"coordinator": coordinator, "guard": guard, "text": text, "PRICES": "data:,17"}
        for example in examples:
            exec(example.replace("redis.Redis()", f"redis.Redis.from_url({any_redis.url!r})"), names)
            with engine.connect() as connection:
                seen.append(connection.execute(text("SELECT done FROM report")).scalar_one())
    assert seen == [2, 3, 3, 17, 18, 21, 22, 100, 101, 102, 102, 0]
    assert capsys.readouterr().out == ""
    engine.dispose()

"""The files that a call enters: docs/internals/architecture.md lists them for the README's example."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import redis
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import RedisCoordinator
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[2]
OURS = tuple(f"{ROOT / name}/" for name in ("fencing", "storage_guards"))

MOST_FILES = 35


@contextmanager
def entered_files() -> Iterator[dict[str, None]]:
    """Note the files of the two packages whose functions are called, in the order of the first calls."""
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            files.setdefault(str(Path(frame.f_code.co_filename).relative_to(ROOT)))

    before = sys.getprofile()
    gc.disable()  # destructors of what other tests have left are none of its calls
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)
        gc.enable()


def test_the_example_of_the_readme_enters_the_listed_files(any_redis: RedisServer, postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer PRIMARY KEY, total integer)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    with RedisCoordinator(redis.Redis.from_url(any_redis.url), ttl=10, guards=[guard]) as coordinator:

        def example() -> None:
            with coordinator.hold("orders:42", timeout=5) as lease, guard.begin(lease) as connection:
                total = connection.execute(text("SELECT total FROM orders WHERE id = 42")).scalar_one()
                connection.execute(text("UPDATE orders SET total = :t WHERE id = 42"), {"t": total + 1})

        for _ in range(5):
            example()
        with entered_files() as files:
            example()
    engine.dispose()
    page = (ROOT / "docs/internals/architecture.md").read_text()
    section = page.split("## The way of a call")[1].split("## ")[0]
    assert list(files) == re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)
    assert len(files) <= MOST_FILES

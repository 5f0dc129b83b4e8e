"""The examples of docs/guide/moving.md run as they stand, in their order; and what its tables name is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import create_engine, text

import fencing
from examples.servers import RedisServer
from fencing import RedisCoordinator
from fencing.compat import RedisPyLock
from storage_guards import MemoryGuard, SQLAlchemyGuard

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "moving.md").read_text("utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OF_CELERY = [each for each in EXAMPLES if "from celery" in each]


def test_the_examples_work(
    any_redis: RedisServer,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    names: dict[str, Any] = {"guard": guard, "text": text, "client": any_redis.client()}
    totals: list[int] = []
    for example in EXAMPLES:
        if example in OF_CELERY:
            continue
        for kind in ("redis", "redis.asyncio"):
            example = example.replace(f"{kind}.Redis()", f"{kind}.Redis.from_url({any_redis.url!r})")
        exec(example, names)
        with engine.connect() as connection:
            totals.append(connection.execute(text("SELECT total FROM orders")).scalar_one())
    assert totals == [1, 1, 2, 2, 3, 4, 5, 6, 7]
    numbers = [int(number) for number in capsys.readouterr().out.split()]
    assert len(numbers) == 2
    assert numbers[0] < numbers[1]
    assert isinstance(names["client"].lock("x", lock_class=names["GuardedLock"]), RedisPyLock)
    names["lock"].coordinator.close()
    names["coordinator"].close()
    engine.dispose()


@pytest.mark.thorough
def test_a_second_task_does_nothing_beside_the_first(any_redis: RedisServer) -> None:
    pytest.importorskip("celery")
    calls = []

    def write(lease: Any, statement: Any, arguments: Any) -> None:
        calls.append(arguments)
        assert names["add_one"].delay(42).successful()

    guard: Any = MemoryGuard()
    guard.write = write
    with RedisCoordinator(any_redis.client(), guards=[guard]) as coordinator:
        names: dict[str, Any] = {"coordinator": coordinator, "guard": guard, "text": text}
        exec(OF_CELERY[0], names)
        names["app"].conf.task_always_eager = True
        assert names["add_one"].delay(42).successful()
    assert calls == [{"id": 42}]


@pytest.mark.thorough
def test_the_lock_of_redbeat_is_held_by_a_class_of_ours(
    any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat_init = pytest.importorskip("celery.signals").beat_init
    client = any_redis.client()
    # What the recipe uses of RedBeat 2.4, which few have installed.
    schedulers: Any = ModuleType("redbeat.schedulers")
    schedulers.get_redis = lambda app: client
    schedulers.acquire_distributed_beat_lock = beat_init.connect(lambda sender, **kwargs: pytest.fail("RedBeat's own"))
    monkeypatch.setitem(sys.modules, "redbeat", ModuleType("redbeat"))
    monkeypatch.setitem(sys.modules, "redbeat.schedulers", schedulers)
    names: dict[str, Any] = {}
    exec(OF_CELERY[1], names)
    beat: Any = Mock()
    scheduler = beat.scheduler
    scheduler.lock_key = "redbeat::lock"
    try:
        beat_init.send(beat)
    finally:
        beat_init.disconnect(names["hold_the_beat"])
    lock: Any = scheduler.lock
    assert isinstance(lock, RedisPyLock)
    for _ in range(5):
        lock.extend(10)  # as in each of the scheduler's loops: the ttl does not grow
    assert 5_000 < client.pttl("redbeat::lock") <= 10_000
    assert not client.lock("redbeat::lock", timeout=10).acquire(blocking=False), "an old scheduler waits"
    assert lock.owned()
    lock.release()
    assert client.get("redbeat::lock") is None
    lock.coordinator.close()


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

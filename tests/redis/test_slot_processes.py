"""Slots of real processes, which are killed and frozen: the guard admits one holder of each, and that is the newest."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer, freeze
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[2]
SLOTS = 2

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP on this system"),
]


class Worker:
    """A process that takes slots when it is told to."""

    def __init__(self, redis_url: str, database_url: str, ttl: float) -> None:
        command = [sys.executable, "-m", "tests.support.slot_worker", redis_url, database_url, str(SLOTS), str(ttl)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        self.said: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self.said.put(line.strip())

    def begin(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def end(self) -> str:
        return self.said.get(timeout=120)

    def do(self, command: str) -> str:
        self.begin(command)
        return self.end()

    def freeze(self) -> None:
        freeze(self.process)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdin is not None
        self.process.stdin.close()


class Stage:
    """The database, and the processes."""

    def __init__(self, redis_url: str, database_url: str) -> None:
        self.urls = redis_url, database_url
        self.engine = create_engine(database_url)
        SQLAlchemyGuard(self.engine).create_tables()
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE used (slot int PRIMARY KEY, n int)"))
            connection.execute(text("INSERT INTO used VALUES (0, 0), (1, 0)"))
        self.workers: list[Worker] = []

    def start(self, count: int, ttl: float) -> list[Worker]:
        made = [Worker(*self.urls, ttl) for _ in range(count)]
        self.workers += made
        assert [worker.end() for worker in made] == ["ready"] * count
        return made

    def used(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT sum(n) FROM used")).scalar_one())


@pytest.fixture
def stage(any_redis: RedisServer, postgres_url: str) -> Iterator[Stage]:
    made = Stage(any_redis.url, postgres_url)
    yield made
    for worker in made.workers:
        worker.kill()
    made.engine.dispose()


def held(said: str) -> tuple[str, int]:
    slot, number = said.split()
    return slot, int(number)


def test_a_frozen_holder_is_out_and_no_other_is_refused(stage: Stage) -> None:
    a, b, c, d = stage.start(4, ttl=3.0)
    (frozen, number), (other, _) = held(a.do("acquire")), held(b.do("acquire"))
    assert {frozen, other} == {"0", "1"}
    assert c.do("acquire 0") == "none", "never more than there are"
    assert (a.do("write"), b.do("write")) == ("wrote", "wrote")
    a.freeze()
    slot, newer = held(c.do("acquire 60"))
    assert (slot, newer > number) == (frozen, True)
    assert d.do("acquire 0") == "none"
    assert (b.do("write"), c.do("write")) == ("wrote", "wrote"), "nobody who has a slot is refused"
    a.thaw()
    assert a.do("write") == "refused", "it lost its slot to a newer holder"
    assert a.do("release") == "False"
    b.kill()
    assert held(d.do("acquire 60"))[0] == other, "the slot of a process that was killed"
    assert a.do("acquire 0") == "none"
    assert (c.do("write"), d.do("write")) == ("wrote", "wrote")
    assert (c.do("release"), d.do("release")) == ("True", "True")
    assert stage.used() == 6


def test_no_write_is_lost_while_processes_are_killed(stage: Stage) -> None:
    """Each that is killed may have written once more than it said."""
    first = stage.start(4, ttl=1.0)
    for worker in first:
        worker.begin("count 400")
    wrote: list[Any] = []
    for worker in first[:2]:
        wrote += [worker.end() for _ in range(10)]
        worker.kill()
    second = stage.start(2, ttl=1.0)
    for worker in second:
        worker.begin("count 15")
    for worker in second:
        while (said := worker.end()) != "counted":
            wrote.append(said)
    for worker in (*first, *second):
        worker.kill()
        wrote += worker.said.queue
    assert set(wrote) <= {"wrote", "counted"}, "nobody who had a slot was refused"
    count = wrote.count("wrote")
    assert count <= stage.used() <= count + len(first)
    assert count >= 50

"""A holder's process is frozen (SIGSTOP) inside a guarded block: the next one waits for it no longer than its lease."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from examples.servers import freeze
from fencing import Fence
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.servers import Proxy
from tests.support.sql_ways import EACH_WAY, Way, new_way

ROOT = Path(__file__).resolve().parents[2]
NEWER = Fence("orders:1", 6, "b" * 22)
LATEST = 9.0
"""Seconds after which the mark must be free: the lease has 1.5, and TCP tells late of a peer that reads nothing."""

# Whether the server is busy with the query of many rows for a while
SENDING = {
    "postgresql": (
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%repeat%' "
        "AND pid <> pg_backend_pid() AND clock_timestamp() - query_start > interval '50 ms'"
    ),
    "mysql": (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE command = 'Query' AND info LIKE '%seq_1_to%' "
        "AND id <> CONNECTION_ID() AND time_ms > 50"
    ),
}


@pytest.fixture(params=EACH_WAY)
def way(request: pytest.FixtureRequest, proxy: Callable[[Any], Proxy]) -> Way:
    if not hasattr(os, "waitid"):
        pytest.skip("no waitid on this system, to see a process stop")
    return new_way(request, request.param, proxy)


@pytest.fixture
def engine(way: Way) -> Iterator[Engine]:
    engine = create_engine(way.url)
    SQLAlchemyGuard(engine).create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (total INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO orders VALUES (0)"))
    yield engine
    engine.dispose()


@pytest.mark.parametrize("what", ["idle", "receiving"])
def test_a_frozen_process_frees_its_mark(way: Way, engine: Engine, what: str) -> None:
    guard = SQLAlchemyGuard(engine, timeout=30.0)
    colour = "asyncio" if way.side.asynchronous else "sync"
    command = [sys.executable, "-m", "tests.support.frozen_holder", way.direct, what, colour]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "wrote\n"
            if what == "receiving":
                wait_until(lambda: is_sending(engine))
            freeze(process)
            frozen = time.monotonic()
            assert what == "idle" or is_sending(engine)
            guard.claim(NEWER)
            assert time.monotonic() - frozen < LATEST
            assert guard.write(NEWER, text("UPDATE orders SET total = total + 1")) == 1
        finally:
            process.kill()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT total FROM orders")).scalar_one() == 1


def is_sending(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(text(SENDING[engine.dialect.name])).scalar_one())

"""A holder's process is frozen (SIGSTOP) inside a guarded block, or after ``advance``.

The next one waits for it no longer than its lease.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers import freeze
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until
from tests.support.sql_ways import ADD, NEWER, TO_SERVERS, Way, WayLender

ROOT = Path(__file__).resolve().parents[2]
LATEST = 40.0
"""Seconds after which the mark must be free. The lease has 1.5, and TCP tells late of a peer that reads nothing; the
holder's own guard would hold it for minutes."""

OFTEN = [
    ("psycopg", "receiving"),
    ("asyncpg", "idle"),
    ("pymysql", "receiving"),
    ("aiomysql", "idle"),
    ("pymysql", "joined"),
]
"""The other combinations are tried in the thorough run."""

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


CASES = [
    pytest.param(name, what, marks=[] if (name, what) in OFTEN else pytest.mark.thorough)
    for name in TO_SERVERS
    for what in ("idle", "receiving", "joined")
]


@pytest.fixture
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    if not hasattr(os, "waitid"):
        pytest.skip("no waitid on this system, to see a process stop")
    with sql_ways.lend(request.param) as way:
        yield way


@pytest.mark.thorough
@pytest.mark.parametrize(("way", "what"), CASES, indirect=["way"])
def test_a_frozen_process_frees_its_mark(way: Way, what: str) -> None:
    if what == "receiving":
        way.needs_mariadb("table of a sequence, to read from")
    guard = SQLAlchemyGuard(way.outside, timeout=LATEST)
    side = "async" if way.side.asynchronous else "sync"
    command = [sys.executable, "-m", "tests.support.frozen_holder", way.direct, what, side]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "wrote\n"
            if what == "receiving":
                wait_until(lambda: is_sending(way))
            freeze(process)
            assert what != "receiving" or is_sending(way)
            guard.claim(NEWER)  # within the guard's bound
            assert way.write_beside(NEWER, ADD) == 1
        finally:
            process.kill()
    assert way.total == 1


def is_sending(way: Way) -> bool:
    return bool(way.sql(SENDING[way.outside.dialect.name])[0][0])

"""A real process is stopped (SIGSTOP) past its lease, and writes when it wakes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.servers import RedisServer, freeze
from tests.support.sides import Account, Side
from tests.support.sql_ways import SIDES_AND_DATABASES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("side", "account"), SIDES_AND_DATABASES, indirect=True)
def test_its_late_write_is_refused_by_the_database(side: Side, any_redis: RedisServer, account: Account) -> None:
    database = account.engine.url.render_as_string(hide_password=False).replace("+aiosqlite", "")
    command = [sys.executable, "-m", "tests.support.paused_holder", any_redis.url, database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdin
            assert process.stdout
            assert process.stdout.readline() == "read 0\n"
            freeze(process)
            lock = side.coordinator(any_redis.url, guards=[account.guard]).lock("r")
            lease = side.call(lock.acquire, timeout=60)
            account.write(lease, account.balance + 10)
            process.send_signal(signal.SIGCONT)
            process.stdin.write("go on\n")
            process.stdin.flush()
            word, stale, newer = process.stdout.readline().split()
            assert word == "refused"
            assert int(stale) < int(newer) == lease.fence.number
            assert process.stdout.readline() == "released False\n", "it did not free the newer holder's lock"
            assert account.balance == 10
            assert side.call(lease.release) is True
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


@pytest.fixture(autouse=True)
def _needs_signals() -> None:
    if not hasattr(signal, "SIGSTOP"):
        pytest.skip("no SIGSTOP on this system")

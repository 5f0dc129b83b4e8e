"""A client that is stopped (SIGSTOP) after a majority has granted, for longer than its ttl: a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.sides import Account, Side

TTL = 0.6


@contextmanager
def holder(side: Side, moment: str, account: Account, nodes: RedlockNodes) -> Iterator[subprocess.Popen[str]]:
    """Run the process of ``tests/support/redlock_holder.py`` until it has stopped itself; kill it at the end."""
    urls = [server.url for server in nodes.servers]
    command = [sys.executable, "-m", "tests.support.redlock_holder", side.name, moment, str(TTL), account.url, *urls]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            stopped = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
            side.wait_until(lambda: os.waitid(os.P_PID, process.pid, stopped) is not None, seconds=60)
            yield process
        finally:
            process.kill()


@pytest.mark.thorough
@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("side", "moment"),
    [
        ("sync", "read"),
        ("async", "granted"),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in (("sync", "granted"), ("async", "read"))),
    ],
    indirect=["side"],
)
def test_a_stopped_client_is_late_and_a_guard_refuses_it(
    side: Side, moment: str, fresh_nodes: FreshNodes, account: Account
) -> None:
    nodes = fresh_nodes(5, longest_ttl=TTL)
    second = nodes.coordinator(side, ttl=TTL, guards=[account.guard])
    with holder(side, moment, account, nodes) as late:
        newer = side.call(second.acquire, "r", timeout=30)  # the ttl is over
        account.write(newer, account.balance + 5)
        side.call(newer.release)
        os.kill(late.pid, signal.SIGCONT)
        said, _ = late.communicate(timeout=300)
    if moment == "granted":  # it never had a lease: the time was over when it counted the votes
        assert said.split() == ["late", "written"]
        assert account.balance == 15
    else:
        assert said.split() == ["stale"], "the guard refuses what it read before it was stopped"
        assert account.balance == 10, "without the guard the update of the newer holder is lost"

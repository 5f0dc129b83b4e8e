"""The trace of a middleware that checks: it loses an update. The handler's own transaction refuses the late writer.

1 A claims. 2 A reads. 3 A sends half of its write; the check passes. 4 A is frozen. 5 B claims. 6 B reads. 7 B writes.
8 A wakes, and the rest of its write arrives.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from examples.servers import freeze
from fencing import Fence
from storage_guards import HTTPGuard, fenced
from tests.support.http_servers import ROOT, running


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "passed", "verdict", "final"),
    [("checking", "checked", "written", 10), ("uvicorn", "receiving", "refused", 5)],
    ids=["a middleware checks", "the transaction checks"],
)
def test_a_writer_that_is_frozen_after_the_check(
    tmp_path: Path, kind: str, passed: str, verdict: str, final: int
) -> None:
    b = Fence("r", 2, "b" * 22)
    with (
        running(kind, tmp_path / "data.sqlite") as service,
        httpx2.Client(base_url=service.url) as client,
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.http_client", service.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        ) as a,
    ):
        assert a.stdin
        assert a.stdout
        try:
            assert (a.stdout.readline(), service.line()) == ("half\n", passed)
            freeze(a)
            HTTPGuard("/fencing/claims", client).claim(b)
            seen = int(client.get("/data", params={"resource": "r"}).text)
            with fenced(client, b):
                assert client.put("/data", params={"resource": "r"}, content=b"%d" % (seen + 5)).text == "written"
            assert service.value("r") == 5
            a.send_signal(signal.SIGCONT)
            a.stdin.write("\n")
            a.stdin.flush()
            assert a.stdout.readline() == f"{verdict}\n"
            assert service.value("r") == final, "15 would be right if both are acknowledged"
        finally:
            a.kill()

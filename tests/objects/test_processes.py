"""Processes: forked ones, and ones that end while the guard is at work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BEGIN = """
import os, threading
from obstore.store import MemoryStore
from fencing import Fence, GuardNotEnforceable
from storage_guards import ObjectStoreGuard
mine = Fence("orders:1", 1, "a" * 22)
guard = ObjectStoreGuard(MemoryStore())
"""

FORK = """
pid = os.fork()
if not pid:
    try:
        guard.publish(mine, {"x": b"child"}, claim=True)
        os._exit(7)
    except GuardNotEnforceable as error:
        os._exit(8 if "forked" in str(error) else 9)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
guard.publish(mine, {"x": b"parent"}, claim=True)
print(status, guard.read("orders:1").read("x"))
"""

BUSY = """
guard.publish(mine, {"x": bytes(5_000_000)}, claim=True)
stream = guard.open("orders:1", "x")
stream.read(10)
published = threading.Semaphore(0)
def work():
    while True:
        guard.publish(mine, {"x": b"1"}, claim=True)
        published.release()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
for _ in range(10):
    published.acquire()
print("over")
"""


ASYNC = """
import asyncio, time
from obstore.store import MemoryStore
from fencing import Fence
from storage_guards import AsyncObjectStoreGuard
mine = Fence("orders:1", 1, "a" * 22)
async def main():
    await AsyncObjectStoreGuard(MemoryStore()).publish(mine, {"x": b"1"}, claim=True)
if USE:
    asyncio.run(main())
sleep = time.sleep
time.sleep = lambda seconds: (print("waited"), sleep(seconds))
"""


def run(code: str, begin: str = BEGIN) -> str:
    done = subprocess.run([sys.executable, "-c", begin + code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_uses_a_guard_that_was_not_used_before() -> None:
    assert run(FORK) == "7 b'parent'"


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_cannot_use_a_guard_that_was_used_before() -> None:
    """obstore's threads do not live on in it, so its requests would never be answered."""
    assert run('guard.publish(mine, {"x": b"before"}, claim=True)' + FORK) == "8 b'parent'"


@pytest.mark.thorough
def test_a_process_ends_though_its_guard_is_at_work() -> None:
    assert run(BUSY) == "over"


@pytest.mark.thorough
@pytest.mark.parametrize("use", [True, False])
def test_a_process_with_an_async_guard_lets_obstores_threads_end_first(use: bool) -> None:
    """Otherwise about one process in ten aborts. One that has used no guard does not wait."""
    assert run(ASYNC.replace("USE", str(use)), begin="") == ("waited" if use else "")

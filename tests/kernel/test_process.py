"""What belongs to a process, and what a fork remakes."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fencing.kernel import process
from tests.support.forks import fork_unnoticed, in_child

ROOT = Path(__file__).resolve().parents[2]


class Remade:
    def __init__(self) -> None:
        self.times = 0
        process.after_fork(self.remake)

    def remake(self) -> None:
        self.times += 1


def in_a_child(expression: str) -> str:
    """Return the value of an expression in a forked child of a program that prints nothing else."""
    code = f"""
import os
from fencing.kernel import process

class Remade:
    times = 0
    def __init__(self): process.after_fork(self.remake)
    def remake(self): self.times += 1

def fail(): raise OSError("broken")

first = Remade()
process.after_fork(fail)
second, gone = Remade(), Remade()
del gone
before = process.pid()
child = os.fork()
if child == 0:
    print({expression}, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_child_calls_all_that_is_registered_although_one_of_them_fails() -> None:
    assert in_a_child("first.times, second.times, Remade.times") == "1 1 0"


def test_the_child_has_a_pid_of_its_own() -> None:
    assert process.pid() == os.getpid()
    assert in_a_child("process.pid() == os.getpid() != before") == "True"


def test_what_is_registered_is_not_kept_alive() -> None:
    kept = Remade()
    key = next(reversed(process._remakes))
    assert process._remakes[key]() is not None
    del kept
    gc.collect()
    assert key not in process._remakes


def test_the_owner_is_the_thread_and_the_task() -> None:
    owners = {process.current_owner()}
    thread = threading.Thread(target=lambda: owners.add(process.current_owner()))
    thread.start()
    thread.join()

    async def add() -> None:
        owners.add(process.current_owner())
        owners.add(process.current_owner())

    async def two() -> None:
        await asyncio.gather(add(), add())

    asyncio.run(two())
    assert len(owners) == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "program", ["import fencing.redis.coordinator", "from fencing import MemoryCoordinator as M; M()"]
)
def test_a_program_ends_without_output(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_fork_of_which_python_was_not_told_is_noticed_once() -> None:
    remade = Remade()

    def check() -> None:
        assert remade.times == 0
        threads = [threading.Thread(target=process.pid) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert process.pid() == os.getpid()
        for thread in threads:
            thread.join()
        assert remade.times == 1

    in_child(check, fork_unnoticed)
    assert remade.times == 0


def test_what_is_remade_may_ask_for_the_id() -> None:
    found: list[int] = []

    def ask() -> None:
        found.append(process.pid())

    process.after_fork(ask)

    def check() -> None:
        assert process.pid() == os.getpid()
        assert found == [os.getpid()]

    try:
        in_child(check, fork_unnoticed)
    finally:
        process._remakes.popitem()

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
from tests.support.forks import run_with_unnoticed_forks

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
    """By all threads of the child; and what is remade may ask for the id."""
    said = run_with_unnoticed_forks("""
from fencing.kernel import process

remade, seen = [], []

def remake():
    remade.append(process.pid())
    time.sleep(0.2)  # the other threads ask meanwhile

def ask():
    process.pid()
    seen.append(list(remade))

def check():
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[os.getpid()]] * 4, seen
    print("noticed")

process.after_fork(remake)
in_child(check)
assert remade == []
""")
    assert said == "noticed\n"


def test_each_way_into_the_library_notices_such_a_fork(tmp_path: Path) -> None:
    said = run_with_unnoticed_forks(
        """
import asyncio
from sqlalchemy import create_engine
from fencing import FencedLock, MemoryCoordinator
from fencing.kernel import process
from fencing.kernel.effects import run, run_async
from storage_guards import SQLAlchemyGuard

def plan():
    return True
    yield

async def nothing(effect): ...

engine = create_engine("sqlite:///" + sys.argv[1])
guard = SQLAlchemyGuard(engine)
guard.create_tables()
coordinator = MemoryCoordinator(ttl=10)
ways = {
    "a plan": lambda: run(plan(), nothing),
    "an async plan": lambda: asyncio.run(run_async(plan(), nothing)),
    "a guard": lambda: guard.mark("r"),
    "a lock of a client": lambda: FencedLock(engine, "r"),
    "a coordinator": lambda: coordinator.holder("r"),
}
for name, use in ways.items():
    def check():
        remade = []
        process.after_fork(lambda: remade.append(True))
        use()
        assert remade, name
        print(name)
    in_child(check)
""",
        str(tmp_path / "data.db"),
    )
    assert len(said.splitlines()) == 5

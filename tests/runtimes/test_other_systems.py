"""What does not exist on Windows is not needed to import the library, nor for locks and guards that do not use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_PROGRAM = """
import os, select, signal, socket, sys, time
import asyncio, httpx2, logging.handlers, obstore, psycopg, redis.asyncio, sqlalchemy.ext.asyncio  # they find out
for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None  # an import of it fails
for where, names in (
    (os, ("fork", "register_at_fork", "sched_yield", "getuid", "geteuid", "uname")),
    (os, ("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC")),
    (signal, ("SIGKILL", "SIGSTOP", "SIGCONT", "SIGALRM", "setitimer")),
    (time, ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime")),
    (select, ("poll", "epoll")),
    (socket, ("AF_UNIX",)),
):
    for name in names:
        if hasattr(where, name):
            delattr(where, name)
from sqlalchemy import create_engine, text
import fencing, storage_guards
for package in (fencing, storage_guards):
    for name in package.__all__:
        if "File" not in name:
            getattr(package, name)
from fencing import MemoryCoordinator, SQLCoordinator
from storage_guards import SQLAlchemyGuard
engine = create_engine("sqlite:///" + sys.argv[1])
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE orders (total int)"))
guard = SQLAlchemyGuard(engine)
guard.create_tables()
locks = SQLCoordinator(engine, ttl=10, guards=[guard])
locks.create_tables()
for coordinator in (MemoryCoordinator(ttl=10, guards=[guard]), locks):
    with coordinator.hold("orders:42", timeout=5) as lease:
        guard.write(lease, text("INSERT INTO orders VALUES (1)"))
with engine.begin() as connection:
    print(connection.execute(text("SELECT count(*) FROM orders")).scalar_one())
try:
    sys.platform = "win32"
    storage_guards.FileGuard(".")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.thorough
def test_modules_and_functions_of_posix_are_not_needed(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "shop.db")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    total, refusal = run.stdout.splitlines()
    assert total == "2"
    assert refusal.startswith("GuardNotEnforceable files can be guarded on Linux only")

"""Checks that run in a forked child."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def in_child(check: Callable[[], None], seconds: int = 60) -> None:
    """Run the check in a forked child; AssertionError with its trace if it failed there, or took longer."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            # Not faulthandler.dump_traceback_later: if the parent has called it, it waits for a thread of the parent.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            faulthandler.register(signal.SIGALRM, file=2, chain=True)
            signal.alarm(seconds)
            try:
                check()
            except BaseException:  # noqa: BLE001 - the child reports every error
                os.write(writer, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as report:
        text = report.read()
    status = os.waitpid(child, 0)[1]
    assert not text, text
    assert status == 0, "the child hangs: its threads are printed above"


_FORK = """
import ctypes, os, sys, threading, time

def in_child(check):
    # As a server in C forks: Python is not told. A thread that runs just then can leave the child without its GIL.
    ends = time.monotonic() + 60
    while threading.active_count() > 1 and time.monotonic() < ends:
        time.sleep(0.01)
    assert threading.active_count() == 1, threading.enumerate()
    sys.stdout.flush()
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        try:
            check()
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def run_with_unnoticed_forks(program: str, *arguments: str) -> str:
    """Run a program that has ``in_child(check)``, which forks without telling Python; return what it prints.

    It is a process of its own, because only the thread that forks may be there.
    """
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORK + program, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout

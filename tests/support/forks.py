"""Checks that run in a forked child."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable


def in_child(check: Callable[[], None], fork: Callable[[], int] = os.fork) -> None:
    """Run the check in a forked child; AssertionError with its trace if it failed there."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.close(reader)
            try:
                check()
            except BaseException:  # noqa: BLE001 - the child reports every error
                os.write(writer, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as report:
        text = report.read()
    os.waitpid(child, 0)
    assert not text, text


def fork_unnoticed() -> int:
    """Fork as a server in C does: Python is not told, so no function of ``os.register_at_fork`` is called."""
    return int(ctypes.PyDLL(None).fork())

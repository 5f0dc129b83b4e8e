"""SIGSTOP, and the wait until it has taken effect."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any

__all__ = ["freeze"]

PATIENCE = 60.0


def freeze(process: subprocess.Popen[Any]) -> None:
    """SIGSTOP. When it returns, the process has stopped: not one of its threads runs.

    Raises:
        TimeoutError: it has not stopped within ten seconds.
    """
    process.send_signal(signal.SIGSTOP)
    if hasattr(os, "waitid"):  # not on macOS before Python 3.13
        deadline = time.monotonic() + PATIENCE
        flags = os.WSTOPPED | os.WNOHANG | os.WNOWAIT  # WNOWAIT: the news is left for Popen
        while os.waitid(os.P_PID, process.pid, flags) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {process.pid} did not stop")
            time.sleep(0.001)

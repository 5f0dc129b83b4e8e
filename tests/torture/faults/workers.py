"""Faults of the processes that hold locks."""

from __future__ import annotations

import time
from functools import partial

from tests.torture.faults.base import InVain, Strike, fault

SIGNAL_GAP = 0.01


def _slot(strike: Strike) -> int:
    return strike.target % len(strike.processes.alive)


@fault("stop", weight=4)
def stop(strike: Strike) -> None:
    """SIGSTOP, and SIGCONT later."""
    process = strike.processes.alive[_slot(strike)]
    strike.processes.stop(_slot(strike))
    strike.after(strike.seconds, lambda: strike.processes.resume(process))


@fault("kill", weight=2)
def kill(strike: Strike) -> None:
    """SIGKILL, and another process in its place."""
    strike.processes.restart(_slot(strike))


@fault("terminate", weight=2)
def terminate(strike: Strike) -> None:
    """SIGTERM, which releases all locks first, and another process in its place."""
    if not strike.processes.alive[_slot(strike)].is_ready():
        raise InVain("it has not begun")
    ending = strike.processes.terminate(_slot(strike))
    strike.after(0.0, partial(strike.processes.wait_until_ended, ending))


@fault("interrupt", weight=4)
def interrupt(strike: Strike) -> None:
    """Send signals whose handler raises."""
    for _ in range(1 + strike.target % 8):
        strike.processes.interrupt(_slot(strike))
        time.sleep(SIGNAL_GAP)

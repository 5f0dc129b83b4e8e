"""A script beside ``fencing run``: it ends the command's process group where ``fencing run`` itself was killed.

It is a small process of its own, and imports nothing of ours. Its process id is the id of the command's group. So the
group is there before the command, and no other process can get that id meanwhile.

``python watcher.py GRACE HOME GROUP``: seconds between SIGTERM and SIGKILL, the group of ``fencing run``, and the group
to watch; 0: its own. It reads words of one byte from stdin, and answers each with a byte. The end of stdin says that
``fencing run`` is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LEAVE, JOIN = b"l", b"j"

IGNORED = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "PIPE", "ALRM", "TSTP", "TTIN", "TTOU")
"""What the group gets, and not this process."""


def main(grace: float, home: int, group: int) -> None:
    """Watch until ``fencing run`` is gone. Where it ends in peace, it kills this process first."""
    for name in IGNORED:
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
    group = group or os.getpid()
    _answer()
    while word := os.read(0, 1):
        os.setpgid(0, home if word == LEAVE else group)
        _answer()
    _kill(group, signal.SIGTERM)
    _kill(group, signal.SIGCONT)  # a process that is stopped ends when it goes on
    time.sleep(grace)
    _kill(group, signal.SIGKILL)


def _answer() -> None:
    try:
        os.write(1, b".")
    except OSError:
        pass  # fencing run is gone already, as the end of stdin will say


def _kill(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        pass  # nothing is left of it


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

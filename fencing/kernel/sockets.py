"""Sockets that other code has: another thread, a task, or the parent process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress


def shut_down(number: Callable[[], int]) -> None:
    """Shut a socket down. Whoever waits on it finds its end, and its number stays taken.

    Args:
        number: returns the socket's number, or raises if it is closed. It is asked twice: if the socket was closed
            before it was copied, the copy may be of another one.
    """
    with suppress(Exception), socket.socket(fileno=os.dup(asked := number())) as copy:  # it may be closed already
        if number() == asked:
            copy.shutdown(socket.SHUT_RDWR)


def leave_to_parent(number: int) -> None:
    """Replace a forked child's copy of a socket by a dead one: the child sends nothing on it. The parent's stays."""
    dead, peer = socket.socketpair()
    with dead:
        peer.close()
        os.dup2(dead.fileno(), number, inheritable=False)

"""Sockets that other code waits on."""

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

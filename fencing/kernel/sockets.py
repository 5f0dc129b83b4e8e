"""Sockets that other code waits on."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def shut_down(fileno: int) -> None:
    """Shut the socket of this number down. Whoever waits on it finds its end, and its number stays taken."""
    with suppress(OSError), socket.socket(fileno=os.dup(fileno)) as copy:  # it may be closed already
        copy.shutdown(socket.SHUT_RDWR)

"""The state of a connection's socket, without a request to the server."""

from __future__ import annotations

import select


def is_readable(socket: int) -> bool:
    """Return whether a read of the socket would not wait: something was received, the connection is closed, or the
    socket itself is.

    Args:
        socket: its file descriptor; negative where there is none any more.
    """
    if socket < 0:
        return True
    if not hasattr(select, "poll"):  # Windows, where select() takes any socket
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))

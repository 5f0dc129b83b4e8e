"""What the room knows of redis-py beyond its documentation: private attributes, and behaviour that nobody promises.

Each is one function, which says what happens where it is absent. A test asks the installed redis-py for each, and fails
where that is newer than the newest one that was looked at.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

SEEN = ("5.0.1", "6.4", "7.1", "8.1")
"""The versions of redis-py in which all of these were found to be right, unless a function names others."""


def socket_of(connection: Any) -> socket.socket | None:
    """Return the socket of an open connection, to write to it, read from it and set its time-outs.

    It is ``_sock``. Without it (None), redis-py writes and reads, with the time-outs
    that the connection was opened with.
    """
    sock = getattr(connection, "_sock", None)
    return sock if isinstance(sock, socket.socket) else None


def transport_of(connection: Any) -> asyncio.Transport | None:
    """Return the transport of an open asyncio connection, to write to it and to read from it.

    It is that of ``_writer``. Without it (None), redis-py writes and reads.
    """
    transport: asyncio.Transport | None = getattr(getattr(connection, "_writer", None), "transport", None)
    return transport if hasattr(transport, "set_protocol") else None  # uvloop's are no asyncio.Transport


def pool_of(client: Any) -> tuple[Any, type, dict[str, Any]]:
    """Return a client's pool, the class of its connections, and a copy of what they are made with.

    They are ``connection_pool``, ``connection_class`` and ``connection_kwargs``; nothing stands in for them.
    """
    pool = client.connection_pool
    return pool, pool.connection_class, dict(pool.connection_kwargs)


def sentinel_service(pool: Any) -> str | None:
    """Return the name of the service that a Sentinel's pool finds; None: it is another pool.

    It is ``service_name``. Without it, messages name the address in the pool's options instead.
    """
    name: str | None = vars(pool).get("service_name")
    return name


def refuse_maintenance(options: dict[str, Any]) -> None:
    """Change a pool's options so that the server sends no maintenance notices, and the pool knows nothing of us.

    The options are ``maint_notifications_pool_handler``, the pool's own, which keeps track of connections, and
    ``maint_notifications_config``. Seen since 7.0; before, there are no such notices.
    """
    options.pop("maint_notifications_pool_handler", None)
    if "maint_notifications_config" in options:
        from redis.maint_notifications import MaintNotificationsConfig  # not in older versions of redis-py

        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)


def limit_connecting(connection: Any, seconds: float) -> None:
    """Set the time-outs that a connection for threads connects with, and has from then on.

    They are ``socket_timeout`` and ``socket_connect_timeout``, read as it connects. Without them, nothing is bounded
    but by the system.
    """
    connection.socket_timeout = connection.socket_connect_timeout = seconds


def close_copy(connection: Any) -> None:
    """Close a forked child's copy of a connection for threads; the parent's stays open.

    ``disconnect()`` shuts the socket down only in the process that made the connection, and elsewhere just closes it.
    """
    connection.disconnect()

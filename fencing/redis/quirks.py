"""Uses of redis-py beyond its documentation: private attributes, and undocumented behaviour.

Each use is one function, which says what happens if the attribute is absent. A test checks each one on the installed
redis-py. It fails if that version is newer than the newest one in ``SEEN``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio

SEEN = ("5.0.1", "6.4", "7.1", "8.1")
"""The versions of redis-py in which all of these were checked, unless a function names others."""


def require_connections(*, asynchronous: bool) -> None:
    """Raise TypeError if redis-py's connections have no place for a socket, or for asyncio a writer, where they had it.

    The places are ``_sock`` and ``_writer``, which are None before the connection is open.
    """
    kind, place = (redis.asyncio.Connection, "_writer") if asynchronous else (redis.Connection, "_sock")
    if not hasattr(kind(), place):
        raise TypeError(
            f"the connections of redis-py {redis.__version__} have no {place}, which this library needs; "
            f"install redis-py {SEEN[-1]}, the last version that was tried with it, or a later release of this library"
        )


def socket_of(connection: Any) -> socket.socket | None:
    """Return the socket of an open connection, to write to it, read from it and set its time-outs.

    It is ``_sock``. Where that is no socket (None), the connection is of a user's class: see
    ``fencing.redis.foreign_connections``.
    """
    sock = getattr(connection, "_sock", None)
    return sock if isinstance(sock, socket.socket) else None


def transport_of(connection: Any) -> asyncio.Transport | None:
    """Return the transport of an open asyncio connection, to write to it and to read from it.

    It is the transport of ``_writer``. Without it (None), the connection is of a user's class: see
    ``fencing.redis.foreign_connections``.
    """
    transport: asyncio.Transport | None = getattr(getattr(connection, "_writer", None), "transport", None)
    return transport if hasattr(transport, "set_protocol") else None  # uvloop's is not an asyncio.Transport


def was_ended(connection: Any) -> bool:
    """Return whether the server has ended an open asyncio connection, and redis-py has read all of it.

    Its ``_reader`` tells it. Without that, the end is noticed when the server does not answer in time.
    """
    reader = getattr(connection, "_reader", None)
    return isinstance(reader, asyncio.StreamReader) and reader.at_eof()


def pool_of(client: Any) -> tuple[Any, type, dict[str, Any]]:
    """Return a client's pool, the class of its connections, and a copy of their arguments.

    They are ``connection_pool``, ``connection_class`` and ``connection_kwargs``. There is no fallback.
    """
    pool = client.connection_pool
    return pool, pool.connection_class, dict(pool.connection_kwargs)


def sentinel_service(pool: Any) -> str | None:
    """Return the service name of a Sentinel's pool; None: it is another pool.

    It is ``service_name``. Without it, messages show the address in the pool's options instead.
    """
    name: str | None = vars(pool).get("service_name")
    return name


def forced_host(manager: Any) -> str | None:
    """Return the host that replaces the primary's host in the answers of Sentinels; None: it is not replaced.

    It is ``_force_master_ip``. Earlier versions than 5.1 have none.
    """
    host: str | None = getattr(manager, "_force_master_ip", None)
    return host


def refuse_maintenance(options: dict[str, Any]) -> None:
    """Change a pool's options so that the server sends no maintenance notices, and the pool does not track us.

    The options are ``maint_notifications_pool_handler``, with which the pool tracks its connections, and
    ``maint_notifications_config``. Seen since 7.0; earlier versions have no such notices.
    """
    options.pop("maint_notifications_pool_handler", None)
    if "maint_notifications_config" in options:
        from redis.maint_notifications import MaintNotificationsConfig  # older versions of redis-py lack it

        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)


def node_client(cluster: Any, host: str, port: int) -> Any:
    """Return a client for one node, with the settings of a Cluster's client.

    A node of a client for asyncio has ``connection_class`` and ``connection_kwargs``; ``nodes_manager`` of a client for
    threads has ``create_redis_node`` and ``connection_kwargs``. There is no fallback. ``redis_connect_func`` would let
    replicas answer, and is left out unless it calls a function of the user's: ``user_on_connect_func``.
    """
    manager = cluster.nodes_manager
    if isinstance(cluster, redis.asyncio.RedisCluster):
        node = next(iter(manager.startup_nodes.values()))
        options = {**node.connection_kwargs, "host": host, "port": port}
        options.pop("redis_connect_func", None)
        pool = redis.asyncio.ConnectionPool(connection_class=node.connection_class, **options)
        return redis.asyncio.Redis(connection_pool=pool)
    options = dict(manager.connection_kwargs)
    options.pop("oss_cluster_maint_notifications_handler", None)  # since 7.2: notices, which we refuse
    if getattr(cluster, "user_on_connect_func", None) is None:
        options.pop("redis_connect_func", None)
    return manager.create_redis_node(host, port, **options)


def known_nodes(cluster: Any) -> list[tuple[str, int]]:
    """Return the addresses of the nodes that a Cluster's client knows.

    They are in ``startup_nodes`` and ``nodes_cache`` of its ``nodes_manager``. There is no fallback.
    """
    manager = cluster.nodes_manager
    nodes = [*manager.nodes_cache.values(), *manager.startup_nodes.values()]
    return list(dict.fromkeys((str(node.host), int(node.port)) for node in nodes))


def remap_of(cluster: Any) -> Callable[[tuple[str, int]], tuple[str, int]] | None:
    """Return the function that maps a node's address to the one to connect to; None: addresses are used as they are.

    It is ``address_remap`` of ``nodes_manager``. Without it, addresses are used as they are.
    """
    return getattr(cluster.nodes_manager, "address_remap", None)


def limit_connecting(connection: Any, connect_seconds: float, seconds: float) -> None:
    """Set the time-outs with which a connection for threads connects, and then waits for each part of its handshake.

    They are ``socket_connect_timeout`` and ``socket_timeout``, which it reads when it connects. Without them, only the
    system's limits apply.
    """
    connection.socket_connect_timeout, connection.socket_timeout = connect_seconds, seconds


def shut_down(connection: Any) -> None:
    """End a connection that another thread is opening, as far as it has a socket already. Its handshake fails.

    The method of ``socket`` is called, also for TLS: that of ``ssl`` takes the session from under the other thread.
    """
    sock = socket_of(connection)
    if sock is not None:
        with suppress(OSError):  # it is closed
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def close_copy(connection: Any) -> None:
    """Close a forked child's copy of a connection for threads. The parent's stays open.

    ``disconnect()`` shuts the socket down only in the process that made the connection. In another process it only
    closes the socket.
    """
    connection.disconnect()

"""The URLs of ZooKeeper, and the clients that they name."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from fencing.locks.urls import parse

DEFAULT_PORT = 2181


def connect(url: str, coordinator: Any, options: dict[str, Any], *, asynchronous: bool) -> Any:
    """Return a coordinator of this class for a URL: see :func:`client_of`."""
    return coordinator(client_of(url), **options)


def client_of(url: str) -> KazooClient:
    """Return the client of a URL, such as ``"zookeeper://user:password@host1:2181,host2:2181/chroot"``.

    User and password are those of the scheme ``digest``.

    Raises:
        TypeError, ValueError: the URL is wrong.
    """
    parsed = parse(url, DEFAULT_PORT, such_as="zookeeper://host1:2181,host2:2181")
    parsed.check_options()
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in parsed.hosts)
    account = f"{parsed.username or ''}:{parsed.password or ''}"
    return KazooClient(
        hosts=f"{hosts}/{parsed.path}" if parsed.path else hosts,
        auth_data=[("digest", account)] if account != ":" else None,
    )

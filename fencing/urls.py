"""One URL for each kind of coordinator. Which there are, and what each may have: docs/guide/urls.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from fencing.kernel.extras import raise_missing
from fencing.locks import registry
from fencing.locks.urls import redacted, scheme_of

if TYPE_CHECKING:
    from fencing.coordinator import Coordinator
    from fencing.coordinator_async import AsyncCoordinator
    from fencing.locks.settings import AsyncCoordinatorOptions, CoordinatorOptions


def connect(url: str | Iterable[str], **options: Unpack[CoordinatorOptions]) -> Coordinator:
    """Return a new coordinator of the service that a URL names. Close it when it is used no more.

    ``redis://host:6379/0``, ``rediss://``, ``unix://``, ``redis+cluster://h1,h2``, ``redis+sentinel://h1,h2/service/0``,
    ``postgresql://user:password@host/database``, ``mysql://``, ``mariadb://``, ``sqlite:///file``, ``etcd://h1,h2``,
    ``etcds://``, ``zookeeper://h1,h2``, and those that other packages register.

    Args:
        url: the URL; several of ``redis://`` for Redlock: an odd number of independent servers, at least 3.
        options: those of the coordinator that it makes, such as ``ttl``, ``guards``, ``prefix``.

    Raises:
        TypeError, ValueError: a URL or an option is wrong. The message shows no password.
        ModuleNotFoundError: the service's client is not installed. Install it as the message says.
        CoordinatorUnavailable: no node of a Redis Cluster answers. Others are asked by the first lock.
    """
    made: Coordinator = _connect(url, options, asynchronous=False)
    return made


def connect_async(url: str | Iterable[str], **options: Unpack[AsyncCoordinatorOptions]) -> AsyncCoordinator:
    """Return a new async coordinator of the service that a URL names. See :func:`fencing.connect`, its sync twin.

    Args:
        url: the URL; several of ``redis://`` for Redlock.
        options: those of the coordinator that it makes, such as ``ttl``, ``guards``, ``prefix``.

    Raises:
        TypeError, ValueError, ModuleNotFoundError, CoordinatorUnavailable: as of :func:`fencing.connect`.
    """
    made: AsyncCoordinator = _connect(url, options, asynchronous=True)
    return made


def _connect(url: Any, options: Any, *, asynchronous: bool) -> Any:
    if isinstance(url, str):
        try:
            return registry.connect(url, options, asynchronous=asynchronous)
        except ModuleNotFoundError as error:
            raise_missing(f"{scheme_of(url)}://", error)
    if isinstance(url, bytes) or not isinstance(url, Iterable):
        raise TypeError(f"connect takes a URL such as 'redis://localhost:6379/0', not {type(url).__name__}")
    urls = list(url)
    for each in urls:
        if scheme_of(each) not in ("redis", "rediss"):
            raise ValueError(f"several URLs are the nodes of Redlock: each redis:// or rediss://, not {redacted(each)}")
    from fencing.redis.urls import client_of  # only users of Redis have it

    clients = [client_of(each, asynchronous=asynchronous) for each in urls]
    if asynchronous:
        from fencing.redlock.coordinator_async import AsyncRedlockCoordinator

        return AsyncRedlockCoordinator(clients, **options)
    from fencing.redlock.coordinator import RedlockCoordinator

    return RedlockCoordinator(clients, **options)

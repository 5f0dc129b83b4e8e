"""The async coordinator whose locks are in etcd."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any, Unpack

from fencing.coordinator_async import AsyncCoordinator
from fencing.etcd.calls import Call
from fencing.etcd.client_async import AsyncConnections
from fencing.etcd.endpoints import Endpoints, check_user
from fencing.etcd.leases import Leases
from fencing.etcd.plans import EtcdPlans
from fencing.etcd.waiters import Leave, Wait
from fencing.locks.settings import AsyncCoordinatorOptions, check_flag
from fencing.locks.signatures import show_options


class AsyncEtcdBackend(EtcdPlans):
    """The backend of etcd for asyncio, with connections of its own."""

    def __init__(self, endpoints: Endpoints, user: tuple[str, str] | None, *, clock_floor: bool) -> None:
        self.clock_floor = check_flag(clock_floor, "clock_floor")
        self.user, self.leases, self.members = user, Leases(), len(endpoints.all)
        self._connections = AsyncConnections(endpoints)
        self.address = self.location = endpoints.address

    async def perform(self, effect: Call | Wait | Leave) -> Any:
        """Make a request, or wait."""
        return await self._connections.perform(effect)

    async def close(self) -> None:
        """Close the running loop's connections."""
        await self._connections.close()


class AsyncEtcdCoordinator(AsyncCoordinator):
    """A coordinator for asyncio whose locks are in etcd.

    A coordinator does not make data safe. Two clients can hold a lock at the same time, if a pause outlasts the ttl, or
    a backup of etcd is restored. The guards make data safe: they refuse every holder but the newest.

    Waiters get the lock in the order in which they came. ``etcdctl lock fencing/1/lock/NAME`` and Go's
    ``concurrency.Mutex`` wait in the same queue. See docs/coordinators/etcd.md.

    Args:
        endpoints: the URLs of the cluster's members, such as ``["http://localhost:2379"]``. etcd 3.4 or later.
        tls: for ``https``: the context with the certificates of client and authority; None: those that the system
            trusts.
        user, password: of etcd's own users; None: there are none, or the client's certificate names the user.
        clock_floor: whether numbers start from the client's clock in microseconds. Safety does not depend on it.
        options: the options of its locks, as in :class:`fencing.AsyncCoordinator`: ``ttl`` (10 seconds by default),
            ``guards`` (async ones), ``renew``, ``max_lifetime``, ``owner``; and ``prefix``. etcd counts whole seconds,
            and takes no ttl below 2 seconds by default: a shorter one frees the lock of a dead holder later.

    Raises:
        TypeError, ValueError: an argument has a wrong value. Correct it as the message says.
    """

    __module__ = "fencing"

    _backend: AsyncEtcdBackend

    @show_options(AsyncCoordinatorOptions)
    def __init__(
        self,
        endpoints: Iterable[str],
        *,
        tls: ssl.SSLContext | None = None,
        user: str | None = None,
        password: str | None = None,
        clock_floor: bool = True,
        **options: Unpack[AsyncCoordinatorOptions],
    ) -> None:
        found = Endpoints(endpoints, tls, "AsyncEtcdCoordinator")
        super().__init__(AsyncEtcdBackend(found, check_user(user, password), clock_floor=clock_floor), **options)

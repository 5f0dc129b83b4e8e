"""The base of sync and async coordinators: what needs no I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any
from weakref import WeakSet

from fencing.kernel.process import OfThisProcess
from fencing.locks.backend import Backend
from fencing.locks.capabilities import RenewsSession, check_capabilities, check_members
from fencing.locks.settings import Settings, check_prefix


class CoordinatorBase(OfThisProcess):
    """What users call, in front of a backend. The backend knows nothing of it."""

    _backend: Backend

    close: Callable[[], Any]
    """Closes it: ``def``, or ``async def`` for asyncio."""

    def _begin(self, backend: Backend, options: Any, *, asynchronous: bool) -> None:
        """Give the backend its settings and its prefix."""
        self._backend = _check_backend(backend, type(self).__name__, asynchronous=asynchronous)
        backend.kind = type(self).__name__
        backend.prefix = check_prefix(options.pop("prefix", None))
        if isinstance(backend, RenewsSession):
            options.setdefault("ttl", backend.session_seconds)
        settings = Settings().changed(options, asynchronous=asynchronous, coordinator=type(self))
        backend.settings = check_capabilities(backend, settings, settings.ttl)
        backend.asynchronous = asynchronous

    @staticmethod
    def _shared_by_clients(client: Any) -> Any:
        """Return what clients share that have the same coordinator: the client itself, or such as its pool.

        Locks that are made from clients, one for each request of a service, have one coordinator then.
        """
        return client

    @cached_property
    def _elections(self) -> WeakSet[Any]:
        """The elections that it has made."""
        return WeakSet()

    def _stop_elections(self) -> None:
        for election in list(self._elections):
            election.stop()

    @property
    def _may_be_elected(self) -> bool:
        """Whether a lock may be granted to one of its elections, although they are stopped."""
        return any(election._may_be_granted for election in list(self._elections))

    @property
    def address(self) -> str:
        """The address of the service, as error messages name it."""
        return self._backend.address

    @property
    def closed(self) -> bool:
        """Whether it was closed. It then takes no more locks."""
        return self._backend.closed

    def __repr__(self) -> str:
        return repr(self._backend)


def _check_backend(backend: object, kind: str, *, asynchronous: bool) -> Backend:
    """Return the backend of a new coordinator of this kind.

    Raises:
        TypeError: it is none, has no ``perform`` for this side, or has a coordinator. Correct it as the message says.
    """
    if not isinstance(backend, Backend):
        raise TypeError(f"{kind} takes a backend, not {type(backend).__name__}: see docs/coordinators/your-own.md")
    name, perform = type(backend).__name__, getattr(backend, "perform", None)
    if perform is None or inspect.iscoroutinefunction(perform) is not asynchronous:
        raise TypeError(f"{kind} needs a backend with `{'async ' * asynchronous}def perform`; add it to {name}")
    if backend.asynchronous is not None:
        raise TypeError(f"this {name} has a coordinator already; make a backend for each")
    check_members(backend)
    return backend

"""How a process of the run connects to the services: its coordinators and its guards."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg_pool
from sqlalchemy import Engine

from tests.torture.services import KINDS
from tests.torture.services.base import Kit, Sides

__all__ = ["Connections", "Sessions"]


class Sessions:
    """ORM sessions of one thread or task, used again by later turns."""

    def __init__(self) -> None:
        self._open: dict[int, Any] = {}

    def of(self, kit: Kit) -> Any:
        if id(kit.guard) not in self._open:
            self._open[id(kit.guard)] = kit.sessions()
        return self._open[id(kit.guard)]

    def clear(self) -> None:
        """Use them no more: a turn has failed."""
        self._open.clear()


class Connections:
    """What one process has, sync or async, made when it is first asked for."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._given: dict[str, Any] = setup["services"]
        self.asynchronous: bool = setup["mode"] == "tasks"
        floor = setup["seed"] % 2 == 1  # without it, numbers begin at 1 again after a loss of data
        self._sides = Sides(self.asynchronous, setup["ttl"], floor)
        self._kits: dict[str, list[Kit]] = {}
        self._coordinators: dict[str, Any] = {}

    async def open(self) -> None:
        """Open the pools that need a loop."""
        for kit in self.kits("postgresql") if "postgresql" in self._given else ():
            if isinstance(kit.source, psycopg_pool.AsyncConnectionPool):
                await kit.source.open(wait=False)

    def kits(self, storage: str) -> list[Kit]:
        if storage not in self._kits:
            kind = next(kind for kind in KINDS.values() if storage in kind.storages)
            self._kits[storage] = kind.kits(self._given[kind.name], storage, self._sides)
        return self._kits[storage]

    def coordinator(self, kind: str) -> Any:
        if kind not in self._coordinators:
            self._coordinators[kind] = self._new_coordinator(kind)
        return self._coordinators[kind]

    def _new_coordinator(self, kind: str) -> Any:
        return KINDS[kind].coordinator(self._given[kind], self._sides)

    async def close_async(self) -> None:
        for coordinator in self._coordinators.values():
            await coordinator.close()

    def close(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.close()
        for kit in itertools.chain.from_iterable(self._kits.values()):
            if isinstance(kit.source, Engine):
                kit.source.dispose()
            elif hasattr(kit.source, "close"):  # a pool, or a client
                kit.source.close()

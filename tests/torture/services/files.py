"""Files, on a small disk of their own where the system allows that."""

from __future__ import annotations

from typing import Any

from storage_guards import AsyncFileGuard, FileGuard
from tests.torture.services.base import GUARD_SECONDS, Given, Kit, Place, Service, Sides
from tests.torture.services.disk import Disk
from tests.torture.ways import FILES, parsed

__all__ = ["Files"]


class Files(Service):
    name = "files"
    storages = ("files",)

    def start(self) -> Given:
        self.disk = self.stack.enter_context(Disk(self.folder))
        return {"folder": str(self.folder)}

    def is_able(self, fault: str) -> bool:
        return fault != "fill" or self.disk.is_small

    def restore(self) -> None:
        self.disk.clear()

    def final(self, place: Place) -> dict[str, Any]:
        value, last = parsed(FileGuard(self.folder).read(place.name))
        return {"value": value, "write": last}

    @staticmethod
    def kits(given: Given, storage: str, sides: Sides) -> list[Kit]:
        guard: Any = (AsyncFileGuard if sides.asynchronous else FileGuard)(given["folder"], timeout=GUARD_SECONDS)
        return [Kit(guard, None, FILES, sides.asynchronous)]

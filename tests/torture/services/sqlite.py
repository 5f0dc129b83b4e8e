"""SQLite, on a small disk of its own where the system allows that."""

from __future__ import annotations

from typing import ClassVar

from tests.torture.services.base import Given
from tests.torture.services.disk import Disk
from tests.torture.services.sql import SQL, tables

__all__ = ["SQLite"]


class SQLite(SQL):
    name = "sqlite"
    storages = ("sqlite",)
    done_once: ClassVar[tuple[str, ...]] = ("sqlite",)
    tables = tuple(
        tables(
            "INTEGER PRIMARY KEY AUTOINCREMENT",
            "TEXT",
            "CREATE TRIGGER note AFTER UPDATE ON counters "
            "BEGIN INSERT INTO effects (name, written) VALUES (NEW.name, NEW.last); END",
        )
    )

    def start(self) -> Given:
        self.disk = self.stack.enter_context(Disk(self.folder))
        path = self.folder / "data.db"
        self.connect(f"sqlite:///{path}")
        self.create()
        return {"url": f"sqlite:///{path}", "async_url": f"sqlite+aiosqlite:///{path}"}

    def is_able(self, fault: str) -> bool:
        return fault != "fill" or self.disk.is_small

    def restore(self) -> None:
        super().restore()
        self.disk.clear()

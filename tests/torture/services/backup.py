"""A copy of all tables of a database, and its way back into it while others use it."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Engine, MetaData, select, text

__all__ = ["Backup"]


class Backup:
    """What every table had at one moment: at ``since``, or a little later."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._metadata = engine, MetaData()
        self._metadata.reflect(engine)
        self.since = time.monotonic()
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # or each SELECT is a transaction of its own
            else:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            self._rows = {
                table: [dict(row) for row in connection.execute(select(table)).mappings()]
                for table in self._metadata.sorted_tables
            }

    def restore(self) -> None:
        """Put it back, in one transaction, as a program that loads a dump does."""
        dialect = self._engine.dialect.name
        with self._engine.begin() as connection:
            if dialect == "postgresql":
                names = ", ".join(f'"{table.name}"' for table in self._rows)
                connection.execute(text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
            for table, rows in self._rows.items():
                connection.execute(table.delete())
                if rows:
                    inserted: Any = table.insert()
                    connection.execute(inserted, rows)

"""MariaDB, through two drivers."""

from __future__ import annotations

from tests.support.servers import find_mariadb_binary, start_mariadb
from tests.torture.services.base import Given
from tests.torture.services.sql import SQL, tables

__all__ = ["MariaDB"]


DURABLE = {"innodb-flush-log-at-trx-commit": "2"}
"""What was acknowledged outlasts the process, as everywhere else."""


class MariaDB(SQL):
    name = "mariadb"
    storages = done_once = ("mariadb",)
    tables = tuple(
        tables(
            "BIGINT AUTO_INCREMENT PRIMARY KEY",
            "VARCHAR(100)",
            "CREATE TRIGGER note AFTER UPDATE ON counters FOR EACH ROW "
            "INSERT INTO effects (name, written) VALUES (NEW.name, NEW.last)",
        )
    )

    @classmethod
    def why_not(cls) -> str:
        return "" if find_mariadb_binary() else "no MariaDB is installed"

    def start(self) -> Given:
        self.server = self.stack.enter_context(start_mariadb(own=True, local=True, settings=DURABLE))
        url = self.server.create_database()
        self.connect(url)
        self.create()
        through = self.proxy(self.server).url(url)
        return {"url": through, "async_url": through.replace("+pymysql:", "+aiomysql:")}

"""The contract of coordinators on SQL databases: each database and driver, sync and async."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencing import CoordinatorUnavailable
from fencing.testing import CoordinatorContract
from tests.support.sql_locks import DRIVERS, Driver


class _OnADatabase(CoordinatorContract):
    driver: Driver
    url: str

    def make(self, **options: Any) -> Any:
        return self.driver.coordinator(self.url, **options)


class _OnAServer(_OnADatabase):
    short_ttl = 0.15

    def make_unreachable(self, **options: Any) -> Any:
        return self.driver.coordinator(f"x://user:word@127.0.0.1:{self.silent_port}/database", **options)

    @pytest.fixture(autouse=True)
    def _database(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """A database with the table, and a port that accepts connections, and never answers."""
        self.url = request.getfixturevalue(f"{self.driver.database}_url")
        creator = self._make()
        for tries_left in reversed(range(5)):
            try:
                self.call(creator.create_tables)
                break
            except CoordinatorUnavailable:  # the error says to retry; a login may take long on a busy machine
                if not tries_left:
                    raise
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            self.silent_port = silent.getsockname()[1]
            yield


class _OnAFile(_OnADatabase):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> Iterator[None]:
        self.url = f"sqlite:///{tmp_path}/locks.db"
        self._blocking = sqlite3.connect(tmp_path / "locks.db", check_same_thread=False)
        yield
        self._blocking.close()

    def make_unreachable(self, **options: Any) -> Any:
        coordinator = self.make(**options)
        self._blocking.execute("BEGIN EXCLUSIVE")  # from now on the file is busy
        return coordinator


OFTEN = ("psycopg", "aiosqlite")
"""The drivers of each run; the others are for the thorough run."""

for _name, _driver in DRIVERS.items():
    _base = _OnAFile if _driver.database == "sqlite" else _OnAServer
    _class = f"TestOn{_name.title().replace('-', '')}"
    _marks = [] if _name in OFTEN else [pytest.mark.thorough]
    globals()[_class] = type(_class, (_base,), {"driver": _driver, "__module__": __name__, "pytestmark": _marks})

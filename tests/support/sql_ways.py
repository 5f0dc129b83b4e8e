"""Every way to a SQL server that the guards support: the database, the driver, the colour."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from examples.servers import PostgresServer
from tests.support.servers import MariaDBServer, Proxy
from tests.support.sides import Side

# name: (fixtures of the server and of a database's URL, SQLAlchemy's driver for the guard, asyncio)
_WAYS = {
    "psycopg": ("postgres", "psycopg", False),
    "psycopg-asyncio": ("postgres", "psycopg", True),
    "asyncpg": ("postgres", "asyncpg", True),
    "pymysql": ("mariadb", "pymysql", False),
    "aiomysql": ("mariadb", "aiomysql", True),
}
WAYS = tuple(_WAYS)
EACH_WAY = tuple(
    pytest.param(name, marks=pytest.mark.thorough) if name in ("asyncpg", "aiomysql") else name for name in WAYS
)
"""For what matters little to the driver: a second asyncio driver of a database only where all is tried."""
TO_POSTGRES = WAYS[:3]
TO_MARIADB = WAYS[3:]

_ASYNCIO_DRIVERS = {"sqlite": "sqlite+aiosqlite", "mysql+pymysql": "mysql+aiomysql"}


def asyncio_url(url: str) -> str:
    """The same database through an asyncio driver; psycopg is one already."""
    scheme, rest = url.split(":", 1)
    return f"{_ASYNCIO_DRIVERS.get(scheme, scheme)}:{rest}"


class Way:
    """One of them: ``url`` for whoever looks on, with a sync driver; for the guard ``direct``, or ``through``."""

    def __init__(self, request: pytest.FixtureRequest, name: str, make_proxy: Callable[[Any], Proxy]) -> None:
        database, driver, asynchronous = _WAYS[name]
        self.name = name
        self.is_mariadb = database == "mariadb"
        self.side = Side(asynchronous)
        self.server: PostgresServer | MariaDBServer = request.getfixturevalue(f"{database}_server")
        self.url: str = request.getfixturevalue(f"{database}_url")
        self.proxy = make_proxy(self.server)
        self.direct = f"{self.url.split('+')[0]}+{driver}:{self.url.split(':', 1)[1]}"
        self.through = self.proxy.url(self.direct)


def is_commit(request: bytes) -> bool:
    """Whether a request on the wire is a COMMIT, of whatever driver; AUTOCOMMIT and READ-COMMITTED are none."""
    return re.search(rb"\bCOMMIT\b", request) is not None


class Wire:
    """Counts requests, each ended by a reply, that pass through a proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self._requests: list[bytes] = []
        proxy.drop_request_when(self._passes)

    def _passes(self, request: bytes) -> bool:
        if self._requests and len(request) > len(self._requests[-1]) and request.startswith(self._requests[-1]):
            self._requests.pop()  # one more piece of it
        self._requests.append(request)
        return False

    def count(self, side: Side, function: Callable[..., Any], *args: Any, **options: Any) -> int:
        before = len(self._requests)
        side.call(function, *args, **options)
        return len(self._requests) - before

"""The network breaks between a guard and its database: unknown is said where it is unknown, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, GuardUnavailable, OutcomeUnknown
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.servers import Proxy
from tests.support.sql_ways import EACH_WAY, Way, is_commit

MINE = Fence("orders:1", 5, "a" * 22)
ADD = text("UPDATE orders SET total = total + 1")


class Path:
    """A guard of either colour behind a proxy, and the database seen directly."""

    def __init__(self, way: Way) -> None:
        self.way, self.side, self.proxy = way, way.side, way.proxy
        self.direct: Engine = create_engine(way.url)
        with self.direct.begin() as connection:
            connection.execute(text("CREATE TABLE orders (total INTEGER NOT NULL)"))
            connection.execute(text("INSERT INTO orders VALUES (0)"))
        self.engine: Any
        self.guard: Any
        if self.side.asynchronous:
            self.engine = create_async_engine(way.through)
            self.guard = AsyncSQLAlchemyGuard(self.engine)
        else:
            self.engine = create_engine(way.through)
            self.guard = SQLAlchemyGuard(self.engine)
        self.beside = SQLAlchemyGuard(self.direct)
        self.beside.create_tables()

    def scalar(self, statement: str, **values: Any) -> Any:
        with self.direct.connect() as connection:
            return connection.execute(text(statement), values).scalar()

    def mark_changes(self, request: bytes) -> bool:
        return b"fencing_marks SET" in request


@pytest.fixture(params=EACH_WAY)
def path(request: pytest.FixtureRequest, proxy: Callable[[Any], Proxy]) -> Iterator[Path]:
    path = Path(Way(request, request.param, proxy))
    yield path
    path.side.call(path.engine.dispose)
    path.direct.dispose()


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_lost_commit_is_unknown(path: Path, lost: str) -> None:
    path.side.call(path.guard.claim, MINE)
    drop = path.proxy.drop_reply_when if lost == "reply" else path.proxy.drop_request_when
    loss = drop(is_commit)
    error = path.side.expect(OutcomeUnknown, path.guard.write, MINE, ADD)
    assert loss.fired == 1
    assert (error.fence, error.seq) == (MINE, 1)
    happened = lost == "reply"
    assert path.beside.landed(error) is happened
    if not path.way.is_mariadb:
        status = "SELECT pg_xact_status(CAST(CAST(:xact AS text) AS xid8))"
        assert path.scalar(status, xact=error.transaction) == ("committed" if happened else "aborted")
    assert path.scalar("SELECT total FROM orders") == happened
    assert path.scalar("SELECT seq FROM fencing_marks WHERE resource = 'orders:1'") == happened
    assert path.side.call(path.guard.write, MINE, ADD) == 1


@pytest.mark.parametrize("sent", ["UPDATE", "COMMIT"])
def test_a_lost_claim_may_be_repeated(path: Path, sent: str) -> None:
    loss = path.proxy.drop_reply_when(is_commit if sent == "COMMIT" else path.mark_changes)
    path.side.expect(GuardUnavailable, path.guard.claim, MINE)
    assert loss.fired == 1
    path.side.call(path.guard.claim, MINE)
    assert path.side.call(path.guard.write, MINE, ADD) == 1


def test_a_lost_check_has_written_nothing(path: Path) -> None:
    path.beside.claim(MINE)
    loss = path.proxy.drop_reply_when(path.mark_changes)
    path.side.expect(GuardUnavailable, path.guard.write, MINE, ADD)
    assert loss.fired == 1
    assert path.scalar("SELECT total FROM orders") == 0


def test_a_lost_statement_is_the_blocks_own_error(path: Path) -> None:
    path.side.call(path.guard.claim, MINE)
    path.proxy.drop_reply_when(lambda request: b"UPDATE orders" in request)
    path.side.expect(DBAPIError, path.guard.write, MINE, ADD)
    assert path.scalar("SELECT total FROM orders") == 0


def test_a_server_that_refuses(path: Path) -> None:
    path.side.call(path.guard.claim, MINE)
    path.proxy.refuse()
    path.side.expect(GuardUnavailable, path.guard.claim, MINE)  # on the pool's broken connection
    error = path.side.expect(GuardUnavailable, path.guard.claim, MINE)  # on no connection at all
    assert "did not answer" in str(error)
    path.proxy.restore()
    path.side.call(path.guard.claim, MINE)

"""A guarded block that leaves open what keeps psycopg's connection busy: it ends all the same, and the pool does not
lend its connection again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fencing import GuardNotEnforceable
from tests.support.psycopg_database import MINE, Database
from tests.support.sides import Side

SECONDS = 1.0


@pytest.fixture
def database(side: Side, postgres_url: str) -> Iterator[Database]:
    """Whose pool has one connection."""
    database = Database(side, postgres_url, size=1, guard_timeout=SECONDS)
    yield database
    database.close()


async def leave_open(what: str, connection: Any, kept: list[Any]) -> None:
    """Leave it open, sync or async; what is kept is not closed by its end."""
    cursor = connection.cursor()
    if what == "stream":
        rows = cursor.stream("INSERT INTO done VALUES (1), (2) RETURNING id")
        kept.append(rows)
        assert (await anext(rows) if hasattr(rows, "__anext__") else next(rows)) == (1,)
        return
    context = cursor.copy("COPY done FROM STDIN") if what == "copy" else connection.pipeline()
    kept.append(context)
    entered = context.__aenter__() if hasattr(context, "__aenter__") else context.__enter__()
    if inspect.isawaitable(entered):
        await entered


@pytest.mark.parametrize("end", ["commit", "error"])
@pytest.mark.parametrize("what", ["stream", "copy", "pipeline"])
def test_a_block_ends_and_its_connection_is_not_lent_again(database: Database, what: str, end: str) -> None:
    database.side.call(database.guard.claim, MINE)
    kept: list[Any] = []

    async def leave(connection: Any) -> None:
        await leave_open(what, connection, kept)
        if end == "error":
            raise ZeroDivisionError

    def body(connection: Any) -> Any:
        coroutine = leave(connection)
        if database.side.asynchronous:
            return coroutine
        with pytest.raises(StopIteration):  # nothing in it waits
            coroutine.send(None)
        return None

    errors = (psycopg.OperationalError, GuardNotEnforceable) if end == "commit" else ZeroDivisionError
    database.side.expect(errors, database.block(MINE, body=body))  # type: ignore[arg-type]
    assert database.write(3) == 1
    assert database.done == {3}
    del kept[:]

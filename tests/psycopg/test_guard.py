"""The psycopg guard without a server: what it is made of, what it refuses, what it imports."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import text

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, UnclaimedFence
from storage_guards import AsyncPsycopgGuard, PsycopgGuard
from storage_guards.psycopg.errors import PsycopgErrors, commit_was_refused
from storage_guards.psycopg.statements import opening_of
from storage_guards.psycopg.wire import _limit_silence

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "postgresql://127.0.0.1:1/nowhere"
MINE = Fence("orders:1", 5, "a" * 22)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("absent", ["sqlalchemy", "redis", "psycopg_pool"])
def test_its_import_brings_only_what_it_needs(absent: str) -> None:
    code = f"import sys; from storage_guards import PsycopgGuard, AsyncPsycopgGuard; print({absent!r} in sys.modules)"
    assert run(code) == "False\n"


@pytest.mark.thorough
def test_the_driver_is_the_driver() -> None:
    """The module has its name, in a package of its own."""
    code = "import storage_guards.psycopg.guard as ours, psycopg; print(ours.Connection is psycopg.Connection)"
    assert run(code) == "True\n"


@pytest.mark.parametrize("source", [None, 5, object(), Connection, {"host": "x"}])
def test_what_is_no_source_of_connections(source: Any) -> None:
    for kind in (PsycopgGuard, AsyncPsycopgGuard):
        with pytest.raises(TypeError, match="is needed, not"):
            kind(source)


def test_an_engine_is_for_the_other_guard() -> None:
    class Engine:
        pass

    with pytest.raises(TypeError, match="SQLAlchemyGuard takes engines"):
        PsycopgGuard(Engine())  # type: ignore[arg-type]


def test_async_sources_are_refused_by_the_sync_guard_and_the_reverse() -> None:
    pools: list[Any] = [ConnectionPool(NOWHERE, open=False), AsyncConnectionPool(NOWHERE, open=False)]
    PsycopgGuard(pools[0])
    AsyncPsycopgGuard(pools[1])
    wrong: Any
    for wrong in (pools[1], AsyncConnection.connect, partial(AsyncConnection.connect, NOWHERE)):
        with pytest.raises(TypeError, match="use AsyncPsycopgGuard"):
            PsycopgGuard(wrong)
    with pytest.raises(TypeError, match="use PsycopgGuard"):
        AsyncPsycopgGuard(pools[0])


def test_a_pool_that_was_not_opened_is_told_to_be_opened() -> None:
    """Another attempt would fail as well."""
    pools: list[Any] = [ConnectionPool(NOWHERE, open=False), AsyncConnectionPool(NOWHERE, open=False)]
    with pytest.raises(GuardNotEnforceable, match=r"not open yet: call its open\(\)"):
        PsycopgGuard(pools[0]).claim(MINE)
    with pytest.raises(GuardNotEnforceable, match=r"not open yet: call its open\(\)"):
        asyncio.run(AsyncPsycopgGuard(pools[1]).claim(MINE))


def test_a_pool_that_was_closed_is_told_to_be_replaced() -> None:
    """It is never opened again, so another attempt would fail as well."""

    async def claim() -> None:
        async with AsyncConnectionPool(NOWHERE, open=False, min_size=0, max_size=1) as pool:
            guard = AsyncPsycopgGuard(pool)
        await guard.claim(MINE)

    with ConnectionPool(NOWHERE, open=False, min_size=0, max_size=1) as pool:
        guard = PsycopgGuard(pool)
    with pytest.raises(GuardNotEnforceable, match="already closed: give a guard a new pool"):
        guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="already closed: give a guard a new pool"):
        asyncio.run(claim())


def test_a_function_that_returns_something_else() -> None:
    def odd() -> Any:
        return 5

    async def coroutine() -> Any:
        return 5

    with pytest.raises(TypeError, match="returned a int"):
        PsycopgGuard(odd).claim(MINE)
    with pytest.raises(TypeError, match="returned a coroutine"):
        PsycopgGuard(lambda: coroutine()).claim(MINE)  # type: ignore[arg-type, return-value]
    for connect in (odd, coroutine):
        with pytest.raises(TypeError, match="returned a int"):
            asyncio.run(AsyncPsycopgGuard(connect).claim(MINE))


def test_connection_strings() -> None:
    PsycopgGuard("host=localhost dbname=shop")
    for wrong, hint in (("postgresql+psycopg://localhost/shop", r"without \+psycopg"), ("no such thing", "string")):
        for kind in (PsycopgGuard, AsyncPsycopgGuard):
            with pytest.raises(ValueError, match=hint):
                kind(wrong)


def test_connecting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def connect(conninfo: str, **options: Any) -> Any:
        asked.append(options)
        raise psycopg.OperationalError("no")

    monkeypatch.setattr(Connection, "connect", connect)
    for source in (NOWHERE, f"{NOWHERE}?connect_timeout=3"):
        with pytest.raises(GuardUnavailable):
            PsycopgGuard(source, timeout=4.5).claim(MINE)
    assert asked == [{"connect_timeout": 5}, {}]


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_guards_timeout_is_finite(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout"):
        PsycopgGuard(NOWHERE, timeout=timeout)


def test_arguments_in_the_wrong_order() -> None:
    guard: Any = PsycopgGuard(NOWHERE)
    with pytest.raises(TypeError, match="lease first"):
        guard.write("UPDATE orders SET total = 1", MINE)
    with pytest.raises(TypeError, match="lease first"):
        guard.write(MINE, MINE)
    with pytest.raises(TypeError, match="such as a str, not SQLAlchemy's TextClause; pass its SQL with %s"):
        guard.write(MINE, text("UPDATE orders SET total = 1"))
    with pytest.raises(TypeError, match="psycopg Connection"):
        guard.advance(MINE)
    with pytest.raises(TypeError, match="OutcomeUnknown"):
        guard.landed(UnclaimedFence(fence=MINE, mark=None))
    with pytest.raises(TypeError, match="at least one"):
        guard.claim()
    with pytest.raises(ValueError, match="not be empty"):
        guard.mark("")


def test_begin_says_what_the_connection_is_set_to() -> None:
    def said(level: Any = None, read_only: Any = None, deferrable: Any = None, **options: Any) -> str:
        connection: Any = SimpleNamespace(isolation_level=level, read_only=read_only, deferrable=deferrable)
        return opening_of(connection, 1.0, **options)[0].partition(";")[0]

    assert said() == "BEGIN"
    assert said(psycopg.IsolationLevel.SERIALIZABLE, False, True) == (
        "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE DEFERRABLE"
    )
    assert said(psycopg.IsolationLevel.SERIALIZABLE, True, read_committed=True) == (
        "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
    )


# What errors mean


def _error(kind: type[psycopg.Error], state: str | None) -> psycopg.Error:
    error = kind("said so")
    error.sqlstate = state
    return error


@pytest.mark.parametrize("state", ["08006", "08003", "57P01", "57P02", "40003", None])
def test_what_is_no_answer_to_a_commit(state: str | None) -> None:
    assert not commit_was_refused(_error(psycopg.OperationalError, state), closed=False)


def test_a_refused_commit() -> None:
    for state in ("23505", "40001", "57014"):
        assert commit_was_refused(_error(psycopg.Error, state), closed=False)
        assert not commit_was_refused(_error(psycopg.Error, state), closed=True)
    assert not commit_was_refused(asyncio.CancelledError(), closed=False)


def test_a_mark_that_stays_locked_may_be_ones_own() -> None:
    said = str(PsycopgErrors([MINE], 0.5).explain(_error(psycopg.OperationalError, "55P03")))
    assert "stayed locked by another transaction for 0.5 s (perhaps a begin around this one)" in said


def test_an_error_that_nobody_knows_stays_what_it_is() -> None:
    error = _error(psycopg.DataError, "22000")
    assert PsycopgErrors([MINE], 1.0).explain(error) is error


def test_a_silent_plan_gives_up_and_news_postpone_that() -> None:
    def plan() -> Generator[Any, Any, str]:
        for _ in range(100):
            if (yield 1) == 2:
                return "answered"
        return "asked in vain"

    quiet: Any = _limit_silence(plan(), 0.05)
    next(quiet)
    with pytest.raises(psycopg.OperationalError, match="no answer"):  # noqa: PT012 - until it gives up
        for _ in range(50):
            quiet.send(0)
            time.sleep(0.005)  # time passes in silence
    chatty: Any = _limit_silence(plan(), 0.05)
    next(chatty)
    for _ in range(30):
        chatty.send(0)
        chatty.send(1)
        time.sleep(0.005)  # more of it in all
    with pytest.raises(StopIteration) as raised:
        chatty.send(2)
    assert raised.value.value == "answered"


def test_an_outcome_that_is_not_this_librarys_is_a_type_error() -> None:
    guard = PsycopgGuard(NOWHERE)
    outer = ValueError()
    outer.__cause__ = OutcomeUnknown(fence=MINE, seq=1)
    with pytest.raises(TypeError, match="pass its __cause__"):
        guard.landed(outer)  # type: ignore[arg-type]

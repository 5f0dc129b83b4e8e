"""Any line may raise: KeyboardInterrupt, or an error of a signal handler. The error says whether it was written."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from fencing import Fence, OutcomeUnknown
from storage_guards import AsyncPsycopgGuard, AsyncSQLAlchemyGuard, PsycopgGuard, SQLAlchemyGuard
from tests.support.interruptions import Interruption, SoftTimeLimit, outcome_of
from tests.support.psycopg_database import dsn_of
from tests.support.sql_ways import is_commit

# psycopg warns where an interruption has dropped a connection that nobody had got yet.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

MINE = Fence("orders:1", 5, "a" * 22)

Write = Callable[[int], Any]


class Scene:
    """A guard that is interrupted, and another one beside it that looks."""

    def __init__(self, guard: Any, beside: Any, done: Callable[[], set[int]], adding: Callable[[int], Any]) -> None:
        self.guard, self.beside, self._done, self._adding = guard, beside, done, adding
        self.next_id = 0

    def write(self, id_: int) -> None:
        self.guard.write(MINE, *self._adding(id_))

    def begin(self, id_: int) -> None:
        with self.guard.begin(MINE) as connection:
            connection.execute(*self._adding(id_))

    def session(self, id_: int) -> None:
        with self.guard.session(MINE) as session:
            session.execute(*self._adding(id_))

    def lines_of(self, way: str, step: int) -> list[int]:
        """All lines from the commit on, and every so many before it."""
        rehearsal = Interruption()
        self.next_id += 1
        rehearsal.run(lambda: getattr(self, way)(self.next_id))
        commit = next(
            number for number, name in enumerate(rehearsal.names) if name in ("about_to_commit", "plan_commit")
        )
        early = [line for line in range(rehearsal.lines) if line % step == 0]
        late = [line for line in range(commit, rehearsal.lines) if (line - commit) % max(1, step // 4) == 0]
        return sorted({*early, *late})

    def check(self, way: str, line: int, kind: type[BaseException]) -> None:
        self._interrupt(way, line, kind)
        self.next_id += 1
        self.write(self.next_id)
        assert self.next_id in self._done()

    def _interrupt(self, way: str, line: int, kind: type[BaseException]) -> None:
        self.next_id += 1
        id_, raised = self.next_id, None
        try:
            Interruption(line, kind()).run(lambda: getattr(self, way)(id_))
        except BaseException as error:  # noqa: BLE001 - whatever it is
            raised = error
        if raised is not None:
            outcome = outcome_of(raised)
            if isinstance(outcome, OutcomeUnknown):
                assert self.beside.landed(outcome) is (id_ in self._done()), line
            else:
                assert id_ not in self._done(), f"line {line}: {raised!r} does not say that it was written"
            assert kind is SoftTimeLimit or type(raised) is kind, f"line {line}: {raised!r} hides it"
        del raised  # it keeps the frames that it has interrupted


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Scene]:
    engine = create_engine(f"sqlite:///{tmp_path}/data.db")
    beside = create_engine(f"sqlite:///{tmp_path}/data.db", poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE done (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("PRAGMA synchronous = OFF")

    def done() -> set[int]:
        with beside.connect() as connection:
            return set(connection.execute(text("SELECT id FROM done")).scalars())

    guard = SQLAlchemyGuard(engine, timeout=2)
    guard.create_tables()
    guard.claim(MINE)
    yield Scene(guard, SQLAlchemyGuard(beside), done, lambda id_: (text("INSERT INTO done VALUES (:id)"), {"id": id_}))
    engine.dispose()


@pytest.fixture(params=["pool", "connection", "function"])
def psycopg_scene(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Scene]:
    dsn = dsn_of(postgres_url)
    with psycopg.connect(dsn, autocommit=True) as direct, ConnectionPool(dsn, min_size=1, max_size=1) as pool:
        direct.execute("CREATE TABLE done (id INTEGER PRIMARY KEY)")
        beside = PsycopgGuard(direct)
        beside.create_tables()
        beside.claim(MINE)

        class Reopened:
            """The guard on one connection, and a new one where an interruption has closed it."""

            connection: Any = None
            guard: Any = None

            def __getattr__(self, name: str) -> Any:
                if self.connection is None or self.connection.closed:
                    self.connection = psycopg.connect(dsn)
                    self.guard = PsycopgGuard(self.connection, timeout=2)
                return getattr(self.guard, name)

        reopened = Reopened()
        guard = {
            "pool": PsycopgGuard(pool, timeout=2),
            "function": PsycopgGuard(lambda: psycopg.connect(dsn), timeout=2),
            "connection": reopened,
        }[request.param]
        yield Scene(
            guard,
            beside,
            lambda: {row[0] for row in direct.execute("SELECT id FROM done")},
            lambda id_: ("INSERT INTO done VALUES (%s)", [id_]),
        )
        if reopened.connection is not None:
            reopened.connection.close()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SoftTimeLimit])
@pytest.mark.parametrize("way", ["write", "begin", "session"])
def test_sqlalchemy(sqlite: Scene, way: str, kind: type[BaseException]) -> None:
    for line in sqlite.lines_of(way, 59 if way == "session" else 13):
        sqlite.check(way, line, kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SoftTimeLimit])
def test_psycopg(psycopg_scene: Scene, kind: type[BaseException]) -> None:
    for line in psycopg_scene.lines_of("begin", 13):
        psycopg_scene.check("begin", line, kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SoftTimeLimit])
@pytest.mark.parametrize("way", ["write", "begin", "session"])
def test_sqlalchemy_at_every_line(sqlite: Scene, way: str, kind: type[BaseException]) -> None:
    for line in sqlite.lines_of(way, 1):
        sqlite.check(way, line, kind)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SoftTimeLimit])
@pytest.mark.parametrize("way", ["write", "begin"])
def test_psycopg_at_every_line(psycopg_scene: Scene, way: str, kind: type[BaseException]) -> None:
    for line in psycopg_scene.lines_of(way, 1):
        psycopg_scene.check(way, line, kind)


class AsyncScene:
    """An async guard that is interrupted, and a sync one beside it that looks."""

    def __init__(self, guard: Any, beside: Any, done: Callable[[], set[int]], adding: Callable[[int], Any]) -> None:
        self.guard, self.beside, self._done, self._adding = guard, beside, done, adding
        self.next_id = 0

    async def write(self) -> None:
        self.next_id += 1
        assert await self.guard.write(MINE, *self._adding(self.next_id)) == 1

    def check(self, raised: BaseException | None) -> bool:
        """Compare what the error says with what is there, and return whether it was written."""
        written = self.next_id in self._done()
        if raised is None:
            assert written
            return True
        outcome = outcome_of(raised)
        if isinstance(outcome, OutcomeUnknown):
            assert self.beside.landed(outcome) is written
        else:
            assert not written, f"{raised!r} does not say that it was written"
        return written


@pytest.fixture(params=["psycopg guard", "psycopg", "asyncpg", "aiosqlite"])
def async_scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncScene:
    if request.param == "aiosqlite":
        url, through = f"sqlite:///{tmp_path}/data.db", f"sqlite+aiosqlite:///{tmp_path}/data.db"
    else:
        url = request.getfixturevalue("postgres_url")
        through = url.replace("+psycopg", f"+{request.param.split()[0]}")
    direct = create_engine(url, poolclass=NullPool)
    with direct.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE done (id INTEGER PRIMARY KEY)")
    beside = SQLAlchemyGuard(direct)
    beside.create_tables()
    beside.claim(MINE)

    def done() -> set[int]:
        with direct.connect() as connection:
            return set(connection.execute(text("SELECT id FROM done")).scalars())

    def adding(id_: int) -> Any:
        if request.param == "psycopg guard":
            return "INSERT INTO done VALUES (%s)", [id_]
        return text("INSERT INTO done VALUES (:id)"), {"id": id_}

    guard: Any
    if request.param == "psycopg guard":
        guard = AsyncPsycopgGuard(dsn_of(url), timeout=2)
    else:
        guard = AsyncSQLAlchemyGuard(create_async_engine(through, pool_size=1, max_overflow=0), timeout=2)
    return AsyncScene(guard, beside, done, adding)


@pytest.mark.thorough
def test_a_cancelled_write_says_whether_it_was_written(async_scene: AsyncScene) -> None:
    """Of 360 cancelled writes 37 had no cause and were not written, and others had none and were."""

    async def story() -> set[bool]:
        started = time.perf_counter()
        await async_scene.write()
        longest = time.perf_counter() - started
        seen = set()
        for part in range(24):
            task = asyncio.ensure_future(async_scene.write())
            await asyncio.wait([task], timeout=longest * part / 12)
            task.cancel()
            await asyncio.wait([task])
            raised: BaseException | None = None
            try:
                await task
            except (asyncio.CancelledError, Exception) as error:  # noqa: BLE001 - whatever it is
                raised = error
            seen.add(async_scene.check(raised))
        await async_scene.write()  # the connection is free and clean
        if hasattr(async_scene.guard, "_engine"):
            await async_scene.guard._engine.dispose()
        return seen

    assert asyncio.run(story()) == {True, False}


@pytest.mark.thorough
@pytest.mark.parametrize("async_scene", ["psycopg guard"], indirect=True)
def test_an_exception_of_a_signal_handler_in_a_task(async_scene: AsyncScene) -> None:
    async def write() -> None:
        await async_scene.write()

    rehearsal = Interruption()
    rehearsal.run(lambda: asyncio.run(write()))
    commit = rehearsal.names.index("plan_commit")
    for line in [*range(0, commit, 31), *range(commit, rehearsal.lines, 7)]:
        raised: BaseException | None = None
        try:
            Interruption(line, SoftTimeLimit()).run(lambda: asyncio.run(write()))
        except Exception as error:  # noqa: BLE001 - whatever it is
            raised = error
        async_scene.check(raised)
        del raised


def test_a_failed_hook_after_the_commit_says_that_it_is_committed(sqlite: Scene) -> None:
    """Every error after the commit has something for landed, also one that is not the database's."""
    factory = sessionmaker(sqlite.guard._engine)

    def fail(_: Session) -> None:
        raise ValueError("mine")

    event.listen(factory, "after_commit", fail)
    with pytest.raises(OutcomeUnknown) as raised, sqlite.guard.session(MINE, factory=factory) as session:
        session.execute(text("INSERT INTO done VALUES (1)"))
    assert isinstance(raised.value.__cause__, ValueError)
    assert sqlite.beside.landed(raised.value) is True


@pytest.mark.thorough
def test_a_hang_up_logs_nothing(
    postgres_url: str, postgres_server: Any, proxy: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """asyncpg logged "Future exception was never retrieved" where a silent connection was closed."""
    through = proxy(postgres_server)
    direct = create_engine(postgres_url, poolclass=NullPool)
    SQLAlchemyGuard(direct).create_tables()
    with direct.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE done (id INTEGER PRIMARY KEY)")

    async def story() -> None:
        engine = create_async_engine(through.url(postgres_url.replace("+psycopg", "+asyncpg")))
        guard = AsyncSQLAlchemyGuard(engine, timeout=1.0)
        await guard.claim(MINE)
        for cancelled in (False, True):
            held = through.hold_reply_when(is_commit)
            task = asyncio.ensure_future(guard.write(MINE, text("UPDATE done SET id = id")))
            assert await asyncio.to_thread(held.wait, 5)
            if cancelled:
                task.cancel()
            with pytest.raises((OutcomeUnknown, asyncio.CancelledError)):
                await task
            through.restore()
        in_the_body = asyncio.Event()

        async def block() -> None:
            async with guard.begin(MINE) as connection:
                in_the_body.set()
                through.silence()
                await connection.execute(text("SELECT pg_sleep(9)"))

        blocked = asyncio.ensure_future(block())
        await in_the_body.wait()
        await asyncio.sleep(0.01)
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocked
        through.restore()
        await engine.dispose()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(story())
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


def test_an_exception_while_the_check_is_awaited(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reply is still to come: the connection must not be used again, and its rollback must not hide the error."""
    engine = create_engine(postgres_url, pool_size=1, max_overflow=0, pool_timeout=2)
    guard = SQLAlchemyGuard(engine, timeout=2)
    guard.create_tables()
    guard.claim(MINE)
    wait = psycopg.Connection.wait

    def interrupted(self: Any, plan: Any, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(psycopg.Connection, "wait", wait)
        next(plan)  # the request is out
        raise SoftTimeLimit

    monkeypatch.setattr(psycopg.Connection, "wait", interrupted)
    with pytest.raises(SoftTimeLimit):
        guard.write(MINE, text("UPDATE fencing_marks SET seq = seq WHERE false"))
    assert guard.write(MINE, text("UPDATE fencing_marks SET seq = seq WHERE false")) == 0
    engine.dispose()

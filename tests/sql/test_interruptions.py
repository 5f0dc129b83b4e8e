"""Any line may raise: KeyboardInterrupt, or an error of a signal handler. The error says whether it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from fencing import Fence, OutcomeUnknown
from storage_guards import PsycopgGuard, SQLAlchemyGuard
from tests.support.interruptions import Interruption, SoftTimeLimit, outcome_of
from tests.support.psycopg_database import dsn_of

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


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SoftTimeLimit])
@pytest.mark.parametrize("way", ["write", "begin", "session"])
def test_sqlalchemy(sqlite: Scene, way: str, kind: type[BaseException]) -> None:
    for line in sqlite.lines_of(way, 59 if way == "session" else 13):
        sqlite.check(way, line, kind)


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

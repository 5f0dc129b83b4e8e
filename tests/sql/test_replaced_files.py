"""A file of SQLite that is replaced, or deleted, under living connections: nothing is acknowledged in the old file."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool, QueuePool

from fencing import GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleFence, UnclaimedFence
from storage_guards import AsyncSQLAlchemyGuard, SQLAlchemyGuard
from tests.support.guarded_block import AsyncBlock, SyncBlock
from tests.support.sides import Side, close_engine
from tests.support.sql_ways import MINE, NEWER

ADD = "UPDATE orders SET total = total + 1"
READ = "SELECT total FROM orders"


class Files:
    """A file in WAL mode under a living guard, and its backup."""

    is_psycopg = False

    def __init__(self, folder: Path, asynchronous: bool) -> None:
        self.path, self._backup = folder / "data.db", folder / "backup.db"
        self.side = Side(asynchronous)
        self._engines: list[Any] = []
        with sqlite3.connect(self.path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE orders (total INTEGER)")
            connection.execute("INSERT INTO orders VALUES (0)")
        connection.close()
        self.beside().create_tables()
        self.beside().claim(MINE)
        self.back_up()

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def engine(self, url: str | None = None, **options: Any) -> Any:
        create: Any = create_async_engine if self.side.asynchronous else create_engine
        scheme = "sqlite+aiosqlite" if self.side.asynchronous else "sqlite"
        engine = create((url or self.url).replace("sqlite", scheme, 1), pool_size=1, max_overflow=0, **options)
        self._engines.append(engine)
        return engine

    def guard(self, engine: Any = None, **options: Any) -> Any:
        kind: Any = AsyncSQLAlchemyGuard if self.side.asynchronous else SQLAlchemyGuard
        return kind(engine or self.engine(), **options)

    def beside(self) -> SQLAlchemyGuard:
        """A guard of another process, which opens the file each time."""
        return SQLAlchemyGuard(create_engine(self.url, poolclass=NullPool))

    def begin(self, guard: Any, *fences: Any) -> Any:
        return (AsyncBlock if self.side.asynchronous else SyncBlock)(self, guard.begin(*fences))

    def statement(self, sql: str, **values: Any) -> tuple[Any, Any]:
        return text(sql), values

    def write(self, guard: Any, fence: Any = MINE) -> None:
        self.side.call(guard.write, fence, text(ADD))

    def read(self, engine: Any) -> int:
        """Read past any guard, by a connection of the pool."""

        async def read_async() -> int:
            async with engine.connect() as connection:
                return int((await connection.execute(text(READ))).scalar_one())

        if self.side.asynchronous:
            return int(self.side.call(read_async))
        with engine.connect() as connection:
            return int(connection.execute(text(READ)).scalar_one())

    def back_up(self) -> None:
        connection = sqlite3.connect(self.path)
        connection.execute(f"VACUUM INTO '{self._backup}'")
        connection.close()

    def restore(self) -> None:
        """Put the backup in the file's place, as ``mv`` does. No process has a new connection to it yet."""
        self.delete(but=self.path)
        self._backup.rename(self.path)

    def delete(self, but: Path | None = None) -> None:
        for each in (self.path, Path(f"{self.path}-wal"), Path(f"{self.path}-shm")):
            if each != but:
                each.unlink(missing_ok=True)

    @property
    def total(self) -> int:
        connection = sqlite3.connect(self.path)
        [[total]] = connection.execute(READ).fetchall()
        connection.close()
        return int(total)

    def close(self) -> None:
        for engine in self._engines:
            close_engine(self.side, engine)


SIDES = [pytest.param(False, id="sync"), pytest.param(True, id="async", marks=pytest.mark.thorough)]
each_side = pytest.mark.parametrize("files", [False, True], ids=["sync", "async"], indirect=True)


@pytest.fixture(params=SIDES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path, request.param)
    yield made
    made.close()


def once_at(engine: Any, name: str, function: Callable[[], None]) -> None:
    event.listen(getattr(engine, "sync_engine", engine), name, lambda *_: function(), once=True)


@each_side
def test_a_late_write_after_a_newer_claim_is_refused(files: Files) -> None:
    guard = files.guard()
    files.side.call(guard.claim, MINE)
    files.restore()
    files.beside().claim(NEWER)
    files.side.expect(StaleFence, guard.write, MINE, text(ADD))
    assert files.total == 0


@each_side
def test_a_log_that_was_left_beside_the_file_does_not_bring_the_holder_back(files: Files) -> None:
    """SQLite applies it to the backup: marks and some data return, and the rest is the backup's."""
    guard = files.guard()
    files.side.call(guard.claim, MINE)
    files.write(guard)
    files._backup.rename(files.path)
    refused = files.side.expect(UnclaimedFence, guard.write, MINE, text(ADD))
    assert refused.acknowledged is not None
    files.side.call(guard.claim, NEWER)
    files.write(guard, NEWER)


def test_a_plain_read_after_a_new_claim_is_current(files: Files) -> None:
    """The pool may have an old connection that the guard itself has not seen."""
    engine = files.engine()
    guard = files.guard(engine)
    files.write(guard)
    files.restore()
    assert files.read(engine) == 0


@pytest.mark.parametrize("is_deleted", [False, True], ids=["restored", "deleted"])
def test_a_file_that_is_replaced_during_a_block(files: Files, is_deleted: bool) -> None:
    guard = files.guard()
    with pytest.raises(OutcomeUnknown) as raised, files.begin(guard, MINE) as block:
        block.execute(ADD)
        files.delete() if is_deleted else files.restore()
    assert isinstance(raised.value.__cause__, OSError)
    if is_deleted:
        files.side.expect(GuardNotEnforceable, guard.landed, raised.value)  # the table is missing
        files.side.expect(GuardNotEnforceable, guard.write, MINE, text(ADD))
    else:
        assert files.side.call(guard.landed, raised.value) is False
        files.write(guard)
        assert files.total == 1


@pytest.mark.parametrize(
    ("use", "end"),
    [
        ("landed", "rollback"),
        pytest.param("claim", "commit", marks=pytest.mark.thorough),
        pytest.param("prune", "commit", marks=pytest.mark.thorough),
    ],
)
def test_a_file_that_is_replaced_during_another_request(files: Files, use: str, end: str) -> None:
    engine = files.engine()
    guard = files.guard(engine)
    with pytest.raises(OutcomeUnknown) as raised, files.begin(guard, MINE) as block:
        block.execute(ADD)
        files.restore()
    files.back_up()
    once_at(engine, end, files.restore)
    arguments: dict[str, Any] = {"claim": (MINE,), "landed": (raised.value,)}
    options = {"below": 1} if use == "prune" else {}
    call = getattr(guard, use)
    assert "replaced" in str(files.side.expect(GuardUnavailable, call, *arguments.get(use, ()), **options))
    files.side.call(call, *arguments.get(use, ()), **options)


def test_advance_on_a_connection_to_the_old_file(files: Files) -> None:
    guard = files.guard()

    def story(connection: Connection) -> None:
        plain = guard if not files.side.asynchronous else SQLAlchemyGuard(create_engine(files.url))
        plain.advance(connection, MINE)
        connection.rollback()
        files.restore()
        with pytest.raises(GuardUnavailable, match="replaced"):
            plain.advance(connection, MINE)
        connection.rollback()
        plain.advance(connection, MINE)
        connection.execute(text(ADD))
        connection.commit()

    async def story_async() -> None:
        async with guard._engine.connect() as connection:
            await connection.run_sync(story)

    if files.side.asynchronous:
        files.side.call(story_async)
    else:
        with guard._engine.connect() as connection:
            story(connection)
    assert files.total == 1


def test_a_connection_that_was_opened_before_the_guard(files: Files) -> None:
    engine = files.engine()
    files.read(engine)
    files.restore()
    files.beside().claim(NEWER)
    files.side.expect(StaleFence, files.guard(engine).write, MINE, text(ADD))


def test_what_is_no_uri_is_refused_by_sqlite_itself(files: Files) -> None:
    guard = files.guard(files.engine("sqlite:///file://[?uri=true"))
    assert "invalid uri authority" in str(files.side.expect(GuardUnavailable, guard.claim, MINE))


def test_a_file_that_is_named_by_a_uri_or_a_link(files: Files, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(files.path)
    guards = [files.guard(files.engine(url)) for url in (f"sqlite:///file:{files.path}?uri=true", f"sqlite:///{link}")]
    for guard in guards:
        files.side.call(guard.claim, MINE)
    files.restore()
    files.beside().claim(NEWER)
    for guard in guards:
        files.side.expect(StaleFence, guard.write, MINE, text(ADD))
    files.back_up()
    other = tmp_path / "other.db"
    files._backup.rename(other)
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(OutcomeUnknown), files.begin(guards[1], NEWER) as block:
        block.execute(ADD)
        link.unlink()
        link.symlink_to(files.path)


def test_an_attached_file(files: Files, tmp_path: Path) -> None:
    def attach(connection: Any, _: Any) -> None:
        connection.cursor().execute(f"ATTACH '{files.path}' AS shop")

    engine = files.engine(f"sqlite:///{tmp_path}/own.db")
    guard = files.guard(engine, schema="shop")
    event.listen(getattr(engine, "sync_engine", engine), "connect", attach)  # after the guard's own
    files.side.call(guard.claim, MINE)
    files.restore()
    files.beside().claim(NEWER)
    files.side.expect(StaleFence, guard.write, MINE, text(ADD))


def test_a_database_in_memory_keeps_its_connection(files: Files) -> None:
    """Its end would be the end of the data. It has no file, though its name may be a file's."""
    pool = AsyncAdaptedQueuePool if files.side.asynchronous else QueuePool
    engine = files.engine(f"sqlite:///file:{files.path}?mode=memory&cache=shared&uri=true", poolclass=pool)
    files.side.call(files.guard(engine).create_tables)
    files.restore()
    guard = files.guard(engine)
    files.side.call(guard.claim, MINE)
    files.delete()
    assert files.side.call(guard.mark, "orders:1").number == MINE.number


def test_an_engine_that_opens_its_connections_itself(files: Files) -> None:
    def opens() -> Any:
        return (aiosqlite if files.side.asynchronous else sqlite3).connect(files.path)

    options: dict[str, Any] = {"async_creator" if files.side.asynchronous else "creator": opens}
    guard = files.guard(files.engine(**options))
    files.side.call(guard.claim, MINE)
    files.restore()
    files.beside().claim(NEWER)
    files.side.expect(StaleFence, guard.write, MINE, text(ADD))


def test_many_guards_of_an_engine_follow_its_files_once(files: Files) -> None:
    engine = files.engine()
    plain = getattr(engine, "sync_engine", engine)
    for _ in range(3):
        files.guard(engine.execution_options(schema_translate_map={"x": "y"}))
    assert [len(plain.pool.dispatch.checkout), len(plain.dialect.dispatch.do_connect)] == [1, 1]


def test_an_engine_at_the_address_of_another_is_followed(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """`event.contains` compares addresses. Of 800 engines, one had a pool at the address of one disposed of before."""
    monkeypatch.setattr(event, "contains", lambda *_: True)
    guard = files.guard()
    files.side.call(guard.claim, MINE)
    files.restore()
    files.beside().claim(NEWER)
    files.side.expect(StaleFence, guard.write, MINE, text(ADD))

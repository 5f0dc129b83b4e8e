"""``once=``: of all blocks with one key at most one is committed, on every database and with every guard."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Identifier
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from fencing import (
    AlreadyDone,
    Fence,
    GuardNotEnforceable,
    GuardUnavailable,
    MemoryCoordinator,
    OutcomeUnknown,
    StaleFence,
    TooOld,
)
from storage_guards import SQLAlchemyGuard
from storage_guards.sql.pruning import BATCH
from tests.support.enforced import two_roles
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.psycopg_database import dsn_of
from tests.support.sql_ways import (
    ADD,
    EACH_DATABASE,
    MINE,
    NEWER,
    OTHER,
    OVER_A_NETWORK,
    THROUGH_SQLALCHEMY,
    TO_POSTGRES,
    Way,
    WayLender,
    ways,
)

DAY = "2026-11-23"
OFTEN = ("psycopg", "sqlite", "AsyncPsycopgGuard")


@pytest.fixture(params=ways(*OFTEN))
def way(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Way]:
    with sql_ways.lend(request.param) as way:
        yield way
        if not way.is_spoiled:
            way.sql("DELETE FROM fencing_done")


each_database = pytest.mark.parametrize("way", ways(*EACH_DATABASE), indirect=True)
over_a_network = pytest.mark.parametrize("way", ways("psycopg", "PsycopgGuard", of=OVER_A_NETWORK), indirect=True)
through_sqlalchemy = pytest.mark.parametrize("way", ways("psycopg", "sqlite", of=THROUGH_SQLALCHEMY), indirect=True)
on_postgres = pytest.mark.parametrize("way", ways("psycopg", "AsyncPsycopgGuard", of=TO_POSTGRES), indirect=True)


def run(way: Way, fence: Any, once: Any, **options: Any) -> None:
    with way.begin(fence, once=once, **options) as block:
        block.execute(ADD)


def refused(way: Way, fence: Any, once: str, **options: Any) -> AlreadyDone:
    before = way.sql("SELECT number, token, seq FROM fencing_marks ORDER BY resource"), way.total
    with pytest.raises(AlreadyDone) as error, way.begin(fence, once=once, **options):
        pytest.fail("the block has run")
    after = way.sql("SELECT number, token, seq FROM fencing_marks ORDER BY resource"), way.total
    assert after == before
    return error.value


@each_database
def test_at_most_one_block_of_a_key_is_committed(way: Way) -> None:
    way.claim(MINE)
    run(way, MINE, DAY)
    error = refused(way, NEWER, DAY, claim=True)
    assert (error.resource, error.key, error.number, error.is_own) == ("orders:1", DAY, MINE.number, False)
    assert abs(datetime.now(UTC) - error.at) < timedelta(minutes=5)
    assert "go on without it" in str(error)
    run(way, NEWER, "2026-11-24", claim=True)
    run(way, OTHER, DAY, claim=True)
    assert way.total == 3
    with way.begin(NEWER) as block:  # without a key
        block.execute(ADD)


def test_what_was_rolled_back_was_not_done(way: Way) -> None:
    with pytest.raises(ZeroDivisionError), way.begin(MINE, once=DAY, claim=True) as block:
        block.call(lambda _: 1 / 0)
    run(way, MINE, DAY, claim=True)
    assert way.total == 1


def test_the_fence_counts_before_the_key(way: Way) -> None:
    run(way, MINE, DAY, claim=True)
    way.claim(NEWER)
    with pytest.raises(StaleFence):
        run(way, MINE, DAY)


@each_database
def test_a_block_of_the_same_lease_has_done_it(way: Way) -> None:
    """So a lost reply to its commit is no riddle: it has landed."""
    run(way, MINE, DAY, claim=True)
    error = refused(way, MINE, DAY)
    assert error.is_own
    assert "it has landed" in str(error)


def test_one_statement(way: Way) -> None:
    way.claim(MINE)
    statement, values = way.statement(ADD)
    assert way.side.call(way.guard.write, MINE, statement, values, once=DAY) == 1
    way.side.expect(AlreadyDone, way.guard.write, MINE, statement, values, once=DAY)
    way.side.expect(AlreadyDone, way.guard.write, NEWER, statement, values, claim=True, once=DAY)
    assert way.total == 1


@pytest.mark.parametrize("way", ways("psycopg", "AsyncPsycopgGuard"), indirect=True)
def test_a_transaction_of_the_callers_own(way: Way) -> None:
    call, advance = way.side.call, way.guard.advance
    way.claim(MINE)
    if way.is_psycopg:
        kind: Any = psycopg.AsyncConnection if way.side.asynchronous else psycopg.Connection
        connection = call(kind.connect, dsn_of(way.url))
    else:
        connection = call(way.new_engine(way.direct).connect)
    statement, _ = way.statement(ADD)
    for end in (connection.rollback, connection.commit):
        call(advance, connection, MINE, once=DAY)
        call(connection.execute, statement)
        call(end)
    way.side.expect(AlreadyDone, advance, connection, MINE, once=DAY)
    call(connection.execute, statement)  # the database has not ended the transaction
    call(connection.rollback)
    assert prune(way, "2026-11-24") == 1
    for end in (connection.commit, connection.rollback):  # it has noted nothing, so a commit makes it no AlreadyDone
        way.side.expect(TooOld, advance, connection, MINE, once=DAY)
        call(end)
    call(connection.close)
    assert way.total == 1


@through_sqlalchemy
def test_sessions_and_functions(way: Way) -> None:
    side, guard = way.side, way.guard

    def add(connection: Any) -> Any:
        return connection.execute(text(ADD))

    way.claim(MINE)
    if side.asynchronous:

        async def in_a_session() -> None:
            async with guard.session(MINE, once="s") as session:
                await session.execute(text(ADD))

        side.call(in_a_session)
        side.expect(AlreadyDone, in_a_session)
    else:
        with guard.session(MINE, once="s") as session:
            assert isinstance(session, Session)
            session.execute(text(ADD))
        with pytest.raises(AlreadyDone), guard.session(MINE, once="s"):
            pytest.fail("the block has run")
    side.call(guard.run, MINE, add, once="r")
    side.expect(AlreadyDone, guard.run, MINE, add, once="r")
    assert way.total == 2


# Which of two comes first


@over_a_network
def test_who_waits_for_the_mark_finds_what_was_done_meanwhile(way: Way) -> None:
    with ThreadPoolExecutor(1) as pool:
        with way.begin(MINE, once=DAY, claim=True) as block:
            block.execute(ADD)
            second = pool.submit(way.beside.write, NEWER, text(ADD), claim=True, once=DAY)
            until_locks_are_waited_for(way.url)
        with pytest.raises(AlreadyDone):
            second.result()
    assert way.total == 1


@on_postgres
def test_a_snapshot_of_before_is_no_way_around_the_floor(way: Way) -> None:
    """Pruning changes the mark. At REPEATABLE READ, the check is refused then."""
    run(way, MINE, DAY, claim=True)
    engine = create_engine(way.url, isolation_level="REPEATABLE READ")
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            assert way.side.call(way.guard.prune_done, "orders:1", below="2026-11-24") == 1
            with pytest.raises(GuardUnavailable):
                way.beside.advance(connection, MINE, once=DAY)
    finally:
        engine.dispose()


@pytest.mark.parametrize("way", ways("pymysql", of=("pymysql",)), indirect=True)
def test_blocks_of_other_resources_do_not_wait(way: Way) -> None:
    """At REPEATABLE READ, a locking read of a row that is not there locks the gap in which other rows belong."""
    way.claim(MINE, OTHER)
    engine = create_engine(way.direct, isolation_level="REPEATABLE READ")
    try:
        with engine.connect() as connection:
            SQLAlchemyGuard(engine, timeout=60.0).advance(connection, OTHER, once=DAY)
            way.new_guard(timeout=20.0).write(MINE, text(ADD), once=DAY)
            connection.rollback()
    finally:
        engine.dispose()
    assert way.total == 1


# Outcomes


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_landed_knows_it_whatever_came_later(way: Way, lost: str) -> None:
    """The mark forgets a write after 16 others. The row stays."""
    way.claim(MINE)
    way.lose(lost)
    statement, values = way.statement(ADD)
    error = way.side.expect(OutcomeUnknown, way.guard.write, MINE, statement, values, once=DAY)
    assert error.once == DAY
    assert pickle.loads(pickle.dumps(error)).once == DAY
    landed = lost == "reply"
    assert way.landed(error) is landed
    if landed:
        assert refused(way, MINE, DAY).is_own
    for _ in range(17):
        way.write_beside(MINE, ADD)
    assert way.landed(error) is landed
    if not landed:
        run(way, MINE, DAY)
        assert way.landed(error) is landed
    assert prune(way, "2026-11-24") == 1
    assert way.landed(error) is None


# Pruning


def prune(way: Way, below: str, resource: str = "orders:1") -> int:
    return int(way.side.call(way.guard.prune_done, resource, below=below))


@each_database
def test_pruning_raises_the_floor_of_the_keys(way: Way) -> None:
    for key in ("2026-11-21", "2026-11-22", DAY):
        run(way, MINE, key, claim=True)
    run(way, OTHER, "2026-11-21", claim=True)
    assert prune(way, DAY) == 2
    assert prune(way, DAY) == 0
    for late in ("2026-11-22", "2026-11-21", "2026-11-21b", "2025-12-31"):
        with pytest.raises(TooOld) as error:
            run(way, NEWER, late, claim=True)
        assert (error.value.resource, error.value.key, error.value.floor) == ("orders:1", late, "2026-11-22")
    refused(way, NEWER, DAY, claim=True)
    refused(way, OTHER, "2026-11-21")
    run(way, NEWER, "2026-11-22b", claim=True)  # above what was there, though it is below what was pruned
    assert way.sql("SELECT count(*) FROM fencing_done WHERE number <> 0") == [(3,)]


def test_the_floor_never_falls_and_leaves_no_trace_of_a_refusal(way: Way) -> None:
    for key in ("b", "d"):
        run(way, MINE, key, claim=True)
    assert prune(way, "e") == 2
    run(way, MINE, "e")
    assert prune(way, "c") == 0
    with pytest.raises(TooOld):
        run(way, MINE, "c")
    assert way.sql("SELECT count(*) FROM fencing_done WHERE number <> 0") == [(1,)]


def test_keys_are_compared_byte_by_byte(way: Way) -> None:
    """Whatever the language of the database: B comes before a, and ä after z."""
    for key in ("B", "a", "z", "ä", "💥"):
        run(way, MINE, key, claim=True)
    assert prune(way, "b") == 2
    refused(way, MINE, "ä")
    assert prune(way, "ä") == 1
    with pytest.raises(TooOld) as error:
        run(way, MINE, "y")
    assert error.value.floor == "z"
    refused(way, MINE, "💥")
    run(way, MINE, "ä' \\ %s :x")
    assert refused(way, MINE, "ä' \\ %s :x").key == "ä' \\ %s :x"


def test_without_a_mark_the_keys_stay(way: Way) -> None:
    run(way, MINE, DAY, claim=True)
    way.side.call(way.guard.prune, below=NEWER.number)
    way._forget_acknowledged()
    refused(way, NEWER, DAY, claim=True)
    assert prune(way, "2026-11-24") == 1
    with pytest.raises(TooOld):
        run(way, NEWER, DAY, claim=True)


@pytest.mark.thorough
def test_many_keys_go_in_batches(way: Way) -> None:
    way.claim(MINE)
    rows = ", ".join(f"('orders:1', '{number:05d}', 1)" for number in range(BATCH + 5))
    way.sql(f"INSERT INTO fencing_done (resource, once_key, number) VALUES {rows}")
    assert prune(way, "99999") == BATCH + 5
    with pytest.raises(TooOld) as error:
        run(way, MINE, "00000")
    assert error.value.floor == f"{BATCH + 4:05d}"


# Misuse


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[SQLAlchemyGuard]:
    engine = create_engine(f"sqlite:///{tmp_path}/data.db")
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    yield guard
    engine.dispose()


@pytest.mark.parametrize(
    ("once", "kind", "says"),
    [
        ("", ValueError, "not empty"),
        ("a\0b", ValueError, "NUL"),
        ("x" * 256, ValueError, "256 bytes"),
        ("ä" * 128, ValueError, "256 bytes"),
        ("\ud800", ValueError, "UTF-8"),
        (20261123, TypeError, "not int"),
        (b"2026", TypeError, "not bytes"),
        (True, TypeError, "not bool"),
        (datetime(2026, 11, 23).date(), TypeError, "not date"),
    ],
)
def test_a_key_is_a_short_text(guard: SQLAlchemyGuard, once: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says), guard.begin(MINE, claim=True, once=once):
        pytest.fail("the block has run")
    with pytest.raises(kind, match=says):
        guard.prune_done("orders:1", below=once)


def test_the_longest_key(way: Way) -> None:
    run(way, MINE, "x" * 255, claim=True)
    refused(way, MINE, "x" * 255)
    run(way, MINE, "x" * 254)


def test_a_key_belongs_to_one_lease(guard: SQLAlchemyGuard) -> None:
    with pytest.raises(ValueError, match="exactly one lease, not 2"), guard.begin(MINE, OTHER, claim=True, once=DAY):
        pytest.fail("the block has run")


@pytest.mark.parametrize("way", ways("sqlite"), indirect=True)
def test_a_table_that_is_missing_is_missed_by_nobody_else(way: Way) -> None:
    way.spoil()
    way.sql("DROP TABLE fencing_done")
    way.claim(MINE)
    assert way.write(MINE, ADD) == 1
    with pytest.raises(GuardNotEnforceable, match=r"the table fencing_done is missing: call guard.create_tables\(\)"):
        run(way, MINE, DAY)
    way.side.call(way.guard.create_tables)
    run(way, MINE, DAY)
    way.sql("DELETE FROM fencing_done")


@pytest.mark.thorough
def test_verify_finds_a_table_without_its_key(way: Way) -> None:
    assert not [each for each in way.side.call(way.guard.verify).findings if "fencing_done" in each.problem]
    way.spoil()
    with way.outside.begin() as connection:  # one: in SQLite, another one's ALTER looks for the name in an older schema
        connection.execute(text("CREATE TABLE copied AS SELECT * FROM fencing_done"))
        connection.execute(text("DROP TABLE fencing_done"))
        connection.execute(text("ALTER TABLE copied RENAME TO fencing_done"))
        connection.execute(text("ALTER TABLE fencing_done DROP COLUMN version"))
        connection.execute(text("ALTER TABLE fencing_done ADD COLUMN version SMALLINT DEFAULT 1 NOT NULL"))
    [found] = [each for each in way.side.call(way.new_guard().verify).findings if "fencing_done" in each.problem]
    assert "the primary key of fencing_done is not (resource, once_key)" in found.problem
    assert found.threatens == "upkeep"


@pytest.mark.thorough
def test_a_table_of_an_earlier_program_is_named(way: Way) -> None:
    way.spoil()
    way.sql("ALTER TABLE fencing_done DROP COLUMN write_id")
    with pytest.raises(GuardNotEnforceable, match="DROP TABLE fencing_done, and call"):
        run(way, MINE, DAY, claim=True)


def test_a_lease_knows_the_fence_that_it_had_before_a_reclaim(guard: SQLAlchemyGuard) -> None:
    coordinator = MemoryCoordinator(guards=[guard])
    with coordinator.lock("orders:1").hold() as lease:
        with guard.begin(lease, once=DAY):
            pass
        again = lease.reclaim()
        with pytest.raises(AlreadyDone) as error, guard.begin(again, once=DAY):
            pytest.fail("the block has run")
        assert error.value.is_own
    with coordinator.lock("orders:1").hold() as other:
        with pytest.raises(AlreadyDone) as error, guard.begin(other, once=DAY):
            pytest.fail("the block has run")
        assert not error.value.is_own
    coordinator.close()


def test_a_fence_of_the_same_number_is_of_another_resource(guard: SQLAlchemyGuard) -> None:
    for name in ("a", "b"):
        with guard.begin(Fence(name, 7, "a" * 22), claim=True, once=DAY):
            pass


def test_on_a_database_that_enforces(postgres_url: str) -> None:
    """``enforce`` grants the application what it needs, also where it has no right by default. The owner prunes."""
    with two_roles(postgres_url) as roles:
        owner = roles.owners_guard()
        owner.create_tables()
        with roles.as_owner() as connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL)")
            connection.execute("INSERT INTO orders VALUES (1, 0)")
            connection.execute(SQL("REVOKE ALL ON fencing_done FROM {}").format(Identifier(roles.app)))
        owner.enforce("orders", resource="'orders:' || id", role=roles.app)
        engine = create_engine(roles.app_url, poolclass=NullPool)
        guards: list[tuple[str, Any, Any]] = [
            ("a", roles.apps_guard(), ADD),
            ("b", SQLAlchemyGuard(engine), text(ADD)),
        ]
        for key, guard, statement in guards:
            assert guard.write(MINE, statement, claim=True, once=key) == 1
            with pytest.raises(AlreadyDone):
                guard.write(MINE, statement, once=key)
            with pytest.raises(GuardNotEnforceable):
                guard.prune_done("orders:1", below="z")
        assert owner.prune_done("orders:1", below="z") == 2
        with pytest.raises(TooOld):
            roles.apps_guard().write(MINE, ADD, once="a")

"""What is different on MariaDB, and would break a guard that did not know it."""

# ruff: noqa: PT012 - what raises is a guarded block, and the statements in it are the story

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from aiomysql import Connection as AiomysqlConnection  # type: ignore[import-untyped]
from pymysql.constants.CLIENT import MULTI_STATEMENTS
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, Mark, OutcomeUnknown, StaleFence
from fencing.sql.dialects import mysql_settings
from storage_guards import SQLAlchemyGuard
from storage_guards.sql.outcome import Admitted
from storage_guards.sqlalchemy import mysql, mysql_bounds
from storage_guards.sqlalchemy.mariadb import SessionBounds
from storage_guards.sqlalchemy.mysql import MySQLMarks, Seen
from storage_guards.sqlalchemy.mysql_bounds import MySQLBounds
from storage_guards.testing import AWKWARD_ENDS
from tests.support import wait_until
from tests.support.lock_waits import until_locks_are_waited_for
from tests.support.pymysql_requests import after_the_next_change_of_a_mark, note_requests
from tests.support.servers import MariaDBServer, Proxy, start_mariadb
from tests.support.small_world import FENCES, RESOURCE, WORLDS, outcome, set_world
from tests.support.sql_ways import ADD as ADD_SQL
from tests.support.sql_ways import MINE, NEWER, OTHER, TO_MARIADB, Way, WayLender, ways
from tests.support.sql_ways import READ as READ_SQL

READ, ADD = text(READ_SQL), text(ADD_SQL)


class Shop:
    """A guard, and more engines on the same database."""

    def __init__(self, way: Way) -> None:
        self.way, self.url, self.connect, self.sql = way, way.url, way.new_engine, way.sql
        self.engine, self.guard = way.outside, way.beside

    def scalar(self, statement: str) -> Any:
        [[value]] = self.sql(statement)
        return value

    @property
    def total(self) -> int:
        return self.way.total


@pytest.fixture
def shop(sql_ways: WayLender) -> Iterator[Shop]:
    with sql_ways.lend("pymysql") as way:
        yield Shop(way)


# Names are exact, whatever the session


@pytest.mark.thorough
@pytest.mark.parametrize(
    "session",
    [
        "sql_mode = 'NO_BACKSLASH_ESCAPES'",
        "sql_mode = 'ANSI'",
        "sql_mode = 'SIMULTANEOUS_ASSIGNMENT'",
        "sql_mode = ''",
        "NAMES latin1",
        "NAMES utf8mb4 COLLATE utf8mb4_general_ci",
        "@nothing = 0, a client of another character set",
    ],
)
def test_names_are_exact_in_every_session(shop: Shop, session: str) -> None:
    if "SIMULTANEOUS" in session:
        shop.way.needs_mariadb("mode SIMULTANEOUS_ASSIGNMENT")
    session, _, other_client = session.partition(", a client")
    engine = shop.connect(connect_args={"charset": "latin1"} if other_client else {})
    event.listen(engine, "connect", lambda connection, _: connection.cursor().execute(f"SET {session}"))
    guard = SQLAlchemyGuard(engine)
    fences = [Fence(f"x{end}", number, "a" * 22) for number, end in enumerate(AWKWARD_ENDS, 1)]
    for one in fences:
        guard.claim(one)
        guard.write(one, ADD)
    for one in fences:
        assert guard.mark(one.resource) == shop.guard.mark(one.resource) == Mark(one.number, one.token, 1)
        with pytest.raises(StaleFence):
            guard.claim(Fence(one.resource, one.number, "A" * 22))


# Snapshots


def read_at_begin(engine: Engine) -> None:
    event.listen(engine, "begin", lambda connection: connection.execute(READ).all())


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_select_before_the_claim_does_not_make_later_reads_old(shop: Shop, level: str) -> None:
    """REPEATABLE READ, MariaDB's default, would go on reading what the first SELECT saw."""
    shop.guard.claim(MINE)
    engine = shop.connect(isolation_level=level)
    has_read = threading.Event()
    read_at_begin(engine)
    event.listen(engine, "begin", lambda _: has_read.set())
    guard = SQLAlchemyGuard(engine)

    def add_late() -> None:
        with guard.begin(NEWER, claim=True) as connection:
            total = connection.execute(READ).scalar_one()
            connection.execute(text("UPDATE orders SET total = :total WHERE id = 1"), {"total": total + 10})

    with ThreadPoolExecutor() as pool:
        with shop.guard.begin(MINE) as connection:
            late = pool.submit(add_late)
            assert has_read.wait(60)
            connection.execute(ADD)
        late.result()
    assert shop.total == 11, "the newer holder read before its claim, and an acknowledged update was lost"


@pytest.mark.parametrize(
    ("level", "expected"),
    [("READ COMMITTED", "READ COMMITTED"), ("REPEATABLE READ", "READ COMMITTED"), ("SERIALIZABLE", "SERIALIZABLE")],
)
def test_the_levels_of_the_guards_transactions_and_of_others(shop: Shop, level: str, expected: str) -> None:
    engine = shop.connect(isolation_level=level, pool_size=1, max_overflow=0)
    guard = SQLAlchemyGuard(engine)
    now = text(
        "SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id=CONNECTION_ID()"
    )

    def is_at(connection: Connection, expected: str) -> bool:
        connection.execute(ADD)
        # information_schema tells nothing new until it was left alone for a tenth of a second.
        wait_until(lambda: connection.execute(now).scalar() == expected, 30, interval=0.15)
        return True

    with guard.begin(MINE, claim=True) as connection:
        assert is_at(connection, expected)
    with engine.begin() as connection:
        assert is_at(connection, level)


def test_a_transaction_that_began_before_the_guards(shop: Shop) -> None:
    engine = shop.connect()

    def read(connection: Any, *_: Any) -> None:
        connection.cursor().execute("SELECT * FROM orders")

    event.listen(engine, "checkout", read)
    with pytest.raises(GuardNotEnforceable, match="before the guard began its own"):
        SQLAlchemyGuard(engine).claim(MINE)


@pytest.mark.parametrize("snapshot_isolation", ["OFF", "ON"])  # MySQL is as MariaDB with OFF
@pytest.mark.parametrize("past", ["claim", "write"])
def test_advance_in_a_transaction_with_an_old_snapshot(shop: Shop, past: str, snapshot_isolation: str) -> None:
    """Under REPEATABLE READ a locking check sees the newest mark, and the reads after it do not: without an error, or
    with 1020 where innodb_snapshot_isolation is on."""
    if snapshot_isolation == "ON":
        shop.way.needs_mariadb("innodb_snapshot_isolation")
    shop.guard.claim(MINE)
    holder = MINE
    with Session(shop.connect(isolation_level="REPEATABLE READ")) as session:
        if not shop.way.is_mysql:
            session.execute(text(f"SET SESSION innodb_snapshot_isolation = {snapshot_isolation}"))
        assert session.execute(READ).scalar_one() == 0
        shop.guard.write(MINE, ADD)
        if past == "claim":
            shop.guard.claim(holder := NEWER)
        with pytest.raises(GuardUnavailable):
            shop.guard.advance(session, holder)
        session.rollback()
        shop.guard.advance(session, holder)
        assert session.execute(READ).scalar_one() == 1
        session.rollback()


def test_a_superseded_holder_with_an_old_snapshot_is_stale(shop: Shop) -> None:
    """What is read back must be what is there, not what the snapshot has: so it is read with a lock."""
    shop.guard.claim(MINE)
    with shop.connect(isolation_level="REPEATABLE READ").connect() as connection:
        connection.execute(READ)
        shop.guard.claim(NEWER)
        with pytest.raises(StaleFence):
            shop.guard.advance(connection, MINE)


# Transactions that end by themselves, and errors that do not end them


@pytest.mark.thorough
def test_a_statement_that_commits_implicitly(shop: Shop) -> None:
    shop.way.spoil()
    shop.guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="commits implicitly"), shop.guard.begin(MINE) as connection:
        connection.execute(ADD)
        connection.execute(text("CREATE TABLE another (id INTEGER)"))
    with pytest.raises(GuardNotEnforceable, match="commits implicitly"), shop.guard.begin(MINE) as connection:
        total = connection.execute(READ).scalar_one()
        connection.execute(text("ALTER TABLE another ADD COLUMN more INTEGER"))
        shop.guard.claim(NEWER)
        shop.guard.write(NEWER, ADD)
        connection.execute(text("UPDATE orders SET total = :total WHERE id = 1"), {"total": total + 10})
    assert shop.total == 2, "what was written after the implicit commit was undone"


@pytest.mark.thorough
@pytest.mark.parametrize("statement", ["TRUNCATE TABLE orders", "CALL commit_inside()", "COMMIT"])
def test_a_write_that_commits_implicitly(shop: Shop, statement: str) -> None:
    shop.way.spoil()
    shop.sql("CREATE PROCEDURE commit_inside() BEGIN COMMIT; UPDATE orders SET total = 100; END")
    shop.guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="commits implicitly"):
        shop.guard.write(MINE, text(statement))
    assert shop.scalar("SELECT MAX(total) FROM orders") in (0, None)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ways("pymysql", of=TO_MARIADB))
def test_a_block_that_switches_autocommit_on(sql_ways: WayLender, name: str) -> None:
    """It commits, and what follows would be committed at once, without a check, before the block is refused."""
    with sql_ways.lend(name) as way:
        way.spoil()
        way.beside.claim(MINE)
        with pytest.raises(GuardNotEnforceable, match="commits implicitly"), way.begin(MINE) as block:
            block.execute("SET autocommit = 1")
            way.beside.claim(NEWER)
            block.execute(ADD_SQL)
        assert way.total == 0


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
@pytest.mark.parametrize("statement", ["LOCK TABLES orders WRITE", "SET autocommit = 1"])
@pytest.mark.parametrize("name", ways("pymysql", of=TO_MARIADB))
def test_a_block_that_leaves_its_session_changed(
    sql_ways: WayLender, name: str, statement: str, error: type[Exception] | None
) -> None:
    """The connection is closed: in the pool it would keep the tables locked, or commit what others roll back."""
    with sql_ways.lend(name) as way:
        way.beside.claim(MINE)
        guard = way.new_guard(size=1)
        with pytest.raises(error or GuardNotEnforceable), way.begin(MINE, guard=guard) as block:
            session = block.scalar("SELECT CONNECTION_ID()")
            block.execute(statement)
            if error is not None:
                raise error
        with way.begin(MINE, guard=guard) as block:  # the pool has one connection
            assert block.scalar("SELECT CONNECTION_ID()") != session
            block.execute(ADD_SQL)
        assert way.total == 1


def test_a_block_that_sets_the_savepoint_of_earlier_versions(shop: Shop) -> None:
    """Each check has a savepoint with a name of its own, so that no other transaction passes for the checked one."""
    shop.guard.claim(MINE)
    with pytest.raises(GuardNotEnforceable, match="commits implicitly"), shop.guard.begin(MINE) as connection:
        driver: Any = connection.connection.driver_connection
        for statement in ("COMMIT", ADD_SQL, "SAVEPOINT fencing_checked"):
            driver.cursor().execute(statement)
    assert shop.total == 0


@pytest.mark.thorough
def test_a_deadlock_whose_error_was_swallowed(shop: Shop) -> None:
    """1213 ends the whole transaction, and the next statement begins another one, unchecked."""
    shop.way.spoil()
    shop.guard.claim(MINE)
    shop.sql("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER)")
    shop.sql("INSERT INTO stock VALUES " + ", ".join(f"({id_}, 0)" for id_ in range(1, 101)))
    with (
        ThreadPoolExecutor() as pool,
        shop.engine.connect() as other,
        pytest.raises(GuardNotEnforceable, match="not sound"),
        shop.guard.begin(MINE) as connection,
    ):
        connection.execute(ADD)
        other.execute(text("UPDATE stock SET n = 1"))  # has changed more, so it is not the one to be undone
        waiting = pool.submit(other.execute, ADD)
        until_locks_are_waited_for(shop.url)
        with pytest.raises(OperationalError, match="1213"):
            connection.execute(text("UPDATE stock SET n = 2 WHERE id = 1"))
        waiting.result(60)
        other.rollback()
        shop.guard.claim(NEWER)
        connection.execute(ADD)
    assert shop.total == 0


@pytest.mark.thorough
def test_a_lock_wait_timeout_ends_the_transaction(shop: Shop) -> None:
    """1205 undoes only the statement: the locks, and the claim of the other mark, would stay."""
    shop.guard.claim(OTHER)
    impatient = SQLAlchemyGuard(shop.connect(), timeout=1.0)
    newest = Fence("orders:2", 9, "d" * 22)
    with shop.guard.begin(OTHER):
        for _ in range(2):
            with pytest.raises(GuardUnavailable):
                impatient.claim(MINE, newest)
            assert shop.guard.mark("orders:1") is None
            shop.guard.claim(Fence("orders:3", 1, "e" * 22))
    with shop.engine.connect() as blocker:
        blocker.execute(ADD)
        with pytest.raises(OperationalError, match="1205"), shop.guard.begin(MINE, claim=True) as connection:
            connection.execute(text("INSERT INTO orders VALUES (2, 0)"))
            connection.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
            connection.execute(ADD)
    assert shop.guard.mark("orders:1") is None
    assert shop.scalar("SELECT COUNT(*) FROM orders") == 1


@pytest.mark.thorough
def test_first_claims_of_many_names_do_not_deadlock(shop: Shop) -> None:
    """Above READ COMMITTED each would lock the gap in which the others insert."""
    engine = shop.connect(isolation_level="REPEATABLE READ")
    guard = SQLAlchemyGuard(engine)
    start = threading.Barrier(4)

    def claim(worker: int) -> None:
        start.wait(60)
        for number in range(40):
            with guard.begin(Fence(f"new:{number}:{worker}", 1, "a" * 22), claim=True) as connection:
                connection.execute(text("SELECT 1"))

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(claim, worker) for worker in range(4)]:
            future.result()  # none was refused
    assert shop.scalar("SELECT COUNT(*) FROM fencing_marks WHERE number = 1") == 160


# The table and its statements


@pytest.mark.parametrize(
    "form", ["two statements", "compound", pytest.param("one statement", marks=pytest.mark.thorough)]
)
def test_the_statements_are_the_admission_rule(shop: Shop, form: str) -> None:
    """Every mark, floor and fence of a small world. MySQL's check is one statement where the guard knows the mark."""
    if form == "compound":
        shop.way.needs_mariadb("compound statements")
    statements = MySQLMarks()
    with shop.engine.connect() as connection:
        bounds: Any = None
        statements.locate(connection)
        if form != "two statements":
            bounds = (SessionBounds if form == "compound" else MySQLBounds)(connection, 10.0, caller_block=False)
            bounds._are_set = True  # the transaction has begun: set_world begins it
            with_partitions_as_on_mysql(statements)

        def read() -> Mark | None:
            return statements.read(connection, RESOURCE)

        def admit(fence: Fence, claim: bool) -> Mark | None:
            statements._seen[fence.resource, fence.number, fence.token] = AS_WORLDS_HAVE_IT
            statements.admit(connection, [fence], 10.0, claim=claim, writes=int(not claim), bounds=bounds)
            return read()

        for world, mine in itertools.product(WORLDS, FENCES):
            set_world(connection, world)
            claimed = outcome(lambda m=mine: admit(m, True))
            assert claimed == world.claimed(mine), (world, mine)
            if isinstance(claimed, tuple):
                assert read() == world.mark
            set_world(connection, world)
            checked = outcome(lambda m=mine: admit(m, False))
            assert checked == world.checked(mine), (world, mine)


def with_partitions_as_on_mysql(marks: MySQLMarks, *, they_are_innodb: bool = True) -> None:
    """Of a guard that has found its table."""
    assert marks._located is not None
    marks._partitions_are_innodb = they_are_innodb
    marks._located = marks._statements_in(marks._located.schema)


AS_WORLDS_HAVE_IT = Seen(4, "")
"""The seq and the writes of each mark in the small world."""


def test_a_claim_between_the_two_statements_of_a_check(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """There was no mark to lock, and then there is the right one, without this write in it: the check is repeated."""
    engine = shop.connect()
    meant = after_the_next_change_of_a_mark(monkeypatch, lambda: shop.guard.claim(MINE))
    assert SQLAlchemyGuard(engine).write(MINE, ADD) == 1
    assert not meant
    assert shop.total == 1
    mark = shop.guard.mark("orders:1")
    assert mark is not None
    assert mark.seq == 1, "the write is not in the mark"


# A mark that the guard knows from its last write, so that it need not be read


class Known:
    """A guard that has written under MINE, by one statement: as on MariaDB, or as on MySQL."""

    def __init__(self, shop: Shop, form: str) -> None:
        self.shop, self.is_compound = shop, form == "compound"
        self.marks = MySQLMarks()
        self.connection = shop.engine.connect()
        self.marks.locate(self.connection)
        self.connection.rollback()
        with_partitions_as_on_mysql(self.marks)
        shop.guard.claim(MINE)
        self.check()

    def check(self, *, committed: bool = True) -> Admitted:
        bounds = (SessionBounds if self.is_compound else MySQLBounds)(self.connection, 10.0, caller_block=False)
        bounds._are_set = True  # MariaDB has other settings than MySQL
        with self.connection.begin() as transaction:
            [admitted] = self.marks.admit(self.connection, [MINE], 10.0, claim=False, bounds=bounds)
            if not committed:
                transaction.rollback()
        return admitted


@pytest.fixture(params=["compound", "one statement"])
def known(shop: Shop, request: pytest.FixtureRequest) -> Iterator[Known]:
    if request.param == "compound":
        shop.way.needs_mariadb("compound statements")
    known = Known(shop, request.param)
    yield known
    known.connection.close()


def mark_of(shop: Shop) -> tuple[int, str]:
    [[seq, recent_writes]] = shop.sql(
        "SELECT seq, CONVERT(recent_writes USING utf8mb4) FROM fencing_marks WHERE resource = 'orders:1'"
    )
    return seq, recent_writes


def test_what_a_known_mark_has_after_each_check(shop: Shop, known: Known) -> None:
    """The guard does not read it, so it must know the same: also after a check that was rolled back, after other
    writes, and where the mark remembers no more."""
    for _ in range(2):
        admitted = known.check()
        assert (admitted.seq, admitted.recent_writes) == mark_of(shop)
        known.check(committed=False)
        for _ in range(9):
            admitted = known.check()
            assert (admitted.seq, admitted.recent_writes) == mark_of(shop)
        shop.guard.write(MINE, ADD)
    assert admitted.seq == 22


def test_a_known_mark_whose_history_was_replaced(shop: Shop, known: Known) -> None:
    """As after a restore, and as many writes as there were: what was read since the claim may be gone."""
    seq, before = mark_of(shop)
    shop.sql("UPDATE fencing_marks SET recent_writes = 'another-one1' WHERE resource = 'orders:1'")
    admitted = known.check()
    assert (admitted.seq, admitted.recent_writes) == (seq + 1, f"{admitted.recent_writes[:12]} another-one1")
    assert before[:12] not in admitted.recent_writes, "the rule of continuity would see nothing"


def test_a_known_mark_of_another_seq(shop: Shop, known: Known) -> None:
    """As after a check that only some of its columns came back from."""
    shop.sql("UPDATE fencing_marks SET seq = seq + 7 WHERE resource = 'orders:1'")
    assert known.check().seq == mark_of(shop)[0] == 9


def test_a_table_without_partitions_has_no_known_marks(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine may be another one since the last check, so each check of MySQL's looks it up."""
    if known.is_compound:
        pytest.skip("a savepoint shows the engine")
    with_partitions_as_on_mysql(known.marks, they_are_innodb=False)
    sent = note_requests(monkeypatch)
    known.check()
    assert any("information_schema" in request for request in sent)


def test_a_known_mark_of_a_table_that_lost_its_transactions(shop: Shop) -> None:
    shop.way.needs_mariadb("partitions without transactions")
    engine = shop.connect()
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("START TRANSACTION"))
    guard = SQLAlchemyGuard(engine)
    guard.claim(MINE)
    guard.write(MINE, ADD)
    shop.sql("ALTER TABLE fencing_marks ENGINE = MyISAM")
    try:
        with pytest.raises(GuardNotEnforceable, match="has the engine MyISAM"):
            guard.write(MINE, ADD)
    finally:
        shop.sql("ALTER TABLE fencing_marks ENGINE = InnoDB")
    assert shop.total == 1


def test_advance_leaves_the_callers_last_insert_id(shop: Shop) -> None:
    """MySQL's check of a known mark sets it. So that one is for the guard's own transactions alone."""
    shop.guard.claim(MINE)
    shop.guard.write(MINE, ADD)
    with shop.engine.connect() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE made (id INTEGER PRIMARY KEY AUTO_INCREMENT)"))
        connection.execute(text("INSERT INTO made VALUES (NULL), (NULL)"))
        connection.execute(text("INSERT INTO made VALUES (NULL)"))
        shop.guard.advance(connection, MINE)
        assert connection.execute(text("SELECT LAST_INSERT_ID()")).scalar_one() == 3
        connection.execute(text("DROP TEMPORARY TABLE made"))


@pytest.mark.parametrize("change", ["number = 6", "token = 'bbbbbbbbbbbbbbbbbbbbbb'", "readers = 5"])
def test_a_known_mark_that_is_another_fences_now(shop: Shop, known: Known, change: str) -> None:
    """Even with the same seq and the same writes."""
    shop.sql(f"UPDATE fencing_marks SET {change} WHERE resource = 'orders:1'")
    before = mark_of(shop)
    with pytest.raises(StaleFence):
        known.check()
    assert mark_of(shop) == before


def test_no_more_marks_are_known_than_may_be(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql, "MOST_SEEN", 3)
    for number in range(9):
        known.marks._seen[f"another:{number}", 1, "a" * 22] = AS_WORLDS_HAVE_IT
    known.check()
    assert len(known.marks._seen) <= 3


@pytest.mark.thorough
def test_a_table_made_by_alembic_and_the_other_name_of_the_dialect(shop: Shop) -> None:
    """Without rows; and a URL that begins with mariadb+, which SQLAlchemy takes for MariaDB alone."""
    shop.way.spoil()
    shop.sql("DROP TABLE fencing_marks")
    engine = create_engine(shop.url if shop.way.is_mysql else shop.url.replace("mysql+", "mariadb+"))
    guard = SQLAlchemyGuard(engine)
    guard.metadata.create_all(engine)
    guard.create_tables()
    shop.sql("UPDATE fencing_marks SET number = 0")  # a new table's floor is the clock, not far below it
    guard.claim(MINE)
    assert guard.write(MINE, ADD) == guard.run(MINE, lambda connection: connection.execute(ADD).rowcount) == 1
    with engine.connect() as connection:
        shop.guard.advance(connection, MINE)
    engine.dispose()
    assert shop.total == 2
    assert shop.scalar("SELECT COUNT(*) FROM fencing_marks") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
def test_a_table_without_transactions(shop: Shop, engine: str) -> None:
    shop.way.needs_mariadb("engine without transactions for a table in partitions")
    shop.way.spoil()
    shop.guard.claim(MINE)
    shop.sql(f"ALTER TABLE fencing_marks ENGINE = {engine}")
    for use in (shop.guard.create_tables, lambda: shop.guard.claim(NEWER), lambda: shop.guard.write(MINE, ADD)):
        with pytest.raises(GuardNotEnforceable, match="ENGINE = InnoDB"):
            use()
    with pytest.raises(GuardNotEnforceable), shop.guard.begin(NEWER, claim=True):
        raise AssertionError("the block has run")
    assert shop.total == 0


def has_made_a_filled_copy(engine: Engine) -> None:
    """On the pool's connection, under the name of the mark table."""
    with engine.connect() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE filled AS SELECT * FROM fencing_marks"))
        connection.execute(text("ALTER TABLE filled RENAME TO fencing_marks"))
        connection.commit()


@pytest.mark.parametrize("is_in_use", [True, False], ids=["guard in use", "new guard"])
def test_a_temporary_table_that_hides_the_marks(shop: Shop, is_in_use: bool) -> None:
    """A late write was admitted by the copy, which no newer claim reaches."""
    shop.guard.claim(MINE)
    engine = shop.connect(pool_size=1, max_overflow=0)
    guard = SQLAlchemyGuard(engine)
    if is_in_use:
        guard.write(MINE, ADD)
    has_made_a_filled_copy(engine)
    shop.guard.claim(NEWER)
    shop.guard.write(NEWER, ADD)
    before = shop.total

    def advance() -> None:
        with engine.connect() as connection:
            guard.advance(connection, MINE)

    def begin() -> None:
        with guard.begin(MINE):
            raise AssertionError("the block has run")

    uses: list[Callable[[], Any]] = [
        lambda: guard.write(MINE, ADD),
        lambda: guard.write(MINE, text("CALL nothing()")),
        begin,
        advance,
        lambda: guard.claim(MINE),
        lambda: guard.claim(OTHER),
        lambda: guard.mark("orders:1"),
        lambda: guard.landed(OutcomeUnknown(fence=MINE, seq=1, recent_writes="x y")),
        lambda: guard.prune(below=3),
    ]
    for use in uses:
        with pytest.raises(GuardNotEnforceable, match="temporary table"):
            use()
    assert shop.total == before
    with engine.connect() as connection:
        connection.execute(text("DROP TEMPORARY TABLE fencing_marks"))
    with pytest.raises(StaleFence):
        guard.write(MINE, ADD)
    assert guard.write(NEWER, ADD) == 1


@pytest.mark.thorough
def test_a_table_of_an_earlier_version_works_without_its_partition(shop: Shop) -> None:
    shop.way.spoil()
    shop.sql("ALTER TABLE fencing_marks REMOVE PARTITIONING")
    guard = SQLAlchemyGuard(shop.connect())
    guard.create_tables()
    guard.claim(MINE)
    assert guard.write(MINE, ADD) == 1
    with pytest.raises(GuardNotEnforceable, match="would hide the mark table"):
        guard.verify()
    shop.sql("ALTER TABLE fencing_marks PARTITION BY KEY (resource) (PARTITION fencing)")
    guard.verify()
    assert guard.write(MINE, ADD) == 1


def test_a_prepared_check_that_vanishes(shop: Shop) -> None:
    shop.way.needs_mariadb("compound statements")
    engine = shop.connect(pool_size=1, max_overflow=0)
    guard = SQLAlchemyGuard(engine)
    guard.claim(MINE)
    for _ in range(3):
        assert guard.write(MINE, ADD) == 1
        with engine.connect() as connection:
            for name in [name for name in connection.info if str(name).startswith("fencing_")]:
                connection.exec_driver_sql(f"DEALLOCATE PREPARE {name}")
    assert shop.total == 3


@pytest.mark.thorough
def test_a_server_that_prepares_nothing(shop: Shop) -> None:
    shop.way.needs_mariadb("compound statements")
    with start_mariadb(settings={"max-prepared-stmt-count": "0"}, local=True) as server:
        engine = shop.connect(server.create_database())
        guard = SQLAlchemyGuard(engine)
        guard.create_tables()
        for fence in (MINE, NEWER):
            guard.claim(fence)
            for _ in range(2):
                assert guard.write(fence, text("UPDATE fencing_marks SET seq = seq WHERE resource = ''")) == 0
        with pytest.raises(StaleFence):
            guard.write(MINE, text("UPDATE fencing_marks SET seq = seq WHERE resource = ''"))
        mark = guard.mark(NEWER.resource)
        assert mark is not None
        assert mark.seq == 2
        engine.dispose()


@pytest.mark.parametrize("claim", [True, False])
def test_a_first_claim_that_comes_after_the_compound_statement(shop: Shop, claim: bool) -> None:
    """The compound statement met no mark, and the statements after it meet one."""
    shop.way.needs_mariadb("compound statements")
    guard = SQLAlchemyGuard(shop.connect())
    guard.mark("orders:1")  # so that the table is found
    change = SessionBounds.change

    def claim_meanwhile(self: SessionBounds, *arguments: Any) -> Any:
        patched.undo()
        changed = change(self, *arguments)
        assert changed is None
        shop.guard.claim(Fence("orders:1", 1, "d" * 22) if claim else MINE)
        return changed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SessionBounds, "change", claim_meanwhile)
        assert guard.write(MINE, ADD, claim=claim) == 1
    assert shop.total == 1


@pytest.mark.thorough
@pytest.mark.parametrize("log_bin", [False, True])
@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY"])
def test_a_savepoint_shows_a_table_without_transactions(shop: Shop, engine: str, log_bin: bool) -> None:
    """Without a look into information_schema, and also where the binary log makes a transaction of everything."""
    shop.way.needs_mariadb("compound statements")
    shop.way.spoil()
    with ExitStack() as stack:
        url = shop.url
        if log_bin:
            server = stack.enter_context(start_mariadb(settings={"log-bin": "bin", "server-id": "1"}, local=True))
            url = server.create_database()
        guard = SQLAlchemyGuard(shop.connect(url))
        guard.create_tables()
        guard.claim(MINE)
        with guard._engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE fencing_marks ENGINE = {engine}"))
        nothing = text("UPDATE fencing_marks SET seq = seq WHERE resource = ''")
        for use in (
            lambda: guard.claim(MINE),
            lambda: guard.write(MINE, nothing),
            lambda: guard.claim(NEWER),
        ):
            with pytest.raises(GuardNotEnforceable, match=f"has the engine {engine}"):
                use()


@pytest.mark.thorough
def test_mysql_has_no_partitions_without_transactions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the engine is not looked up for each check. That took longer than all the rest of it."""
    shop.way.needs_mysql("such partitions")
    shop.way.spoil()
    shop.guard.claim(MINE)
    asked = note_requests(monkeypatch)
    assert shop.guard.write(MINE, ADD) == 1
    assert [each for each in asked if "fencing_marks" in each]
    assert not [each for each in asked if "information_schema" in each]
    with pytest.raises(DBAPIError):
        shop.sql("ALTER TABLE fencing_marks ENGINE = MyISAM")
    shop.sql("ALTER TABLE fencing_marks REMOVE PARTITIONING")
    shop.sql("ALTER TABLE fencing_marks ENGINE = MyISAM")
    for guard in (shop.guard, SQLAlchemyGuard(shop.connect(shop.url))):
        with pytest.raises((GuardNotEnforceable, GuardUnavailable)):
            guard.write(MINE, ADD)
    assert shop.total == 1


def test_the_columns_are_binary(shop: Shop) -> None:
    kinds = text(
        "SELECT column_name AS column_name, data_type AS data_type FROM information_schema.columns "
        "WHERE table_schema = DATABASE() AND table_name = 'fencing_marks'"
    )
    with shop.engine.connect() as connection:
        found = {row.column_name: row.data_type for row in connection.execute(kinds)}
    assert found["resource"] == found["token"] == found["recent_writes"] == "varbinary"


@pytest.mark.parametrize("number", [0, -1, 2**53])
def test_the_table_refuses_impossible_numbers(shop: Shop, number: int) -> None:
    with pytest.raises(DBAPIError):
        shop.sql(f"INSERT INTO fencing_marks (resource, number, token, seq) VALUES ('r', {number}, 'a', 0)")


# Requests


def firsts(sent: list[str]) -> list[str]:
    """The first word of each statement, for each request; and forget them."""
    found = [" ".join(each.split()[0] for each in request.split("; ")) for request in sent]
    sent.clear()
    return found


def test_the_requests_of_a_write(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/internals/safety.md has the list, with the rule that needs each one."""
    shop.way.needs_mariadb("compound statements")
    guard = SQLAlchemyGuard(shop.connect(pool_size=1, max_overflow=0))
    guard.claim(MINE)
    guard.write(MINE, ADD)
    sent = note_requests(monkeypatch)
    guard.write(MINE, ADD)
    assert [request.split()[0] for request in sent] == ["EXECUTE", "UPDATE", "BEGIN"]
    assert sent[2].startswith("BEGIN NOT ATOMIC COMMIT;")
    sent.clear()
    guard.claim(MINE)
    assert [request.split()[0] for request in sent][-2:] == ["EXECUTE", "BEGIN"]
    sent.clear()
    with guard.begin(MINE):
        pass
    assert [request.split()[0] for request in sent] == ["BEGIN", "RELEASE", "BEGIN"]


@pytest.mark.parametrize("several", [False, True], ids=["one statement a request", "several"])
def test_the_requests_of_a_write_on_mysql(shop: Shop, several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each statement is a request, unless the connection takes several. aiomysql's always do."""
    shop.way.needs_mysql("requests for each of these")
    flag = {"client_flag": MULTI_STATEMENTS} if several else {}
    guard = SQLAlchemyGuard(shop.connect(pool_size=1, max_overflow=0, connect_args=flag))
    guard.claim(OTHER)
    guard.claim(MINE)
    sent = note_requests(monkeypatch)

    def requests(*expected: str) -> None:
        parts = [each for request in expected for each in ([request] if several else request.split())]
        assert firsts(sent) == parts

    guard.write(MINE, ADD)
    requests("SET UPDATE", "UPDATE", "COMMIT SET")
    with guard.begin(MINE):
        pass
    requests("SET UPDATE SAVEPOINT", "RELEASE", "COMMIT SET")
    with guard.begin(MINE, OTHER):
        pass
    if several:
        requests("SET UPDATE SAVEPOINT", "UPDATE", "RELEASE", "COMMIT SET")
    else:
        requests("SET", "UPDATE", "UPDATE", "SAVEPOINT", "RELEASE", "COMMIT SET")
    guard.claim(MINE)
    requests("SET UPDATE SELECT", "COMMIT SET")
    shop.guard.write(MINE, ADD)
    sent.clear()
    guard.write(MINE, ADD)
    requests("SET UPDATE", "SELECT", "UPDATE", "COMMIT SET")


@pytest.mark.thorough
def test_the_requests_of_a_write_on_mysql_through_asyncio(sql_ways: WayLender, monkeypatch: pytest.MonkeyPatch) -> None:
    with sql_ways.lend("aiomysql") as way:
        way.needs_mysql("requests for each of these")
        guard = way.new_guard(size=1)
        way.side.call(guard.claim, MINE)
        way.write(MINE, ADD_SQL, guard=guard)
        sent: list[str] = []
        execute = AiomysqlConnection._execute_command

        async def note(self: Any, command: Any, sql: Any) -> Any:
            sent.append(sql if isinstance(sql, str) else bytes(sql).decode())
            return await execute(self, command, sql)

        monkeypatch.setattr(AiomysqlConnection, "_execute_command", note)
        way.write(MINE, ADD_SQL, guard=guard)
        assert firsts(sent) == ["SET UPDATE", "UPDATE", "COMMIT SET"]


def test_a_commit_that_begins_another_transaction(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool rolls back, as without a guard."""
    engine = shop.connect(pool_size=1, max_overflow=0)
    guard = SQLAlchemyGuard(engine)
    guard.claim(MINE)
    guard.write(MINE, ADD)
    sent = note_requests(monkeypatch)
    with guard.begin(MINE) as connection:
        connection.execute(text("SET completion_type = 'CHAIN'"))
    assert sent[-1] == "ROLLBACK"


@pytest.mark.thorough
@pytest.mark.parametrize("name", TO_MARIADB)
def test_a_restoration_that_fails_behind_the_commit(
    sql_ways: WayLender, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit was answered, so the write has landed. The connection is closed, because its settings are changed."""
    with sql_ways.lend(name) as way:
        way.needs_mysql("restoration with an answer of its own")
        flag: dict[str, Any] = {} if name == "aiomysql" else {"connect_args": {"client_flag": MULTI_STATEMENTS}}
        guard = way.new_guard(size=1, **flag)
        way.side.call(guard.claim, MINE)
        with way.begin(MINE, guard=guard) as block:
            before = block.scalar("SELECT CONNECTION_ID()")
        with monkeypatch.context() as patch:
            patch.setattr(mysql_bounds, "_settings", lambda _: (mysql_settings(False, 10)[0], "SET nonsense = 1"))
            assert way.write(MINE, ADD_SQL, guard=guard) == 1
        with way.begin(MINE, guard=guard) as block:
            assert block.scalar("SELECT CONNECTION_ID()") != before
            assert block.scalar("SELECT @@SESSION.wait_timeout") == 10
        assert way.total == 1


def test_a_hook_and_a_log_see_the_commit(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """Without them the guard commits past the engine, which then rolls back nothing."""
    shop.guard.claim(MINE)
    engine = shop.connect(pool_size=1, max_overflow=0)
    guard = SQLAlchemyGuard(engine)
    guard.write(MINE, ADD)
    seen: list[str] = []
    for name in ("commit", "rollback"):
        event.listen(engine, name, lambda _, name=name: seen.append(name))
    guard.write(MINE, ADD)
    assert seen == ["commit"]
    logged = shop.connect(echo=True)
    guard = SQLAlchemyGuard(logged)
    guard.write(MINE, ADD)
    caplog.clear()
    guard.write(MINE, ADD)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("sqlalchemy.engine")]
    assert "COMMIT" in messages
    assert "ROLLBACK" not in messages
    assert shop.total == 4


# Bounds

BOUNDS = (
    "innodb_lock_wait_timeout",
    "lock_wait_timeout",
    "net_write_timeout",
    "net_read_timeout",
    "idle_transaction_timeout",
    "idle_write_transaction_timeout",
    "max_statement_time",
)


@pytest.mark.thorough
def test_connections_come_back_unchanged(shop: Shop) -> None:
    engine = shop.connect(pool_size=1, max_overflow=0)
    event.listen(
        engine, "connect", lambda connection, _: connection.cursor().execute("SET SESSION net_read_timeout = 77")
    )
    guard = SQLAlchemyGuard(engine, timeout=3.5)
    names = [*BOUNDS[:4], "wait_timeout", "transaction_isolation"] if shop.way.is_mysql else [*BOUNDS, "tx_isolation"]
    bounded = [4, 4, 4, 4, 4, 4, 3.5][: len(names) - 1]
    show = text("SELECT " + ", ".join(f"@@SESSION.{name}" for name in names))

    def settings() -> list[Any]:
        with engine.connect() as connection:
            return list(connection.execute(show).one())

    before = settings()
    assert before[3] == 77
    shop.guard.claim(OTHER)
    with guard.begin(MINE, claim=True) as connection:
        assert list(connection.execute(show).one())[:-1] == bounded
        guard.advance(connection, OTHER)
        assert list(connection.execute(show).one())[:-1] == bounded
    assert settings() == before
    with pytest.raises(ZeroDivisionError), guard.begin(MINE) as connection:
        assert list(connection.execute(show).one())[:-1] == bounded, "they come with the check, in one request"
        raise ZeroDivisionError
    with pytest.raises(StaleFence):
        guard.claim(Fence("orders:1", 1, "a" * 22))
    assert settings() == before
    with shop.guard.begin(MINE), pytest.raises(GuardUnavailable):
        guard.claim(NEWER, timeout=0.05)
    assert settings() == before
    with engine.connect() as connection:
        guard.advance(connection, MINE)
        while_joined = [
            4 if name in ("idle_write_transaction_timeout", "wait_timeout") else value
            for name, value in zip(names, before, strict=True)
        ]
        assert list(connection.execute(show).one()) == while_joined
        connection.rollback()
    assert settings() == before


@pytest.mark.thorough
def test_a_statement_of_the_block_is_bounded(shop: Shop) -> None:
    shop.way.needs_mariadb("max_statement_time")
    guard = SQLAlchemyGuard(shop.connect(), timeout=1.0)
    with pytest.raises(OperationalError, match="1969"), guard.begin(MINE, claim=True) as connection:
        connection.execute(text("SELECT SLEEP(20) FROM orders"))


def test_a_killed_session_is_the_blocks_error_and_then_forgotten(shop: Shop) -> None:
    shop.guard.claim(MINE)
    engine = shop.connect(pool_size=1, max_overflow=0)
    guard = SQLAlchemyGuard(engine)
    with pytest.raises(OperationalError), guard.begin(MINE) as connection:
        shop.sql(f"KILL {connection.execute(text('SELECT CONNECTION_ID()')).scalar_one()}")
        connection.execute(ADD)
    assert guard.write(MINE, ADD) == 1
    assert shop.total == 1


def test_a_connection_that_breaks_as_advance_restores_the_bounds(
    shop: Shop, mariadb_server: MariaDBServer, proxy: Callable[[MariaDBServer], Proxy]
) -> None:
    """The transaction is over. The caller is told by ``advance``, not by its own next statement."""
    shop.guard.claim(MINE)
    between = proxy(mariadb_server)
    engine = create_engine(between.url(shop.url))
    guard = SQLAlchemyGuard(engine)
    with Session(engine) as session:
        guard.advance(session, MINE)
        session.rollback()
        between.drop_request_when(lambda request: b"= @fencing_joined" in request)
        with pytest.raises(GuardUnavailable, match="did not answer"):
            guard.advance(session, MINE)
        session.rollback()
        guard.advance(session, MINE)
    engine.dispose()

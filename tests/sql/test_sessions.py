"""``guard.session``: an ORM session that serves and writes nothing older than its claim, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import ForeignKey, create_engine, delete, event, insert, select, text, update
from sqlalchemy.exc import IntegrityError, InvalidRequestError, OperationalError, PendingRollbackError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    make_transient_to_detached,
    mapped_column,
    relationship,
    scoped_session,
    sessionmaker,
)
from sqlalchemy.orm.exc import DetachedInstanceError

from fencing import Fence, GuardNotEnforceable, GuardUnavailable, OutcomeUnknown, StaleFence, UnclaimedFence
from storage_guards import SQLAlchemyGuard
from tests.support.sides import close_engine
from tests.support.sql_ways import MINE, NEWER, THROUGH_SQLALCHEMY, TO_SERVERS, Way, WayLender, ways


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int]
    lines: Mapped[list[Line]] = relationship(back_populates="order", cascade="all, delete-orphan")


class Line(Base):
    __tablename__ = "line"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    price: Mapped[int]
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    order: Mapped[Order] = relationship(back_populates="lines")


class Shop:
    """An order with a line, a guard, and the database seen past it. A block is a function of a sync session."""

    def __init__(self, way: Way) -> None:
        self.way, self.side, self.direct = way, way.side, way.outside
        Line.__table__.create(self.direct, checkfirst=True)  # type: ignore[attr-defined]
        with Session(self.direct) as session, session.begin():
            session.add(Line(id=1, price=3, order_id=1))
        self.engine = way.new_engine()
        self.guard: Any = way.guard_class(self.engine, timeout=10.0)

    def maker(self, *, bind: Any = None, **options: Any) -> Any:
        maker: Any = async_sessionmaker if self.side.asynchronous else sessionmaker
        return maker(bind, **options)

    def block(self, story: Callable[[Session], Any], *fences: Fence, claim: bool = True, **options: Any) -> Any:
        def run() -> Any:
            with self.guard.session(*fences or [MINE], claim=claim, **options) as session:
                return story(session)

        async def run_async() -> Any:
            async with self.guard.session(*fences or [MINE], claim=claim, **options) as session:
                return await session.run_sync(story)

        return self.side.call(run_async if self.side.asynchronous else run)

    def assert_refused(
        self, error: type[BaseException], match: str, story: Callable[[Session], Any], **options: Any
    ) -> None:
        with pytest.raises(error, match=match or None):
            self.block(story, **options)

    def read_before(self, entity: type[Any] = Order) -> Any:
        """As an application has it that read before it had the lock."""
        with Session(self.direct, expire_on_commit=False) as session:
            return session.get_one(entity, 1)

    def add_elsewhere(self, amount: int) -> None:
        with self.direct.begin() as connection:
            connection.execute(text("UPDATE orders SET total = total + :amount WHERE id = 1"), {"amount": amount})

    @property
    def total(self) -> int:
        with self.direct.connect() as connection:
            return int(connection.execute(text("SELECT total FROM orders WHERE id = 1")).scalar_one())


@pytest.fixture(params=ways("psycopg", "psycopg-async", of=THROUGH_SQLALCHEMY))
def shop(request: pytest.FixtureRequest, sql_ways: WayLender) -> Iterator[Shop]:
    with sql_ways.lend(request.param) as way:
        yield Shop(way)
        way.sql("DELETE FROM line")


on_postgresql = pytest.mark.parametrize(
    "shop", ways("psycopg", "psycopg-async", of=("psycopg", "psycopg-async", "asyncpg")), indirect=True
)


def add_one(session: Session) -> None:
    session.get_one(Order, 1).total += 1


# It is a begin


def test_it_checks_flushes_and_commits(shop: Shop) -> None:
    shop.assert_refused(UnclaimedFence, "", add_one, claim=False)
    shop.block(add_one)
    shop.block(add_one, claim=False)
    assert shop.total == 2
    assert shop.side.call(shop.guard.mark, "orders:1").seq == 2
    shop.side.call(shop.guard.claim, NEWER)
    shop.assert_refused(StaleFence, "", add_one, claim=False)
    assert shop.total == 2


def test_an_exception_undoes_it(shop: Shop) -> None:
    def story(session: Session) -> None:
        add_one(session)
        session.flush()
        raise ZeroDivisionError

    shop.assert_refused(ZeroDivisionError, "", story)
    assert shop.total == 0


def test_the_mark_is_locked_from_the_beginning(shop: Shop) -> None:
    """Before the session has sent anything: what it will read is current when it commits. Two sessions do not mix."""
    impatient = SQLAlchemyGuard(shop.direct, timeout=0.1)

    def story(session: Session) -> None:
        with pytest.raises(GuardUnavailable):
            impatient.claim(NEWER)
        with pytest.raises(GuardUnavailable), impatient.session(MINE):
            raise AssertionError("two sessions at once")
        add_one(session)

    shop.side.call(shop.guard.claim, MINE)
    shop.block(story, claim=False)
    assert shop.total == 1


def test_bulk_statements_go_the_same_way(shop: Shop) -> None:
    def story(session: Session) -> None:
        session.execute(insert(Order), [{"id": 2, "total": 5}, {"id": 3, "total": 6}])
        session.execute(update(Order).where(Order.id == 2).values(total=Order.total + 1))
        session.execute(delete(Order).where(Order.id == 3))
        session.bulk_insert_mappings(Order.__mapper__, [{"id": 4, "total": 9}])
        session.bulk_update_mappings(Order.__mapper__, [{"id": 4, "total": 10}])
        session.bulk_save_objects([Order(id=5, total=11)])

    def undone(session: Session) -> None:
        story(session)
        raise ZeroDivisionError

    shop.assert_refused(ZeroDivisionError, "", undone)
    shop.block(story)
    with shop.direct.connect() as connection:
        rows = connection.execute(text("SELECT id, total FROM orders ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [(1, 0), (2, 6), (4, 10), (5, 11)]


# What was read before the claim


def test_an_object_from_another_session_is_read_again(shop: Shop) -> None:
    order, line = shop.read_before(), shop.read_before(Line)
    assert (order.total, line.price) == (0, 3)
    shop.add_elsewhere(10)

    def story(session: Session) -> None:
        session.add_all([order, line])
        order.total += 1
        assert session.get_one(Order, 1) is order
        assert [one.id for one in order.lines] == [1]

    shop.block(story)
    assert shop.total == 11


def test_also_one_that_comes_in_by_a_relationship(shop: Shop) -> None:
    with Session(shop.direct, expire_on_commit=False) as session:
        order = session.get_one(Order, 1)
        [line] = order.lines
    with shop.direct.begin() as connection:
        connection.execute(text("UPDATE line SET price = price + 10"))

    def story(session: Session) -> int:
        session.add(order)
        assert line in session
        line.price += 1
        return line.price

    assert shop.block(story) == 14


@pytest.mark.parametrize("way", ["add", "cascade", "delete"])
def test_an_object_with_changes_from_before_is_refused(shop: Shop, way: str) -> None:
    order = shop.read_before()
    order.total += 1
    shop.add_elsewhere(10)

    def story(session: Session) -> None:
        if way == "add":
            session.add(order)
        elif way == "cascade":
            session.add(Line(id=2, price=1, order=order))
        else:
            session.delete(order)

    shop.assert_refused(ValueError, "changed since", story)
    assert shop.total == 10

    def swallowed(session: Session) -> None:
        with pytest.raises(ValueError, match="changed since"):
            story(session)

    if way != "cascade":  # there SQLAlchemy warns of the line, whose order is not in the session
        shop.block(swallowed)
    assert shop.total == 10


@pytest.mark.parametrize("way", ["add", "delete"])
def test_a_change_that_comes_along_is_refused_and_not_dropped(shop: Shop, way: str) -> None:
    """It would be lost without a word: the order's cascade expires its lines, too."""
    with Session(shop.direct, expire_on_commit=False) as session:
        order = session.get_one(Order, 1)
        [line] = order.lines

    def story(session: Session) -> None:
        line.price += 1
        if way == "add":
            session.add(order)
        else:
            session.delete(order)

    shop.assert_refused(ValueError, "this Line was loaded by another session and changed since", story)
    assert line.price == 4, "the caller's change was expired"


@pytest.mark.parametrize("way", ["merge", "merge without load", "merge_all", "cascade", "bulk_save_objects"])
def test_what_would_copy_old_values_is_refused(shop: Shop, way: str) -> None:
    """Also unchanged ones: merge writes all that was loaded."""
    order = shop.read_before()
    shop.add_elsewhere(10)

    def story(session: Session) -> None:
        if way == "merge":
            session.merge(order)
        elif way == "merge without load":
            session.merge(order, load=False)
        elif way == "merge_all":
            getattr(session, "merge_all", lambda orders: session.merge(orders[0]))([order])
        elif way == "cascade":
            session.merge(Line(id=2, price=1, order=order))
        else:
            order.total += 1
            session.bulk_save_objects([order])

    shop.assert_refused(ValueError, "Get it anew|get the objects? anew", story)
    assert shop.total == 10


def test_a_merge_of_ones_own_values_and_objects(shop: Shop) -> None:
    def story(session: Session) -> None:
        mine = session.get_one(Order, 1)
        assert session.merge(mine) is mine
        session.merge(Order(id=1, total=7))

    shop.block(story)
    assert shop.total == 7


def test_a_made_up_row_is_not_taken_for_current(shop: Shop) -> None:
    made_up = Order(id=1, total=100)
    make_transient_to_detached(made_up)

    def story(session: Session) -> None:
        session.add(made_up)
        made_up.total += 1

    shop.block(story)
    assert shop.total == 1


def test_objects_of_a_block_that_failed_carry_nothing_into_the_next(shop: Shop) -> None:
    kept: list[Order] = []

    def story(session: Session) -> None:
        kept.append(session.get_one(Order, 1))
        kept[0].total += 1
        session.flush()
        raise ZeroDivisionError

    shop.assert_refused(ZeroDivisionError, "", story)
    shop.add_elsewhere(10)

    def again(session: Session) -> None:
        session.add(kept[0])
        kept[0].total += 1

    shop.block(again)
    assert shop.total == 11


# The end is the guard's


@pytest.mark.parametrize("end", ["commit", "rollback", "close", "reset", "invalidate"])
def test_the_block_does_not_end_its_session(shop: Shop, end: str) -> None:
    def story(session: Session) -> None:
        add_one(session)
        getattr(session, end)()

    shop.assert_refused(GuardNotEnforceable, "leaves commit", story)
    assert shop.total == 0

    def swallowed(session: Session) -> None:
        add_one(session)
        with pytest.raises(GuardNotEnforceable):
            getattr(session, end)()
        add_one(session)

    shop.block(swallowed)
    assert shop.total == 2


@pytest.mark.parametrize("end", ["begin", "commit", "rollback", "connection"])
def test_nor_by_a_way_round(shop: Shop, end: str) -> None:
    def story(session: Session) -> None:
        add_one(session)
        if end == "begin":
            session.begin()
        elif end == "connection":
            session.flush()
            session.connection().rollback()
        else:
            transaction = session.get_transaction()
            assert transaction is not None
            getattr(transaction, end)()

    shop.assert_refused((GuardNotEnforceable, InvalidRequestError), "", story)  # type: ignore[arg-type]
    assert shop.total == 0


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK"])
def test_nor_in_sql(shop: Shop, statement: str) -> None:
    def story(session: Session) -> None:
        session.flush()
        session.connection().exec_driver_sql(statement)

    shop.assert_refused(GuardNotEnforceable, "not sound", story)
    assert shop.total == 0


def test_savepoints_are_the_blocks(shop: Shop) -> None:
    def story(session: Session) -> None:
        add_one(session)
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(insert(Order).values(id=1, total=0))
        with session.begin_nested() as savepoint:
            add_one(session)
            session.flush()
            savepoint.rollback()
        with session.begin_nested():
            add_one(session)
        session.begin_nested()
        add_one(session)

    shop.block(story)
    assert shop.total == 3


def test_a_failed_flush_that_was_swallowed(shop: Shop) -> None:
    def story(session: Session) -> None:
        add_one(session)
        session.add(Line(id=1, price=1, order_id=1))
        with pytest.raises(IntegrityError):
            session.flush()

    shop.assert_refused(PendingRollbackError, "", story)
    assert shop.total == 0


def test_the_session_is_of_no_use_afterwards(shop: Shop) -> None:
    kept: list[Any] = []

    def story(session: Session) -> None:
        kept.extend([session, session.get_one(Order, 1)])

    shop.block(story)
    session, order = kept
    with pytest.raises(DetachedInstanceError):
        assert order.total
    with pytest.raises(InvalidRequestError):  # its connection is closed
        session.execute(text("UPDATE orders SET total = 9"))
    session.close()
    assert shop.total == 0


# The caller's own sessions


def test_a_sessionmaker_keeps_options_class_and_events(shop: Shop) -> None:
    happened: list[str] = []

    class Mine(Session):
        pass

    if shop.side.asynchronous:
        maker = shop.maker(sync_session_class=Mine, expire_on_commit=False, autoflush=False, info={"tenant": 7})
    else:
        maker = shop.maker(bind=shop.engine, class_=Mine, expire_on_commit=False, autoflush=False, info={"tenant": 7})

    def before_commit(session: Session) -> None:
        happened.append("before_commit")
        session.add(Order(id=2, total=9))  # and leaves it to be flushed

    def after_commit(session: Session) -> None:
        happened.append(f"after_commit {shop.total}")

    event.listen(Mine, "before_commit", before_commit)
    event.listen(Mine, "after_commit", after_commit)
    event.listen(Mine, "after_rollback", lambda _: happened.append("after_rollback"))

    def story(session: Session) -> Order:
        assert isinstance(session, Mine)
        assert session.info == {"tenant": 7}
        assert not session.autoflush
        order = session.get_one(Order, 1)
        order.total += 1
        return order

    order = shop.block(story, factory=maker)
    assert (order.total, shop.total) == (1, 1)
    assert happened == ["before_commit", "after_commit 1"]
    with shop.direct.connect() as connection:
        assert connection.execute(select(Order.total).where(Order.id == 2)).scalar_one() == 9
    shop.assert_refused(ZeroDivisionError, "", lambda session: [session.get(Order, 1), 1 / 0], factory=maker)
    assert happened[2:] == ["after_rollback"]


@pytest.mark.parametrize("hook", ["before_commit", "after_flush"])
def test_a_hook_that_commits_is_noticed(shop: Shop, hook: str) -> None:
    """What hooks do as the block ends comes before the last look at the transaction."""

    class Mine(Session):
        pass

    event.listen(Mine, hook, lambda session, *_: session.connection().exec_driver_sql("COMMIT"))
    options: dict[str, Any] = {"sync_session_class" if shop.side.asynchronous else "class_": Mine}
    shop.assert_refused(GuardNotEnforceable, "not sound", add_one, factory=shop.maker(**options))


def test_sessions_that_begin_by_hand(shop: Shop) -> None:
    shop.block(add_one, factory=shop.maker(autobegin=False))
    assert shop.total == 1


def test_sessions_of_another_engine_are_refused(shop: Shop) -> None:
    create: Any = create_async_engine if shop.side.asynchronous else create_engine
    other = create(shop.engine.url)
    shop.assert_refused(ValueError, "this guard's marks are in", add_one, factory=shop.maker(bind=other))
    shop.assert_refused(TypeError, "factory is a", add_one, factory=Session)
    wrong: Any = sessionmaker() if shop.side.asynchronous else async_sessionmaker()
    shop.assert_refused(TypeError, "this is an? a?sync guard", add_one, factory=wrong)
    assert shop.total == 0


def test_two_phase_sessions_are_refused(shop: Shop) -> None:
    maker = shop.maker(twophase=True)
    shop.assert_refused(ValueError, "two-phase", add_one, factory=maker)
    scope: Any = async_scoped_session(maker, lambda: 1) if shop.side.asynchronous else scoped_session(maker)
    shop.assert_refused(ValueError, "two-phase", add_one, factory=scope)
    assert not scope.registry.has()
    assert shop.total == 0


def test_sessions_that_come_with_objects_are_refused(shop: Shop) -> None:
    order = shop.read_before()
    shop.add_elsewhere(10)

    class Mine(Session):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.add(order)

    options: dict[str, Any] = {"sync_session_class" if shop.side.asynchronous else "class_": Mine}
    shop.assert_refused(ValueError, "are not new", add_one, factory=shop.maker(**options))
    assert shop.total == 10


@pytest.mark.parametrize("swallowed", [False, True], ids=["raised", "swallowed"])
@pytest.mark.parametrize("way", ["binds", "get_bind", "bind_arguments"])
def test_nothing_goes_to_another_engine(shop: Shop, way: str, swallowed: bool) -> None:
    """It would not be checked, and not be committed with the rest."""
    plain = getattr(shop.engine, "sync_engine", shop.engine)
    other: Any = (create_async_engine if shop.side.asynchronous else create_engine)(shop.engine.url)
    other_plain = getattr(other, "sync_engine", other)
    options: dict[str, Any] = {}
    if way == "binds":
        options["binds"] = {Line: other, Order: shop.engine}
    elif way == "get_bind":

        class Routing(Session):
            def get_bind(self, mapper: Any = None, **_: Any) -> Any:
                return other_plain if mapper is not None and mapper.class_ is Line else plain

        options["sync_session_class" if shop.side.asynchronous else "class_"] = Routing
    arguments = {"bind_arguments": {"bind": other_plain}} if way == "bind_arguments" else {}

    def story(session: Session) -> None:
        add_one(session)
        session.flush()
        for _ in range(2):
            try:
                session.execute(update(Line).values(price=4), **arguments)
            except (GuardNotEnforceable, OperationalError):  # SQLite: locked
                if not swallowed:
                    raise

    shop.assert_refused(GuardNotEnforceable, "another engine", story, factory=shop.maker(**options))
    assert shop.total == 0
    with shop.direct.connect() as connection:
        assert connection.execute(select(Line.price)).scalar_one() == 3
    close_engine(shop.side, other)


def test_binds_to_the_guards_own_engine_are_its_connection(shop: Shop) -> None:
    shop.block(add_one, factory=shop.maker(binds={Order: shop.engine}))
    assert shop.total == 1


def test_a_scoped_session_is_the_guarded_one_inside(shop: Shop) -> None:
    maker = shop.maker(bind=shop.engine)
    scope: Any
    if shop.side.asynchronous:
        scope = async_scoped_session(maker, scopefunc=lambda: 1)
    else:
        scope = scoped_session(maker)

    def story(session: Session) -> None:
        inside = scope()
        assert getattr(inside, "sync_session", inside) is session
        add_one(session)

    shop.block(story, factory=scope)
    assert shop.total == 1
    assert not scope.registry.has()
    shop.assert_refused(ZeroDivisionError, "", lambda _: 1 / 0, factory=scope)
    assert not scope.registry.has()
    scope()
    shop.assert_refused(ValueError, "has a session already", add_one, factory=scope)
    assert scope.registry.has()
    shop.side.call(scope.remove)


# The commit's answer


@pytest.mark.parametrize("lost", ["reply", "request"])
@pytest.mark.parametrize("shop", ways("psycopg", "psycopg-async", "pymysql", of=TO_SERVERS), indirect=True)
def test_a_commit_without_an_answer(shop: Shop, lost: str) -> None:
    shop.block(add_one)
    after_commit: list[Session] = []

    def story(session: Session) -> None:
        event.listen(session, "after_commit", after_commit.append)
        add_one(session)
        session.flush()
        shop.way.lose(lost)

    with pytest.raises(OutcomeUnknown) as unknown:
        shop.block(story, claim=False)
    assert not after_commit
    assert shop.side.call(shop.guard.landed, unknown.value) is (lost == "reply")
    assert shop.total == (2 if lost == "reply" else 1)


@on_postgresql
def test_a_commit_that_is_refused(shop: Shop) -> None:
    shop.way.spoil()
    with shop.direct.begin() as connection:
        connection.execute(text("ALTER TABLE line ALTER CONSTRAINT line_order_id_fkey DEFERRABLE INITIALLY DEFERRED"))

    def story(session: Session) -> None:
        add_one(session)
        session.execute(insert(Line).values(id=2, price=1, order_id=7))

    shop.assert_refused(IntegrityError, "line_order_id_fkey", story)
    assert shop.total == 0


@pytest.mark.parametrize("hook", ["after_commit", "after_transaction_end"])
def test_a_hook_that_fails_after_the_commit(shop: Shop, hook: str) -> None:
    """The error of a database, of whichever, does not say that this commit was refused."""

    class Mine(Session):
        pass

    def audit(_: Session, transaction: Any = None) -> None:
        if transaction is None or transaction.parent is None:
            with shop.direct.begin() as connection:
                connection.execute(insert(Order).values(id=1, total=0))

    event.listen(Mine, hook, audit)
    options: dict[str, Any] = {"sync_session_class" if shop.side.asynchronous else "class_": Mine}
    with pytest.raises(OutcomeUnknown) as unknown:
        shop.block(add_one, factory=shop.maker(**options))
    assert isinstance(unknown.value.__cause__, IntegrityError)
    assert shop.side.call(shop.guard.landed, unknown.value) is True
    assert shop.total == 1


@on_postgresql
def test_the_blocks_own_error_where_the_connection_breaks(shop: Shop) -> None:
    """Its rollback fails, too, and does not hide it: a cancellation stays one."""

    class Cancelled(BaseException):
        pass

    def story(session: Session) -> None:
        pid = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
        with shop.direct.connect() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        raise Cancelled

    shop.assert_refused(Cancelled, "", story)
    shop.block(add_one)
    assert shop.total == 1


# Async alone


@pytest.mark.parametrize(
    "shop", ways("psycopg-async", of=("psycopg-async", "asyncpg", "aiomysql", "aiosqlite")), indirect=True
)
def test_a_cancelled_block_is_undone(shop: Shop) -> None:
    async def story() -> None:
        began = asyncio.Event()

        async def block() -> None:
            async with shop.guard.session(MINE, claim=True) as session:
                assert isinstance(session, AsyncSession)
                (await session.get_one(Order, 1)).total += 1
                await session.flush()
                began.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(block())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with shop.guard.session(MINE, claim=True) as session:
            (await session.get_one(Order, 1)).total += 1

    shop.side.call(story)
    assert shop.total == 1

"""One guarded transaction on a SQLAlchemy connection: begin, check first, run the block, and see that it is still open.

It is written once, for a plain :class:`~sqlalchemy.Connection`. An async guard runs the two ends of
:meth:`SQLAlchemyTransaction.on` with ``AsyncConnection.run_sync``, the second one shielded from cancellation.

Its connection comes from the user's engine, within the time that the guard's call has. An engine has no such bound: its
pool waits 30 s for a free connection, and some drivers connect for as long as bytes drip in. A thread itself takes a
connection that lies idle in the pool. Otherwise a helper thread waits for one or opens one, and the call waits for the
helper.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, Pool, QueuePool

from fencing.kernel import process
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.opening import BROKEN_OFF, Hanging, NotOpenYet, Opener, Opening
from fencing.kernel.retry import LEAST_SECONDS
from fencing.sql.connecting import MustConnect, connecting, here, hook, is_hooked, listen_once
from fencing.sql.dialects import MySQL, SQLite, dialect_of
from fencing.sql.own_engine import break_off
from fencing.sql.sessions import SESSIONS
from storage_guards.bounds import LEAST_CONNECT_SECONDS
from storage_guards.sql.shield import GRACE
from storage_guards.sql.transaction import GuardedTransaction
from storage_guards.sqlalchemy.errors import (
    DATABASE_ERRORS,
    NoConnection,
    commit_was_refused,
    lost_race,
    may_grow,
    transaction_is_gone,
)
from storage_guards.sqlalchemy.marks import Marks
from storage_guards.sqlalchemy.waits import Bounded, GivenBack, before_checkin, note_shut, shut, try_out, waits

T = TypeVar("T")

OPENING_SECONDS = 10.0
"""How long a connection may be opened when its call has given up: a later call may need it. Then it is broken off."""

Waited = Callable[[float], object]
"""Is told for how many seconds a call has waited for its connection."""

_sources: weakref.WeakKeyDictionary[Engine, _ConnectionSource] = weakref.WeakKeyDictionary()

_UNBOUNDED: AbstractContextManager[Any] = nullcontext()

_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end. Perhaps a statement failed and its error was "
    "swallowed: then nothing was written; put connection.begin_nested() around what may fail. Perhaps the block sent "
    "COMMIT or ROLLBACK as text or through the driver, or a statement that commits implicitly (on MariaDB and MySQL "
    "each CREATE, ALTER, TRUNCATE …): then what it wrote before is committed or not, and the rest of the same text may "
    "be written unchecked, but nothing later; leave the end to the guard"
)

_ENDED_BY_SQLALCHEMY = (
    "the block ended the checked transaction itself. After a rollback() or close() nothing was written; after a "
    "commit() all earlier writes are committed. Leave the end to the guard, and put connection.begin_nested() around "
    "what may be rolled back"
)


class SQLAlchemyTransaction(GuardedTransaction[Marks]):
    """A :class:`GuardedTransaction` on a SQLAlchemy connection."""

    unit_of_work: AbstractContextManager[None] = nullcontext()
    """The context in which the block runs. It may commit at its end, but not before :meth:`about_to_commit`."""
    commit_is_over = False
    """The commit was answered, so an error of the unit of work is no answer to it."""
    _connection: Connection | None = None
    _watched_seconds = 0.0
    _is_watched = False
    """Whether its socket is shut if an answer takes too long."""
    _bounded: Bounded | None = None
    """The same under asyncio."""

    def note_wait(self, seconds: float) -> None:
        """Note how long it took to get a connection. In a mere claim that is a part of the time for the mark's lock."""
        if not self.writes:
            self.seconds = max(self.seconds - seconds, LEAST_SECONDS)

    @contextmanager
    def on(self, connection: Connection) -> Iterator[Connection]:
        """Begin and admit the transaction on entry; commit it or roll it back on exit."""
        self._connection = connection
        # A server that has stopped does not keep its own bounds.
        self._begin_watch(connection, self.seconds * len(self.fences))
        try:
            with self._run_on(connection):
                yield connection
            self._end_watch()
        except BaseException as error:
            self._end_watch(error)
            raise

    @contextmanager
    def _run_on(self, connection: Connection) -> Iterator[None]:
        marks = self._marks
        marks.leave_others_alone(connection)
        bounds_of_session = _UNBOUNDED
        if marks.bounds_sessions:
            bounds_of_session = marks.bounded(connection, self.seconds, caller_block=self.caller_block)
        with bounds_of_session as bounds:
            root = connection.begin().__enter__()
            committed = False
            try:
                self.admit(connection, bounds)
                self._end_watch()
                if connection.invalidated:  # the answer came as it was shut, as where this process was frozen
                    raise self.errors.unanswered("the connection broke after the check", reached=True)
                if self.caller_block and not marks.dialect.begins_by_itself(connection):
                    # Otherwise what follows a COMMIT in the block would be committed without a check.
                    event.listen(connection, "before_cursor_execute", lambda *_: self._require_open(connection))
                try:
                    with self.unit_of_work:
                        yield
                    if not self._committing:
                        self.about_to_commit(connection)
                        committed = bounds is not None and marks.commit(bounds)
                except BaseException as error:
                    self.body_failed(error)
                    raise
            except BaseException as error:
                self._end_watch(error)
                self._watch_end(connection)
                if self._may_have_changed_session(connection, error):
                    connection.invalidate(error)
                root.__exit__(type(error), error, error.__traceback__)
                raise
            if not committed:
                root.__exit__(None, None, None)
            marks.require_current(connection)
            self.note_commit()

    def admit(self, connection: Connection, bounds: Any = None) -> None:
        """Claim or check.

        These are the first statements of a transaction or, if it is ``joined``, later ones of the caller's own
        transaction.
        """
        admitted = self._marks.admit(
            connection,
            self.fences,
            self.seconds,
            claim=self.claims,
            writes=self.writes,
            joined=self.joined,
            bounds=bounds,
        )
        self.files = self._marks.files_of(connection)
        self.check_continuity(admitted)
        if self.once is not None:
            self._marks.perform_behind(connection, self.plan_once(admitted[0], self.once), self.seconds)
        if self.caller_block:
            self._marks.note_transaction(connection, admitted[0], bounds)
        self._admitted = admitted

    def _may_have_changed_session(self, connection: Connection, error: BaseException) -> bool:
        """Return whether the block may have changed the connection's session, together with the end of the checked
        transaction: as LOCK TABLES and ``SET autocommit`` do. In the pool, it would surprise its next user."""
        if not self.caller_block or self._admitted is None or connection.closed or connection.invalidated:
            return False
        if isinstance(error, GuardNotEnforceable):
            return True
        return not lost_race(error) and self._marks.may_have_changed_session(
            connection, self._admitted[0], self.seconds
        )

    def about_to_commit(self, connection: Connection) -> None:
        """End the block's own work: from here on a missing answer means an unknown outcome.

        Raise GuardNotEnforceable where this is no longer the checked transaction.
        """
        self.require_own()
        if not connection.in_transaction():
            raise GuardNotEnforceable(_ENDED_BY_SQLALCHEMY)
        if not self.caller_block and self._marks.is_sound(connection):
            self._begin_commit(connection)
            return
        self._watch_end(connection)
        if self.writes and not self._marks.dialect.is_open(connection):  # a mere claim may be committed already
            raise GuardNotEnforceable(_ENDED_INSIDE)
        try:
            if self.caller_block and self._admitted and not self._is_same_transaction(connection):
                self.refuse(_ENDED_INSIDE)
            # Perhaps the end of the session: ask, before COMMIT is sent.
            if not self.caller_block and self._marks.has_unread(connection):
                connection.exec_driver_sql("SELECT 1").close()
        except DBAPIError as error:
            self.note_not_sent(error)
            raise
        self._begin_commit(connection)

    def _begin_commit(self, connection: Connection) -> None:
        self._committing = True
        self._watch_end(connection)

    def _watch_end(self, connection: Connection) -> None:
        """Bound what follows: the check at the block's end, the COMMIT or ROLLBACK, and the session's own bounds."""
        if not connection.dialect.is_async:  # there the whole end of the transaction is bounded
            self._begin_watch(connection, self.seconds)

    def _begin_watch(self, connection: Connection, seconds: float) -> None:
        """Shut the connection's socket when so many seconds have passed, and a little more."""
        dialect = self._marks.dialect
        if isinstance(dialect, SQLite):
            return
        if connection.dialect.is_async:
            self._bounded = Bounded(connection, dialect, seconds)
            self._bounded.__enter__()
            return
        # The same as Waits.begin, without a call: this is on the way of each write.
        now, self._watched_seconds = process.now(), dialect.refuses_within(seconds) + GRACE
        until = now + self._watched_seconds
        self._is_watched = True
        waits[self] = until, partial(shut, connection, dialect)
        if not now < waits.checks_at <= until:
            waits.check_at(until)

    def _end_watch(self, error: BaseException | None = None) -> None:
        if self._bounded is not None:
            self._bounded.__exit__(None, error, None)
        elif self._is_watched and waits.pop(self, None) is None and self._connection is not None:
            waits.wait_until_shut()
            note_shut(self._connection, self._watched_seconds, error)
        self._bounded, self._is_watched = None, False

    def is_over(self) -> bool:
        """Return whether it no longer holds the marks.

        SQLAlchemy drops a transaction when it is committed or rolled back, and calls hooks after that.
        """
        if super().is_over() or self._committed:
            return True
        connection = self._connection
        return self._admitted is not None and connection is not None and connection.get_transaction() is None

    def end_interrupted(self, error: BaseException) -> bool:
        """End what an interruption has left, as :meth:`GuardedTransaction.end_interrupted` does: also the connection's
        transaction."""
        connection = self._connection
        self._end_watch()
        if connection is not None and not connection.closed:
            self.hang_up(connection)
            if not connection.dialect.is_async:
                with suppress(*DATABASE_ERRORS):
                    connection.invalidate(error)
                    connection.close()
        return super().end_interrupted(error)

    def hang_up(self, connection: Connection | None) -> None:
        """Close the connection's socket."""
        self._marks.dialect.hang_up(connection)

    def lost_race(self, error: BaseException) -> bool:
        """Return whether ``error`` came only from concurrent transactions, so that the whole block may be repeated."""
        if isinstance(error, GuardUnavailable) and error is not self._body_error:
            return lost_race(error.__cause__)
        return lost_race(error)

    def _require_open(self, connection: Connection) -> None:
        self._marks.require_open(connection, _ENDED_INSIDE)

    def _is_same_transaction(self, connection: Connection) -> bool:
        """Return whether this still is the checked transaction, and the block has not begun another one."""
        assert self._admitted is not None
        try:
            return self._marks.is_same_transaction(connection, self._admitted[0], self.seconds)
        except DBAPIError as error:
            if not transaction_is_gone(error):
                raise
            return False

    def _socket_number(self) -> int | None:
        if self._connection is None:
            return None
        return self._marks.dialect.socket_number(self._connection.connection.driver_connection)

    def _commit_was_refused(self, error: BaseException) -> bool:
        return commit_was_refused(error) and not self.commit_is_over


def lend(engine: Engine, seconds: float, waited: Waited | None = None) -> AbstractContextManager[Connection]:
    """Return a connection of the engine, for a block that gives it back.

    Args:
        engine: a user's.
        seconds: how long to wait for a free connection, or for a new one; but at least one second.
        waited: is called where the pool had no idle one.

    Raises:
        NoConnection: there was none within this time.
    """
    process.pid()  # it notices a fork
    source = _sources.get(engine)
    if source is None:
        source = _sources.setdefault(engine, _ConnectionSource(engine))
    began = process.now()
    connection = source.take_idle(engine, seconds)
    if connection is None:
        connection = source.wait(engine, seconds - (process.now() - began))
        if waited is not None:
            waited(process.now() - began)
    return connection if source.rolls_back is None else GivenBack(connection, source.rolls_back, seconds)


class _ConnectionSource:
    """What lends the connections of one engine to threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)  # which is the key to this object
        self._opener = Opener(
            engine.url.render_as_string(hide_password=True),
            self._connect,
            partial(_give_back, self._engine),
            shares=False,
            hangs="in the wait for the pool, ",
        )
        self._taking: set[int] = set()  # the threads that take an idle connection
        dialect = dialect_of(engine)
        self._opens_at_once = isinstance(dialect, SQLite)  # for the thread that will use the connection
        self._is_hooked = False
        # The drivers of MariaDB and MySQL ask the server as a connection goes back to its pool.
        self.rolls_back = dialect if isinstance(dialect, MySQL) else None
        if self.rolls_back is not None:
            listen_once(engine.pool, "checkin", before_checkin)
        hook(engine)

    def take_idle(self, engine: Engine, seconds: float) -> Connection | None:
        """Return a connection without a wait, but that it is tried out where the pool does that (``pool_pre_ping``).

        None: the pool may have no idle one, or that must be opened anew.
        """
        this = threading.get_ident()
        self._taking.add(this)
        try:
            if self._may_wait(engine, len(self._taking)):
                return None
            if not self._opens_at_once:
                mine = here()
                mine.forbidden, mine.tries = engine.dialect, partial(try_out, dialect_of(engine), seconds)
            return engine.connect()
        except MustConnect:  # what lies idle has lost its connection, or that is too old
            return None
        finally:
            mine = here()
            mine.forbidden = mine.tries = None
            self._taking.discard(this)

    def _may_wait(self, engine: Engine, taking: int) -> bool:
        """Return whether so many threads may have to wait: for a connection, or until one is opened or tried out.

        Other pools than these have one connection for each thread, or one for all.
        """
        pool = engine.pool
        if not isinstance(pool, QueuePool):
            return isinstance(pool, NullPool) and not self._opens_at_once
        is_idle = pool.checkedin() >= taking
        if self._opens_at_once:
            return not is_idle and not may_grow(pool)
        self._is_hooked = self._is_hooked or is_hooked(engine)  # otherwise it would connect without asking
        # SQLAlchemy's attribute, seen in 2.0 and 2.1. A hook that tries something out, too, may take its time.
        tries_out = getattr(pool, "_pre_ping", True) and bool(pool.dispatch.checkout)
        return not is_idle or tries_out or not self._is_hooked

    def wait(self, engine: Engine, seconds: float) -> Connection:
        """Return a connection that a helper thread waits for."""
        seconds = max(seconds, LEAST_CONNECT_SECONDS)
        try:
            connection, _ = self._opener.open(seconds, max(seconds, OPENING_SECONDS))
        except NotOpenYet as error:
            raise NoConnection(engine, seconds, str(error) if isinstance(error, Hanging) else "") from error
        return connection

    def _connect(self, opening: Opening[tuple[Connection, Pool]]) -> tuple[Connection, Pool]:
        engine = self._engine()
        if engine is None:
            raise ReferenceError("the engine is gone")
        pool = engine.pool
        if self._opens_at_once:
            return engine.connect(), pool
        sessions = SESSIONS[type(dialect_of(engine))]
        bounds = {"connect_timeout": math.ceil(opening.left)}
        with connecting(engine, bounds, lambda made: opening.breaks_off_by(partial(break_off, sessions, made))):
            connection = engine.connect()
        if not opening.succeed():  # the pool would lend it again
            connection.invalidate()
            connection.close()
            raise NotOpenYet(BROKEN_OFF)
        return connection, pool


def _give_back(user: weakref.ref[Engine], opened: tuple[Connection, Pool]) -> None:
    """Give a connection that came too late to its pool. Close it if the engine was disposed of meanwhile."""
    connection, pool = opened
    connection.close()
    engine = user()
    if engine is None or engine.pool is not pool:  # nobody disposes of that one again
        pool.dispose()

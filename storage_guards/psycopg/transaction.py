"""One guarded transaction on a psycopg connection: begin, check first, run the block, and see that it is still open.

It is written once, as plans for ``wire``; the two guards perform these. Round trips: one to begin and check, one to
commit. A claim of one fence takes one altogether.
"""

from __future__ import annotations

import secrets

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import InsufficientPrivilege, InvalidCursorName, UndefinedFunction
from psycopg.pq import ExecStatus

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.psycopg.errors import commit_was_refused
from storage_guards.psycopg.plans import locate, locate_here
from storage_guards.psycopg.statements import COMMIT, AnyConnection, MarkAccess, limits, opening_of
from storage_guards.psycopg.wire import ask, failure_of, first_row, has_unread, is_open, perform, require_ready
from storage_guards.sql.plans import plan_check, plan_claim
from storage_guards.sql.transaction import GuardedTransaction

_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end. Perhaps a statement failed and its error was "
    "swallowed: then nothing was written; put connection.transaction() around what may fail. Perhaps the block sent "
    "COMMIT or ROLLBACK: then what it wrote before is committed or not, and the rest of the same request or pipeline "
    "may be written unchecked, but nothing later; leave the end to the guard. Perhaps it left a pipeline or a query "
    "open: then close it in the block"
)

_AUTOCOMMIT = (
    "the connection is in autocommit and outside any transaction, so the check would not hold until the write; "
    "call advance inside `with connection.transaction():`"
)

_NESTED = "a rollback to the savepoint would drop the check; advance outside nested transactions"


class PsycopgTransaction(GuardedTransaction[MarkAccess]):
    """A :class:`GuardedTransaction` whose plans are performed on one psycopg connection."""

    _connection: AnyConnection | None = None
    _cursor: str | None = None
    """The unique name of a cursor that ends with its transaction. Closing it proves that this still is the one."""

    @property
    def max_silence(self) -> float:
        """The seconds that the server may be silent: a request may wait for the lock of each mark."""
        return self.seconds * len(self.fences)

    def plan_begin(self, connection: AnyConnection) -> PQGen[None]:
        """Begin a transaction and admit the fences. A mere claim is also committed."""
        self._connection = connection
        self.errors.connected = True
        last: tuple[str, ...] = ()
        if self.caller_block:
            self._cursor = f"fencing_{secrets.token_hex(8)}"
            last = (f"DECLARE {self._cursor} NO SCROLL CURSOR FOR VALUES (1)",)
        if self._marks.located is None:
            yield from locate(connection, self._marks, self.seconds)
        plan = plan_claim(self.fences, self.writes) if self.claims else plan_check(self.fences)
        admitted = yield from perform(connection, self._marks, plan, self.seconds, last=last)
        self.check_continuity(admitted)
        if self.once is not None:
            yield from perform(connection, self._marks, self.plan_once(admitted[0], self.once), self.seconds)
        self._admitted = admitted
        if not self.writes:
            self.note_commit()

    def plan_advance(self, connection: AnyConnection) -> PQGen[None]:
        """Check the fences in a transaction of the caller's own. It is begun where there is none, and stays the
        caller's."""
        self._connection = connection
        self.errors.connected = True
        require_ready(connection)
        opening = limits(self.seconds)
        if not is_open(connection):
            if connection.autocommit:
                raise GuardNotEnforceable(_AUTOCOMMIT)
            opening = opening_of(connection, self.seconds)[0].split("; ")
        if self._marks.located is None:
            yield from locate_here(connection, self._marks)
        if self._marks.enforced is None:  # a refusal would undo the caller's transaction, so ask first, once
            [enforced] = yield from ask(connection, [self._marks.texts.is_enforced])
            self._marks.enforced = first_row(enforced) == ("t",)
        plan = plan_check(self.fences, seen="isolation", nested=_NESTED)
        try:
            admitted = yield from perform(connection, self._marks, plan, self.seconds, joining=opening)
        except (InsufficientPrivilege, UndefinedFunction):
            self._marks.enforced = None
            raise
        self.check_continuity(admitted)
        if self.once is not None:
            yield from perform(connection, self._marks, self.plan_once(admitted[0], self.once), self.seconds)
        self._admitted = admitted

    def plan_commit(self, connection: AnyConnection) -> PQGen[None]:
        """Commit, if this still is the checked transaction."""
        self.require_own()
        if not is_open(connection):
            self.refuse(_ENDED_INSIDE)
        if has_unread(connection):  # perhaps the end of the session: ask, before COMMIT is sent
            try:
                yield from ask(connection, ["SELECT 1"])
            except psycopg.Error as error:
                self.note_not_sent(error)
                raise
        self._committing = True  # from here on no answer means an unknown outcome
        last = [*([f"CLOSE {self._cursor}"] if self._cursor else []), COMMIT]
        connection.pgconn.send_query("; ".join(last).encode())
        results = yield from generators.execute(connection.pgconn)
        failure = None if results[-1].status == ExecStatus.COMMAND_OK else failure_of(connection, results)
        if self._cursor and len(results) == 1 and isinstance(failure, InvalidCursorName):
            self.refuse(_ENDED_INSIDE)
        if failure is not None:
            raise failure
        if results[-1].command_status != b"COMMIT":
            self.refuse(_ENDED_INSIDE)
        self.note_commit()

    def _socket_number(self) -> int | None:
        return None if self._connection is None else self._connection.pgconn.socket

    def _commit_was_refused(self, error: BaseException) -> bool:
        return commit_was_refused(error, closed=self._connection is None or self._connection.closed)

"""One guarded transaction on a psycopg connection: begin, check first, run the block, see that it is still open.

Written once, as plans for ``wire``; the guards differ in who waits for them. Trips to the
server: one to begin and check, one to commit, and a claim of one fence takes one in all.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import InsufficientPrivilege, InvalidCursorName, UndefinedFunction
from psycopg.pq.abc import PGresult

from fencing.kernel.admission import admit_write
from fencing.kernel.errors import GuardNotEnforceable, GuardUnavailable
from fencing.kernel.fence import Fence
from storage_guards.psycopg import statements as sql
from storage_guards.psycopg.claims import ROUNDS, claim_all, moving, to_mark
from storage_guards.psycopg.errors import commit_was_refused, explain
from storage_guards.psycopg.statements import AnyConnection, Way
from storage_guards.psycopg.wire import (
    ask,
    ask_prepared,
    failure_of,
    first_row,
    is_open,
    require_ready,
    send,
)
from storage_guards.sql.nesting import not_inside_another
from storage_guards.sql.outcome import Admitted

__all__ = ["GuardedTransaction", "admit", "to_admitted"]

_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end: either a statement failed and its error was swallowed "
    "(then nothing was written; put connection.transaction() around what may fail), or the block sent COMMIT or "
    "ROLLBACK (then what it wrote until that is committed or not, and nothing after it was written but, unchecked, the "
    "rest of the same request or pipeline), or it left a "
    "pipeline or a query open"
)

_AUTOCOMMIT = (
    "the connection is in autocommit and outside any transaction, so the check would not hold until the write; "
    "call advance inside `with connection.transaction():`"
)

_NESTED = "a rollback to the savepoint would drop the check; advance outside nested transactions"


class GuardedTransaction:
    """One use: a claim, a guarded block, or a check in a transaction of the caller's own.

    Args:
        way: to the marks.
        fences: sorted by resource, one each.
        seconds: the bound of every wait for a lock, and of every statement of the transaction.
        claim: raise the marks; else they must be the fences' own already.
        writes: what to add to the marks' seq: 1 for a block that may write, 0 for a mere claim.
        foreign_body: the block is the caller's, who can send anything, a COMMIT included: look again at its end.
    """

    _connection: AnyConnection | None = None
    _admitted: list[PGresult] | None = None
    """Read only where the outcome is unknown."""
    _body_error: BaseException | None = None
    _committing = False
    _committed = False
    joined = False
    """To a transaction of the caller's own."""

    def __init__(
        self,
        way: Way,
        fences: Sequence[Fence],
        seconds: float,
        *,
        claim: bool,
        writes: int = 1,
        foreign_body: bool = False,
    ) -> None:
        self._way = way
        self._fences = fences
        self.seconds = seconds
        self.silence = seconds * max(1, len(fences))  # of the server: a request may wait for the lock of each mark
        self._claim = claim
        self._writes = writes
        # A cursor ends with its transaction, and no other can have its name: closing it proves which one this is.
        self._cursor = f"fencing_{secrets.token_hex(8)}" if foreign_body else None
        self.foreign_body = foreign_body

    def enter(self, connection: AnyConnection) -> PQGen[None]:
        """Begin a transaction and admit the fences. A mere claim is committed, too."""
        self._connection = connection
        last = [f"DECLARE {self._cursor} NO SCROLL CURSOR FOR VALUES (1)"] if self._cursor else []
        self._admitted = yield from admit(
            connection, self._way, self._fences, self.seconds, claim=self._claim, writes=self._writes, last=last
        )

    def advance(self, connection: AnyConnection) -> PQGen[None]:
        """Check in a transaction of the caller's own, which is begun where there is none; it stays theirs."""
        self._connection = connection
        require_ready(connection)
        opening = sql.limits(self.seconds)
        if not is_open(connection):
            if connection.autocommit:
                raise GuardNotEnforceable(_AUTOCOMMIT)
            opening.insert(0, sql.begin(connection))
        if self._way.enforced is None:  # a refusal would undo the caller's transaction, so it is asked for, once
            [enforced] = yield from ask(connection, [sql.IS_ENFORCED])
            self._way.enforced = first_row(enforced) == ("t",)
        checks = [sql.check(self._way, connection, fence, joins=True) for fence in self._fences]
        try:
            results = yield from ask(connection, [*opening, *checks])
        except (InsufficientPrivilege, UndefinedFunction):
            self._way.enforced = None
            raise
        for row in map(first_row, results[len(opening) :]):
            if row is not None and row[-1] != "t":
                raise ValueError(_NESTED)
        checked = results[len(opening) :]
        for place, fence in enumerate(self._fences):
            if not checked[place].ntuples:
                checked[place] = yield from _verdict(connection, self._way, fence)
        self._admitted = checked

    def body_failed(self, error: BaseException) -> None:
        """The block raised it: nothing will be committed."""
        self._body_error = error

    def leave(self, connection: AnyConnection) -> PQGen[None]:
        """Commit, if this still is the transaction that was checked."""
        if not is_open(connection):
            self._refuse()
        self._committing = True  # from here on no answer means an unknown outcome
        results = yield from send(connection, [*([f"CLOSE {self._cursor}"] if self._cursor else []), sql.COMMIT])
        failure = failure_of(connection, results)
        if self._cursor and len(results) == 1 and isinstance(failure, InvalidCursorName):
            self._refuse()
        if failure is not None:
            raise failure
        if results[-1].command_status != b"COMMIT":
            self._refuse()
        self._committed = True

    def _refuse(self) -> None:
        self._body_error = GuardNotEnforceable(_ENDED_INSIDE)
        raise self._body_error

    def __enter__(self) -> None:
        """Around all of it, connecting included: give database errors the meaning they have at the point reached.

        An interruption (CancelledError, KeyboardInterrupt) stays what it is. If it came during the commit, so that the
        outcome is not known, its ``__cause__`` says so.

        Raises:
            RuntimeError: it would wait for a guarded block of the same thread or task.
        """
        self._alone: AbstractContextManager[None] = (
            nullcontext() if self.joined else not_inside_another(self._way, self._fences)
        )
        self._alone.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._alone.__exit__(None, None, None)
        if isinstance(error, psycopg.Error):
            meaning = self.meaning(error)
            if meaning is None:
                return True
            if meaning is error:
                return False
            if meaning is self._body_error:
                raise meaning  # with the cause that it has
            raise meaning from error
        if error is None or isinstance(error, Exception) or error.__cause__ is not None:
            return False
        if self._committing and not self._committed:
            raise error from self.meaning(error)
        return False

    def meaning(self, error: BaseException) -> BaseException | None:
        """What ``error``, which ended the transaction, says of it; None: nothing, for it is committed."""
        if self._committed:
            return None
        if self._body_error is not None:
            return self._body_error  # a rollback that failed after it changes nothing: the transaction is gone
        if self._admitted is None or not self._writes:
            if isinstance(error, psycopg.Error):
                return explain(error, self._fences, self.seconds, connected=self._connection is not None)
            return GuardUnavailable("the database did not answer in time; no data was written, retry")
        closed = self._connection is None or self._connection.closed
        if self._committing and not commit_was_refused(error, closed=closed):
            return to_admitted(self._fences[0], self._admitted[0]).unknown()
        return error


def admit(
    connection: AnyConnection,
    way: Way,
    fences: Sequence[Fence],
    seconds: float,
    *,
    claim: bool,
    writes: int,
    last: Sequence[str] = (),
) -> PQGen[list[PGresult]]:
    """Begin a transaction and claim or check, as its first statements. A mere claim is committed, too.

    Args:
        connection: idle.
        last: statements to send after these.

    Returns:
        For each fence an answer with the row (seq, recent_writes, xact).

    Raises:
        StaleFence, UnclaimedFence: the rule refuses one.
    """

    if claim:
        return (yield from claim_all(connection, way, fences, seconds, writes, last))
    results = yield from ask_prepared(
        connection,
        way,
        [sql.begin(connection), *sql.limits(seconds)],
        lambda prepared: [*[sql.check(way, connection, fence, prepared=prepared) for fence in fences], *last],
    )
    for place, fence in enumerate(fences):
        if not results[place].ntuples:
            results[place] = yield from _verdict(connection, way, fence)
    return results


def to_admitted(fence: Fence, answer: PGresult) -> Admitted:
    """What :func:`admit` returned for a fence, in Python's terms."""
    seq, recent_writes, transaction = (first_row(answer) or ("0", "", None))[:3]
    return Admitted(fence, int(seq or 0), recent_writes or "", transaction)


def _verdict(connection: AnyConnection, way: Way, fence: Fence) -> PQGen[PGresult]:
    """Why the check did not admit the fence, unless it does when it is made again."""
    read_mark = way.sql.read_mark.format(resource=sql.literal(connection, fence.resource))
    for _ in range(ROUNDS):
        [mark] = yield from ask(connection, [read_mark])
        admit_write(to_mark(mark), fence)
        [checked] = yield from ask(connection, [sql.check(way, connection, fence)])
        if checked.ntuples:
            return checked
    raise moving(fence)

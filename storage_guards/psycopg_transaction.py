"""One guarded transaction on a psycopg connection: begin, check first, run the block, see that it is still open.

Written once, as plans for :mod:`storage_guards.psycopg_wire`; the guards differ in who waits for them. Trips to the
server: one to begin and check, one to commit, and a claim of one fence takes one in all.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import InvalidCursorName

from fencing.errors import GuardNotEnforceable, GuardUnavailable
from fencing.fence import Fence, admit_write
from storage_guards import psycopg_statements as sql
from storage_guards.psycopg_claims import claim_all, to_mark
from storage_guards.psycopg_errors import commit_was_refused, explain
from storage_guards.psycopg_statements import AnyConnection
from storage_guards.psycopg_wire import Row, ask, ask_prepared, failure_of, is_open, require_ready, send
from storage_guards.recent_writes import Admitted

__all__ = ["GuardedTransaction"]

_ROUNDS = 3
"""How often a verdict is sought while claims of others come between the statement and the look at the mark."""

_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end: either a statement failed and its error was swallowed "
    "(then nothing was written; put connection.transaction() around what may fail), or the block sent COMMIT or "
    "ROLLBACK (then what it wrote until that is committed or not, and nothing after it was written), or it left a "
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
        fences: sorted by resource, one each.
        seconds: the bound of every wait for a lock, and of every statement of the transaction.
        claim: raise the marks; else they must be the fences' own already.
        writes: what to add to the marks' seq: 1 for a block that may write, 0 for a mere claim.
        foreign_body: the block is the caller's, who can send anything, a COMMIT included: look again at its end.
    """

    def __init__(
        self, fences: Sequence[Fence], seconds: float, *, claim: bool, writes: int = 1, foreign_body: bool = False
    ) -> None:
        self._fences = fences
        self.seconds = seconds
        self._claim = claim
        self._writes = writes
        # A cursor ends with its transaction, and no other can have its name: closing it proves which one this is.
        self._cursor = f"fencing_{secrets.token_hex(8)}" if foreign_body else None
        self._connection: AnyConnection | None = None
        self._admitted: list[Admitted] | None = None
        self._body_error: BaseException | None = None
        self._committing = False
        self._committed = False

    def enter(self, connection: AnyConnection) -> PQGen[None]:
        """Begin a transaction and admit the fences. A mere claim is committed, too."""
        self._connection = connection
        last = [f"DECLARE {self._cursor} NO SCROLL CURSOR FOR VALUES (1)"] if self._cursor else []
        if self._claim:
            self._admitted = yield from claim_all(connection, self._fences, self.seconds, self._writes, last)
            return
        opening = [sql.begin(connection), *sql.limits(self.seconds)]
        values = [sql.values_of(connection, fence) for fence in self._fences]
        rows = yield from ask_prepared(
            connection, opening, lambda prepared: [*(sql.check(each, prepared=prepared) for each in values), *last]
        )
        self._admitted = yield from self._verdicts(connection, rows)

    def advance(self, connection: AnyConnection) -> PQGen[None]:
        """Check in a transaction of the caller's own, which is begun where there is none; it stays theirs."""
        self._connection = connection
        require_ready(connection)
        opening: list[str] = []
        if not is_open(connection):
            if connection.autocommit:
                raise GuardNotEnforceable(_AUTOCOMMIT)
            opening = [sql.begin(connection)]
        opening += sql.limits(self.seconds)
        checks = [sql.check(sql.values_of(connection, fence)) for fence in self._fences]
        rows = yield from ask(connection, [*opening, *checks])
        self._admitted = yield from self._verdicts(connection, rows[len(opening) :])

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

    def _verdicts(self, connection: AnyConnection, rows: Sequence[Row | None]) -> PQGen[list[Admitted]]:
        admitted = []
        for fence, row in zip(self._fences, rows, strict=False):
            for _ in range(_ROUNDS):
                if row is not None:
                    break
                values = sql.values_of(connection, fence)
                [mark] = yield from ask(connection, [sql.read_mark(values["resource"])])
                admit_write(to_mark(mark), fence)
                [row] = yield from ask(connection, [sql.check(values)])
            if row is None:
                raise GuardUnavailable(
                    f"the mark of {fence.resource!r} changed at each of {_ROUNDS} attempts; retry",
                    resource=fence.resource,
                )
            seq, recent_writes, transaction, outside_savepoints = row
            if outside_savepoints != "t":
                raise ValueError(_NESTED)
            admitted.append(Admitted(fence, int(seq or 0), recent_writes or "", transaction))
        return admitted

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Around all of it, connecting included: give database errors the meaning they have at the point reached.

        An interruption (CancelledError, KeyboardInterrupt) stays what it is. If it came during the commit, so that the
        outcome is not known, its ``__cause__`` says so.
        """
        try:
            yield
        except psycopg.Error as error:
            meaning = self.meaning(error)
            if meaning is error:
                raise
            if meaning is not None and meaning is self._body_error:
                raise meaning  # noqa: B904 - with the cause that it has
            if meaning is not None:
                raise meaning from error
        except Exception:
            raise
        except BaseException as interruption:
            if self._committing and not self._committed and self._writes and interruption.__cause__ is None:
                raise interruption from self.meaning(interruption)
            raise

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
            return self._admitted[0].unknown()
        return error

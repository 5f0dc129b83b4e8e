"""Guarded blocks, which may not end their own transaction; and plans that begin and end theirs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.abc import PQGen

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.psycopg.sources import ENDS_THE_BLOCK, allow
from storage_guards.psycopg.statements import AnyConnection
from storage_guards.psycopg.transaction import PsycopgTransaction
from storage_guards.psycopg.wire import (
    hang_up,
    is_idle,
    require_idle,
    roll_back,
    run,
    run_async,
    shut,
    wait_for_turn,
    wait_for_turn_async,
)
from storage_guards.sql.shield import finish_within

T = TypeVar("T")
C = TypeVar("C", bound=AnyConnection)


class GuardedBlock:
    """A guarded transaction on a connection, from its check to its end.

    It gives a connection of the block's own over the same session: see :func:`_own`.
    """

    def __init__(self, connection: Connection[Any], transaction: PsycopgTransaction) -> None:
        self._connection = connection
        self._transaction = transaction

    def __enter__(self) -> Connection[Any]:
        require_idle(self._connection)
        self._autocommit = self._connection.autocommit
        try:
            if self._autocommit:  # in autocommit, what follows a COMMIT in the block would be committed at once
                self._connection.autocommit = False
            run(self._connection, self._transaction.plan_begin(self._connection), self._transaction.max_silence)
            if self._transaction.caller_block:
                _forbid(self._connection)
            self._lent = _own(self._connection)
        except BaseException:
            self._clean_up()
            raise
        return self._lent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            _revoke(self._lent)
            if error is None:
                if self._transaction.caller_block:
                    allow(self._connection)
                run(self._connection, self._transaction.plan_commit(self._connection), self._transaction.max_silence)
            else:
                self._transaction.body_failed(error)
        except psycopg.Error as failure:
            self._transaction.outcome_of(failure)  # whether it is a refusal is known only while the connection is open
            raise
        finally:
            if self._autocommit or not is_idle(self._connection):
                self._clean_up()
            if self._transaction.caller_block:
                allow(self._connection)

    def _clean_up(self) -> None:
        """Roll back what is not committed, or else close the connection. Ignore the database's errors."""
        allow(self._connection)
        try:
            if not is_idle(self._connection) and not self._connection.closed:
                wait_for_turn(self._connection, self._transaction.max_silence)
                roll_back(self._connection, self._transaction.max_silence)
            if self._autocommit and is_idle(self._connection):  # otherwise its source closes it: a pipeline is open
                self._connection.autocommit = True
        except psycopg.Error:
            hang_up(self._connection)


class AsyncGuardedBlock:
    """An async :class:`GuardedBlock`. Its end runs until it has an answer, whatever is cancelled: see
    ``sql/shield.py``."""

    def __init__(self, connection: AsyncConnection[Any], transaction: PsycopgTransaction) -> None:
        self._connection = connection
        self._transaction = transaction

    async def __aenter__(self) -> AsyncConnection[Any]:
        require_idle(self._connection)
        self._autocommit = self._connection.autocommit
        try:
            if self._autocommit:  # see GuardedBlock
                await self._connection.set_autocommit(False)
            await run_async(
                self._connection, self._transaction.plan_begin(self._connection), self._transaction.max_silence
            )
            if self._transaction.caller_block:
                _forbid(self._connection)
            self._lent = _own(self._connection)
        except BaseException:
            await finish_within(self._clean_up(), self._transaction.seconds, lambda: shut(self._connection))
            raise
        return self._lent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _revoke(self._lent)
        allow(self._connection)
        if error is not None:
            self._transaction.body_failed(error)
        end = self._end(commits=error is None)
        interruption, failure = await finish_within(end, self._transaction.seconds, lambda: shut(self._connection))
        self._transaction.raise_outcome(interruption, failure, error)

    async def _end(self, *, commits: bool) -> None:
        try:
            if commits:
                await run_async(
                    self._connection, self._transaction.plan_commit(self._connection), self._transaction.max_silence
                )
        finally:
            await self._clean_up()

    async def _clean_up(self) -> None:
        allow(self._connection)
        try:
            if not is_idle(self._connection) and not self._connection.closed:
                await wait_for_turn_async(self._connection, self._transaction.max_silence)
                await self._connection.rollback()
            if self._autocommit and is_idle(self._connection):  # see GuardedBlock
                await self._connection.set_autocommit(True)
        except psycopg.Error:
            hang_up(self._connection)


def run_alone(connection: Connection[Any], plan: PQGen[T], seconds: float) -> T:
    """Perform a plan that begins and ends its own transaction. Roll back what it leaves open."""
    require_idle(connection)
    try:
        return run(connection, plan, seconds)
    finally:
        try:
            if not is_idle(connection):
                roll_back(connection, seconds)
        except psycopg.Error:
            hang_up(connection)


async def run_alone_async(connection: AsyncConnection[Any], plan: PQGen[T], seconds: float) -> T:
    """Perform a plan as :func:`run_alone` does. The rollback takes at most ``seconds``, whatever is cancelled."""
    require_idle(connection)
    try:
        return await run_async(connection, plan, seconds)
    finally:
        if not is_idle(connection):
            await finish_within(_roll_back(connection), seconds, lambda: shut(connection))


async def _roll_back(connection: AsyncConnection[Any]) -> None:
    try:
        await connection.rollback()
    except psycopg.Error:
        hang_up(connection)


def _own(connection: C) -> C:
    """Return another connection object over the same session, for one block.

    A task or thread that keeps it, or a cursor of it, may outlive the block. With the connection of a pool, its next
    statement would be one of the next block over that connection, unchecked.
    """
    own = object.__new__(type(connection))
    _ = connection.adapters  # it makes them at its first use; the block's own ones would be dropped with the block
    vars(own).update(vars(connection), _pool=None)  # a pool takes back its own object alone
    return own


def _revoke(connection: AnyConnection) -> None:
    """Refuse whatever would still go to the session: each statement waits for its reply in ``wait``."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise psycopg.InterfaceError(
            "the guarded block of this connection has ended; begin another one, and read again"
        )

    vars(connection).update(dict.fromkeys(("wait", "cancel", "cancel_safe"), refuse))


def _forbid(connection: AnyConnection) -> None:
    """Refuse at once the methods that would end the checked transaction, as psycopg does in
    ``connection.transaction()``.

    A COMMIT that is sent as SQL is noticed at the block's end.
    """

    def refuse(*_: object, **__: object) -> NoReturn:
        raise GuardNotEnforceable(
            "a guarded block leaves commit(), rollback() and close() to the guard, which commits at the block's end "
            "and rolls back after an exception. Put connection.transaction() around what may be rolled back by itself"
        )

    vars(connection).update(dict.fromkeys(ENDS_THE_BLOCK, refuse))

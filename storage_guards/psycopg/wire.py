"""Several statements in one round trip: plans that psycopg's ``Connection.wait`` runs, sync or async.

psycopg itself sends BEGIN, each statement and COMMIT one by one. A plan here is a generator, like psycopg's own: it
puts a request on the connection and yields until the answer is there. The connection itself stays in its usual mode, so
everything of psycopg works in a guarded block.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection, Connection, errors, generators
from psycopg.abc import PQGen
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from fencing.kernel.sockets import shut_down
from storage_guards.psycopg.statements import PREPARED, ROLLBACK, AnyConnection, MarkAccess, opening_of, text_of
from storage_guards.sql.plans import Answers, Ask, Plan, Statement
from storage_guards.sql.schema import read_visible_tables
from storage_guards.sql.shield import GRACE
from storage_guards.sql.sockets import is_readable

T = TypeVar("T")
Row = tuple[str | None, ...]

ACCESS_REFUSED = (errors.InsufficientPrivilege, errors.UndefinedFunction)

prepared_on: WeakKeyDictionary[AnyConnection, dict[str, bool]] = WeakKeyDictionary()
"""By the name of the prepared check. True: PREPARE was sent. False: it does not last here (because of a pooler), so
statements are sent in full."""


_PAUSE = 0.005


def run(connection: Connection[Any], plan: PQGen[T], seconds: float) -> T:
    """Perform a plan. Give up when the server has been silent for so many seconds and a grace period.

    In the grace period the server's own refusal can still arrive.
    """
    if connection.lock.locked():
        wait_for_turn(connection, seconds)
    with connection.lock:
        return connection.wait(_limit_silence(plan, seconds + GRACE))


def roll_back(connection: Connection[Any], seconds: float) -> None:
    """Roll back as psycopg's ``rollback`` does, which has no bound, and give up as :func:`run` does."""
    run(connection, connection._rollback_gen(), seconds)


async def run_async(connection: AsyncConnection[Any], plan: PQGen[T], seconds: float) -> T:
    """Perform a plan as :func:`run` does."""
    if connection.lock.locked():
        await wait_for_turn_async(connection, seconds)
    async with connection.lock:
        return await connection.wait(_limit_silence(plan, seconds + GRACE))


def wait_for_turn(connection: Connection[Any], seconds: float) -> None:
    """Wait until the connection is free. Close it and raise OperationalError where it stays in use.

    psycopg locks a connection as long as a stream or a COPY is open, also for the thread that has left it open. The
    lock is not taken here: an interruption could leave it taken.
    """
    deadline = time.monotonic() + seconds
    while connection.lock.locked():
        if time.monotonic() > deadline:
            _give_up(connection, seconds)
        time.sleep(_PAUSE)


async def wait_for_turn_async(connection: AsyncConnection[Any], seconds: float) -> None:
    """Wait until the connection is free, as :func:`wait_for_turn` does, in an asyncio task."""
    deadline = time.monotonic() + seconds
    while connection.lock.locked():
        if time.monotonic() > deadline:
            _give_up(connection, seconds)
        await asyncio.sleep(_PAUSE)


def _give_up(connection: AnyConnection, seconds: float) -> NoReturn:
    shut(connection)  # another thread may wait on it
    raise psycopg.OperationalError(
        f"the connection was still in use after {seconds:.3g} s, perhaps by a stream or a COPY that was left open; "
        f"nothing was written"
    )


def send(connection: AnyConnection, statements: Sequence[str]) -> PQGen[list[PGresult]]:
    """Send the statements as one simple query. The server stops at the first that fails, so its result is the last."""
    pgconn = connection.pgconn
    request = "; ".join(statements)
    pgconn.send_query(request.encode() if request.isascii() else request.encode(connection.info.encoding))
    results: list[PGresult] = yield from generators.execute(pgconn)
    return results


def _limit_silence(plan: PQGen[T], seconds: float) -> PQGen[T]:
    """Run the plan, but give up after so many seconds of silence.

    psycopg 3.3 calls ten times a second meanwhile. Older versions do not: there the bounds are ``tcp_user_timeout``
    and, in asyncio guards, the bound of the transaction's end.
    """
    silent_since: float | None = None
    try:
        wanted = next(plan)
        while True:
            ready = yield wanted
            if ready:
                silent_since = None
            elif silent_since is None:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > seconds:
                raise psycopg.OperationalError(f"the server gave no answer for {seconds:.3g} s")
            wanted = plan.send(ready)
    except StopIteration as done:
        result: T = done.value
        return result


def failure_of(connection: AnyConnection, results: Sequence[PGresult]) -> psycopg.Error | None:
    """Return the error of the statement that failed, which is the last one. None: none failed."""
    if results[-1].status == ExecStatus.FATAL_ERROR:
        return errors.error_from_result(results[-1], encoding=connection.info.encoding)
    return None


def ask(connection: AnyConnection, statements: Sequence[str]) -> PQGen[list[PGresult]]:
    """Send the statements, and return the answer to each. Raise the error of the one that failed."""
    results = yield from send(connection, statements)
    failure = failure_of(connection, results)
    if failure is not None:
        raise failure
    return results


def perform(
    connection: AnyConnection,
    access: MarkAccess,
    plan: Plan[T],
    seconds: float,
    *,
    last: Sequence[str] = (),
    joining: Sequence[str] | None = None,
) -> PQGen[T]:
    """Perform a plan of ``sql/plans.py``. Each of its Asks is one request.

    Args:
        connection: idle, unless the plan joins a transaction.
        access: to the marks.
        plan: to perform.
        seconds: the bound of each wait.
        last: statements to send behind those that begin a transaction.
        joining: the statements to send before the first ones, in a transaction of the caller's own.
    """
    answers: Answers = None  # type: ignore[assignment]  # what a generator is first sent
    while True:
        try:
            asked = plan.send(answers)
        except StopIteration as done:
            result: T = done.value
            return result
        if asked.schema:
            access.locate(asked.schema)
        if asked.begins and joining is None:
            answers = yield from _begin_and_ask(connection, access, asked, seconds, last)
            continue
        statements = [text_of(connection, access, each, joins=joining is not None) for each in asked.statements]
        opening = joining if asked.begins and joining is not None else ()
        if asked.ends:
            statements.append(asked.ends)
        results = yield from ask(connection, [*opening, *statements])
        answers = _answers(connection, asked.statements, results[len(opening) :])


def _begin_and_ask(
    connection: AnyConnection, access: MarkAccess, asked: Ask, seconds: float, last: Sequence[str]
) -> PQGen[Answers]:
    """Begin a transaction and send statements at once. Prepared statements are prepared on the way, where they are not
    yet.

    Prepared statements can vanish at any time: psycopg itself sends DEALLOCATE ALL, after a rollback for instance. Then
    the transaction is begun again, twice at most.

    It is also begun again by the other access, once, if the access to the marks is refused. A role without privileges
    on the table is that of an application whose database enforces; or else the functions are gone.
    """
    refused: psycopg.Error | None = None
    vanished = 0
    statements = asked.statements
    opening, before = opening_of(connection, seconds, read_committed=asked.read_committed, idle=not asked.ends)
    closing = [*last, asked.ends] if asked.ends else last
    is_usual = bool(statements) and statements[0][0] in PREPARED  # the name of a Statement, or a character
    here, name = _NOTHING_PREPARED, ""
    texts = access.located
    if is_usual and texts is not None:
        name = texts.check_name
        found = prepared_on.get(connection)
        if found is None:
            found = prepared_on[connection] = {}
        here = found
    while True:
        enforced = access.enforced
        known = here.get(name) if is_usual and not enforced else False
        if known is None and (vanished == 2 or connection.prepare_threshold is None):
            known = here[name] = False
        prepare = texts.prepare if known is None and texts is not None else ()
        parts = [opening, *prepare]
        for each in statements:
            parts.append(text_of(connection, access, each, prepared=known is not False))
        # As send() does: each guarded write comes here, so nothing is called that is not needed.
        request, pgconn = "; ".join([*parts, *closing] if closing else parts), connection.pgconn
        pgconn.send_query(request.encode() if request.isascii() else request.encode(connection.info.encoding))
        results: list[PGresult] = yield from generators.execute(pgconn)
        if results[-1].status != ExecStatus.FATAL_ERROR:
            if known is None:
                here[name] = True
            return _answers(connection, statements, results[before + len(prepare) :])
        failure = failure_of(connection, results)
        if isinstance(failure, ACCESS_REFUSED):
            if refused is not None:
                access.enforced = not enforced
                raise refused if isinstance(failure, errors.UndefinedFunction) else failure
            refused = failure
            # The reverse of what it was before: another thread may have found out the same meanwhile.
            access.enforced = not enforced
        elif known and isinstance(failure, errors.InvalidSqlStatementName):
            here.pop(name, None)
            vanished += 1
        elif known is None and isinstance(failure, errors.DuplicatePreparedStatement):  # its answer was lost
            here[name] = True
            vanished += 1
        else:
            raise failure or AssertionError("a failure without an error")
        yield from ask(connection, [ROLLBACK])


_NOTHING_PREPARED: dict[str, bool] = {}


def _answers(connection: AnyConnection, statements: Sequence[Statement | str], results: Sequence[PGresult]) -> Answers:
    answers: Answers = []
    for each, result in zip(statements, results, strict=False):
        if result.status != ExecStatus.TUPLES_OK:
            answers.append(int(result.command_tuples or 0))
        elif type(each) is str:
            answers.append(all_rows(connection, result))
        elif each[0] == "visible_tables":
            answers.append(read_visible_tables(all_rows(connection, result)[0][0] or ""))
        elif each[7]:  # a key is any text
            answers.append(next(iter(all_rows(connection, result)), None))
        else:
            answers.append(first_row(result))
    return answers


def all_rows(connection: AnyConnection, result: PGresult) -> list[Row]:
    """Return the rows of an answer as texts."""
    encoding = connection.info.encoding
    values = [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]
    return [tuple([None if value is None else value.decode(encoding) for value in row]) for row in values]


def require_ready(connection: AnyConnection) -> None:
    """Raise ValueError where the connection cannot take a statement at once."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise ValueError(
            "the connection is in pipeline mode, where statements are sent before the check was answered; "
            "leave the pipeline first"
        )
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INERROR:
        raise ValueError("the connection's transaction has failed; roll it back first")
    if status == TransactionStatus.ACTIVE:
        raise ValueError("the connection is busy with another statement; read its results to their end first")


def require_idle(connection: AnyConnection) -> None:
    """Raise ValueError where the guard cannot begin a transaction of its own."""
    if is_idle(connection):
        return
    require_ready(connection)
    if connection.pgconn.transaction_status == TransactionStatus.INTRANS:
        raise ValueError(
            "the connection is in a transaction already, which the guard would commit: end it first (a SELECT also "
            "begins one), or check inside it with advance()"
        )


def is_idle(connection: AnyConnection) -> bool:
    """Return whether the connection is outside any transaction, and usable."""
    pgconn = connection.pgconn
    return pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF


def is_open(connection: AnyConnection) -> bool:
    """Return whether the driver reports a sound open transaction, ready for the next statement."""
    pgconn = connection.pgconn
    return pgconn.transaction_status == TransactionStatus.INTRANS and pgconn.pipeline_status == PipelineStatus.OFF


def has_unread(connection: AnyConnection) -> bool:
    """Return whether the server has sent something unasked: a notification, or the end of the session."""
    return is_readable(connection.pgconn.socket)


def hang_up(connection: AnyConnection) -> None:
    """Close the socket without a message to the server. No thread or task may wait on it."""
    connection.pgconn.finish()


def shut(connection: AnyConnection) -> None:
    """End what waits on the connection, without a message to the server. The connection is broken then."""
    if not connection.closed:
        shut_down(lambda: connection.pgconn.socket)


def first_row(result: PGresult) -> Row | None:
    """Return the first row of an answer without resources and keys, or None. All other columns are ASCII."""
    if not result.ntuples:
        return None
    row: Row = ()
    for column in range(result.nfields):
        value = result.get_value(0, column)
        row += (None if value is None else value.decode("ascii"),)
    return row

"""The guard's requests to PostgreSQL, as plans for ``wire``: admission, marks, outcomes, pruning, and the set-up."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import generators
from psycopg.abc import PQGen
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardNotEnforceable, OutcomeUnknown
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from storage_guards.continuity import new_id
from storage_guards.psycopg import statements as sql
from storage_guards.psycopg.statements import AnyConnection, MarkAccess
from storage_guards.psycopg.wire import (
    ACCESS_REFUSED,
    ask,
    ask_prepared,
    failure_of,
    first_row,
    prepared_on,
    with_fallback,
)
from storage_guards.sql import pruning as pruning_sql
from storage_guards.sql.errors import ASK_AGAIN, ROUNDS, keeps_changing
from storage_guards.sql.outcome import Admitted, Settled, verdict
from storage_guards.sql.pruning import NO_FLOOR, Pruning, on_postgresql
from storage_guards.sql.schema import VisibleTables, read_visible_tables
from storage_guards.sql.verify import VerifyReport, assess_postgresql, postgresql_facts


def admit(
    connection: AnyConnection,
    access: MarkAccess,
    fences: Sequence[Fence],
    seconds: float,
    *,
    claim: bool,
    writes: int,
    last: Sequence[str] = (),
) -> PQGen[list[PGresult]]:
    """Begin a transaction, and claim or check as its first statements. A mere claim is also committed.

    Args:
        connection: idle.
        last: statements to send after these.

    Returns:
        For each fence an answer with the row (seq, recent_writes, xact).

    Raises:
        StaleFence, UnclaimedFence: the rule refuses a fence.
    """

    if access.located is None:
        yield from locate(connection, access, seconds)
    if claim:
        return (yield from _claim_all(connection, access, fences, seconds, writes, last))
    # The usual case: the check is prepared on this connection. Each guarded write comes here, so nothing is called that
    # is not needed.
    name = access.located.check_name if access.located is not None else ""
    here = prepared_on.get(connection)
    if here is not None and here.get(name) and not access.enforced:
        pgconn = connection.pgconn
        parts = [sql.begin(connection), *sql.limits(seconds)]
        for fence in fences:
            resource = sql.literal(connection, fence.resource)
            parts.append(f"EXECUTE {name} ({resource}, {fence.number}, '{fence.token}', '{new_id()}')")
        before = len(parts) - len(fences)
        request = "; ".join([*parts, *last] if last else parts)
        pgconn.send_query(request.encode() if request.isascii() else request.encode(connection.info.encoding))
        results: list[PGresult] = yield from generators.execute(pgconn)
        if results[-1].status != ExecStatus.FATAL_ERROR:
            checked = results[before : before + len(fences)]
            for place, fence in enumerate(fences):
                if not checked[place].ntuples:
                    checked[place] = yield from check_again(connection, access, fence)
            return checked
        failure = failure_of(connection, results)
        if isinstance(failure, InvalidSqlStatementName):
            here.pop(name, None)
        elif not isinstance(failure, ACCESS_REFUSED):
            raise failure or AssertionError("a failure without an error")
        yield from ask(connection, [sql.ROLLBACK])
    results = yield from ask_prepared(
        connection,
        access,
        [sql.begin(connection), *sql.limits(seconds)],
        lambda prepared: [*(sql.check(access, connection, fence, prepared=prepared) for fence in fences), *last],
    )
    for place, fence in enumerate(fences):
        if not results[place].ntuples:
            results[place] = yield from check_again(connection, access, fence)
    return results


def to_admitted(fence: Fence, answer: PGresult) -> Admitted:
    """Return the result of :func:`admit` for a fence as Python values."""
    seq, recent_writes, transaction = answer.get_value(0, 0), answer.get_value(0, 1), answer.get_value(0, 2)
    return Admitted(
        fence,
        int(seq or 0),
        (recent_writes or b"").decode("ascii"),
        None if transaction is None else transaction.decode(),
    )


def check_again(connection: AnyConnection, access: MarkAccess, fence: Fence) -> PQGen[PGresult]:
    """Raise the reason why the check did not admit the fence, unless it admits the fence when it is repeated."""
    read_mark = access.sql.read_mark.format(resource=sql.literal(connection, fence.resource))
    for _ in range(ROUNDS):
        [mark] = yield from ask(connection, [read_mark])
        admit_write(_to_mark(mark), fence)
        [checked] = yield from ask(connection, [sql.check(access, connection, fence)])
        if checked.ntuples:
            return checked
    raise keeps_changing(fence)


def _claim_all(
    connection: AnyConnection,
    access: MarkAccess,
    fences: Sequence[Fence],
    seconds: float,
    writes: int,
    last: Sequence[str],
) -> PQGen[list[PGresult]]:
    """Begin a transaction and raise each mark to its fence.

    A mere claim (``writes`` is 0) is committed at its end. A mere claim of one fence is sent together with its COMMIT:
    a claim that is refused has changed nothing, and one that arrives late does no harm.

    Args:
        connection: idle.
        access: to the marks.
        fences: sorted by resource.
        seconds: the bound of each wait.
        writes: what to add to the marks' seq.
        last: statements at the end of the transaction's beginning.

    Returns:
        For each fence an answer with the row (seq, recent_writes, xact).

    Raises:
        StaleFence: the rule refuses a fence.
    """
    # READ COMMITTED: a claim that has waited must see the mark that it waited for. A block keeps its own level.
    at_once = not writes and len(fences) == 1
    opening = [sql.begin(connection, read_committed=not writes), *sql.limits(seconds, idle=not at_once)]
    values = [sql.values_of(connection, fence, writes) for fence in fences]
    results = yield from ask_prepared(
        connection,
        access,
        opening,
        lambda prepared: [
            *(sql.claim(access, each, prepared=prepared) for each in values),
            *last,
            *([sql.COMMIT] if at_once else ()),
        ],
    )
    admitted = [result for result in results[: len(fences)] if result.ntuples]
    if len(admitted) < len(fences):
        if len(fences) > 1:  # begin again, so that all marks are locked in their order, also absent ones
            yield from ask(connection, [sql.ROLLBACK, *opening, *last])
        around = (opening, [sql.COMMIT]) if at_once else ([], [])
        admitted = []
        for fence in fences:
            admitted.append((yield from _claim_one(connection, access, fence, writes, around)))
    if not writes and not at_once:
        yield from ask(connection, [sql.COMMIT])
    return admitted


def _claim_one(
    connection: AnyConnection,
    access: MarkAccess,
    fence: Fence,
    writes: int,
    around: tuple[Sequence[str], Sequence[str]],
) -> PQGen[PGresult]:
    """Raise the mark to the fence, or make it where there is none.

    Args:
        around: what to send before and after, where each request is a transaction of its own.
    """

    def answers(*statements: str) -> PQGen[list[PGresult]]:
        before, after = around
        results = yield from ask(connection, [*before, *statements, *after])
        return results[len(before) : len(before) + len(statements)]

    values = sql.values_of(connection, fence, writes)
    for _ in range(ROUNDS):
        # The floor is locked until this transaction ends, so the next statement reads it as it is.
        floor, claimed = yield from answers(access.sql.lock_floor, access.sql.first_claim.format(**values))
        if claimed.ntuples:
            return claimed
        mark, floor = yield from answers(access.sql.read_mark.format(**values), access.sql.read_floor)
        found, row = _to_mark(mark), first_row(floor)
        if found is None and row is None:
            raise GuardNotEnforceable(NO_FLOOR)
        admit_claim(found, fence, int((row and row[0]) or 0))
        [claimed] = yield from answers(sql.claim(access, values))  # where there is a mark, it counts, and not the floor
        if claimed.ntuples:
            return claimed
    raise keeps_changing(fence)


def locate(connection: AnyConnection, access: MarkAccess, seconds: float) -> PQGen[None]:
    """Look up the mark table's schema, on an idle connection. It takes one round trip, once for each guard."""
    opening = [sql.begin(connection), *sql.limits(seconds, idle=False)]
    results = yield from ask(connection, [*opening, sql.VISIBLE_TABLES, sql.ROLLBACK])
    access.locate(access.choice.of(_to_visible_tables(connection, results[-2])))


def locate_here(connection: AnyConnection, access: MarkAccess) -> PQGen[None]:
    """Look up the mark table's schema, in the connection's transaction or outside any."""
    [visible] = yield from ask(connection, [sql.VISIBLE_TABLES])
    access.locate(access.choice.of(_to_visible_tables(connection, visible)))


def create_tables(connection: AnyConnection, access: MarkAccess, seconds: float) -> PQGen[None]:
    """Create the table and its floor row where they are missing. Two processes may do it at once: one waits for the
    other, and then finds the table."""
    # READ COMMITTED: the query must see what it has waited for.
    # Bounds for idling, too: a client that stands still between the requests must not keep the lock from all others.
    opening = [sql.begin(connection, read_committed=True), *sql.limits(seconds)]
    results = yield from ask(connection, [*opening, sql.LOCK_CREATION, sql.VISIBLE_TABLES])
    visible = _to_visible_tables(connection, results[-1])
    schema = access.choice.to_create(visible)
    if schema is not None:
        access.locate(schema)
        yield from ask(connection, [*sql.create(access.texts), sql.COMMIT])
        return
    access.locate(access.choice.of(visible))
    [floor, _] = yield from ask(connection, [access.texts.direct.read_floor, sql.COMMIT])
    if not floor.ntuples:
        yield from ask(connection, [*opening, sql.make_floor(access.texts, new=False), sql.COMMIT])


def read_mark(connection: AnyConnection, access: MarkAccess, resource: str, seconds: float) -> PQGen[Mark | None]:
    """Read the mark. It locks nothing, so the mark may change at any time."""
    if access.located is None:
        yield from locate(connection, access, seconds)
    read = access.texts.direct.read_mark.format(resource=sql.literal(connection, resource))
    results = yield from ask(connection, [sql.begin(connection), *sql.limits(seconds, idle=False), read, sql.COMMIT])
    return _to_mark(results[-2])


def settle(
    connection: AnyConnection, access: MarkAccess, unknown: OutcomeUnknown, seconds: float
) -> PQGen[bool | None]:
    """Return whether the write has landed: lock the mark, read it, and leave everything as it was.

    It takes one round trip, unless the mark is inserted or deleted meanwhile.
    """
    if access.located is None:
        yield from locate(connection, access, seconds)
    return (yield from with_fallback(connection, access, lambda: _settle(connection, access, unknown, seconds)))


def _settle(
    connection: AnyConnection, access: MarkAccess, unknown: OutcomeUnknown, seconds: float
) -> PQGen[bool | None]:
    opening = [sql.begin(connection, read_committed=True), *sql.limits(seconds, idle=False)]
    values = sql.values_of(connection, unknown.fence)
    marks = access.sql
    probes = [text.format(**values) for text in (marks.lock_mark, marks.lock_absence, marks.lock_floor)]
    for _ in range(ROUNDS):
        results = yield from ask(connection, [*opening, *probes, sql.ROLLBACK])
        mark, absent, floor = map(first_row, results[len(opening) : -1])
        if mark is not None or absent is not None:
            settled = Settled(
                recent_writes=None if mark is None else mark[0],
                table="" if floor is None else floor[1] or "",
                floor=MAX_NUMBER if floor is None else int(floor[0] or 0),
            )
            return verdict(unknown, settled)
    raise keeps_changing(unknown.fence, ASK_AGAIN)


def prune(connection: AnyConnection, access: MarkAccess, pruning: Pruning, seconds: float) -> PQGen[int]:
    """Delete marks, one round trip for each transaction.

    DELETE is a statement after the one that locked the floor, so it sees the marks as they are then.
    """
    if access.located is None:
        yield from locate(connection, access, seconds)
    deleted, left = 0, pruning
    while True:
        statements = on_postgresql(access.texts.table, left)
        opening = [sql.begin(connection, read_committed=True), *sql.limits(seconds, idle=False)]
        count_implausible = pruning_sql.count_implausible(access.texts.table)
        results = yield from ask(
            connection, [*opening, count_implausible, statements.raise_floor, statements.delete, sql.COMMIT]
        )
        floor = first_row(results[-3])
        if floor is None:
            raise GuardNotEnforceable(NO_FLOOR)
        count = int(results[-2].command_tuples or 0)
        deleted += count
        rest = left.next_batch(int(floor[0] or 0), count)
        if rest is None:
            pruning_sql.warn_of_implausible(int((first_row(results[-4]) or ("0",))[0] or 0))
            return deleted
        left = rest


def verify(connection: AnyConnection, access: MarkAccess, seconds: float) -> PQGen[VerifyReport]:
    """Look up the mark table anew, ask for the facts, and assess them."""
    opening = [sql.begin(connection), *sql.limits(seconds, idle=False)]
    yield from locate(connection, access, seconds)
    results = yield from ask(connection, [*opening, postgresql_facts(access.texts.schema), sql.ROLLBACK])
    info = connection.info
    facts = (results[-2].get_value(0, 0) or b"").decode(info.encoding)
    parameters = None if info.host.startswith("/") else info.get_parameters()
    return assess_postgresql(facts, access.texts.schema, pid=info.backend_pid, parameters=parameters)


def execute(connection: AnyConnection, statement: str, question: str, seconds: float) -> PQGen[list[str]]:
    """Execute one statement in a transaction of its own, and return the texts that answer the question."""
    opening = [sql.begin(connection), *sql.limits(seconds, idle=False)]
    results = yield from ask(connection, [*opening, statement, question, sql.COMMIT])
    answer = results[-2]
    encoding = connection.info.encoding
    return [(answer.get_value(row, 0) or b"").decode(encoding) for row in range(answer.ntuples)]


def _to_visible_tables(connection: AnyConnection, result: PGresult) -> VisibleTables:
    return read_visible_tables((result.get_value(0, 0) or b"").decode(connection.info.encoding))


def _to_mark(result: PGresult) -> Mark | None:
    """Return the mark in an answer (number, token, seq)."""
    row = first_row(result)
    return None if row is None else Mark(int(row[0] or 0), row[1] or "", int(row[2] or 0))

"""Claims in PostgreSQL: raising marks, all or none, and the first claim of a mark. Plans, as in ``wire``."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.abc import PQGen
from psycopg.pq.abc import PGresult

from fencing.kernel.admission import admit_claim
from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence, Mark
from storage_guards.psycopg import statements as sql
from storage_guards.psycopg.statements import AnyConnection, Way
from storage_guards.psycopg.wire import ask, ask_prepared, first_row

__all__ = ["ROUNDS", "claim_all", "moving", "to_mark"]

ROUNDS = 3
"""How often a verdict is sought while claims of others come between the statement and the look at the mark."""


def claim_all(
    connection: AnyConnection, way: Way, fences: Sequence[Fence], seconds: float, writes: int, last: Sequence[str]
) -> PQGen[list[PGresult]]:
    """Begin a transaction and raise each mark to its fence.

    A mere claim (``writes`` is 0) is committed at its end. Of one fence it is even sent together with its COMMIT: a
    claim that is refused has changed nothing, and one that arrives late does no harm.

    Args:
        connection: idle.
        way: to the marks.
        fences: sorted by resource.
        seconds: the bound of each wait.
        writes: what to add to the marks' seq.
        last: statements at the end of the transaction's beginning.

    Returns:
        For each fence an answer with the row (seq, recent_writes, xact).

    Raises:
        StaleFence: the rule refuses one.
    """
    # READ COMMITTED: a claim that has waited is judged by what it waited for. A block that may read gets its own level.
    at_once = not writes and len(fences) == 1
    opening = [sql.begin(connection, read_committed=not writes), *sql.limits(seconds, idle=not at_once)]
    values = [sql.values_of(connection, fence, writes) for fence in fences]
    results = yield from ask_prepared(
        connection,
        way,
        opening,
        lambda prepared: [
            *(sql.claim(way, each, prepared=prepared) for each in values),
            *last,
            *([sql.COMMIT] if at_once else ()),
        ],
    )
    admitted = [result for result in results[: len(fences)] if result.ntuples]
    if len(admitted) < len(fences):
        if len(fences) > 1:  # begin anew, so that marks are locked in their order, those that are absent included
            yield from ask(connection, [sql.ROLLBACK, *opening, *last])
        around = (opening, [sql.COMMIT]) if at_once else ([], [])
        admitted = []
        for fence in fences:
            admitted.append((yield from _claim_one(connection, way, fence, writes, around)))
    if not writes and not at_once:
        yield from ask(connection, [sql.COMMIT])
    return admitted


def _claim_one(
    connection: AnyConnection, way: Way, fence: Fence, writes: int, around: tuple[Sequence[str], Sequence[str]]
) -> PQGen[PGresult]:
    """Claim, whether there is a mark or not.

    Args:
        around: what to send before and after, where each request is a transaction of its own.
    """

    def answers(*statements: str) -> PQGen[list[PGresult]]:
        before, after = around
        results = yield from ask(connection, [*before, *statements, *after])
        return results[len(before) : len(before) + len(statements)]

    values = sql.values_of(connection, fence, writes)
    for _ in range(ROUNDS):
        # Nobody can raise the floor any more before this transaction ends; read in the next statement, it is current.
        floor, claimed = yield from answers(way.sql.lock_floor, way.sql.first_claim.format(**values))
        if claimed.ntuples:
            return claimed
        if not floor.ntuples:
            yield from answers(sql.make_floor())
            continue
        mark, floor = yield from answers(way.sql.read_mark.format(**values), way.sql.read_floor)
        row = first_row(floor)
        admit_claim(to_mark(mark), fence, int((row and row[0]) or 0))
        [claimed] = yield from answers(sql.claim(way, values))  # a mark that is there counts, whatever the floor
        if claimed.ntuples:
            return claimed
    raise moving(fence)


def moving(fence: Fence) -> GuardUnavailable:
    """The error where a verdict was sought in vain."""
    return GuardUnavailable(
        f"the mark of {fence.resource!r} changed at each of {ROUNDS} attempts; retry", resource=fence.resource
    )


def to_mark(result: PGresult) -> Mark | None:
    """The mark in an answer (number, token, seq)."""
    row = first_row(result)
    return None if row is None else Mark(int(row[0] or 0), row[1] or "", int(row[2] or 0))

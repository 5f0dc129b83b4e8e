"""The admission rule as plans: the order of statements on the mark table, for every database and driver. No I/O.

A plan is a generator. It yields an :class:`Ask`, and is sent its answers. A room of a driver performs it: it has the
texts (``statements.py``), the bounds of waits, and the meaning of errors. It also decides how many requests an Ask
costs. psycopg and MariaDB's compound form need one, all others one for each statement.

After a refusal the mark is read again, and :func:`~fencing.kernel.admission.admit_claim` or
:func:`~fencing.kernel.admission.admit_write` gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardNotEnforceable, OutcomeUnknown, StaleFence, UnclaimedFence
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from storage_guards.continuity import new_id
from storage_guards.sql.errors import ASK_AGAIN, ISOLATION, ROUNDS, keeps_changing, old_snapshot
from storage_guards.sql.outcome import FLOOR, REMEMBERED_CHARACTERS, Admitted, Settled, verdict
from storage_guards.sql.pruning import (
    NO_FLOOR,
    Pruning,
    PruningStatements,
    count_implausible,
    highest_plausible,
    lock_names_of_mysql,
    now_as_number,
    warn_of_implausible,
)
from storage_guards.sql.schema import Choice
from storage_guards.sql.table import DONE_TABLE, TABLES, create_table
from storage_guards.sql.verify import (
    MAKE_ANEW,
    Finding,
    implausible_marks,
    missing_floor,
    postgresql_facts,
)

T = TypeVar("T")
Row = Sequence[Any]


class Statement(NamedTuple):
    """One statement on the mark table: the name of its text in ``Statements``, and its values.

    Args:
        name: of the text.
        resource: of the mark, and so on.
        write: a new random id.
        writes: what to add to ``seq``.
        after: "admitted": it has no effect unless the statement before it was admitted. "refused": it has none if the
            statement before it found something. Where each statement is a request, it is then left out.
        key: of something that is done once.
    """

    name: str
    resource: str = ""
    number: int = 0
    token: str = ""
    write: str = ""
    writes: int = 1
    after: Literal["", "admitted", "refused"] = ""
    key: str = ""


class Ask(NamedTuple):
    """Statements that may go to the database in one request.

    It holds statements of ours only, never the caller's. No statement in it depends on an earlier answer. After a
    refused check the rest has no effect. An error anywhere ends the transaction. COMMIT stands in an Ask only behind a
    mere claim, never behind the check of a write: a refused check is no error, and the COMMIT would run.

    Args:
        statements: each is on the mark table. A str is a text without values.
        begins: a transaction with its bounds begins before them, or is there already.
        read_committed: that transaction is READ COMMITTED, so that a statement which has waited sees what it waited
            for. Otherwise it has the connection's own level.
        ends: the end of the transaction, behind them.
        schema: of the table, where the plan has found it out. "": it is known.

    The answer to a Statement is its first row. None: it has none, or was left out. :class:`Refused`: the rule refuses
    it, and the database's answer has the row all the same. The answer to a str is the list of its rows. Where the
    database answers with no rows, it is how many were changed.
    """

    statements: Sequence[Statement | str]
    begins: bool = False
    read_committed: bool = False
    ends: Literal["", "COMMIT", "ROLLBACK"] = ""
    schema: str = ""


_INSIDE = Ask(())
"""A request in a transaction that has begun."""


class Refused(NamedTuple):
    """A refusal, with the row as it is: of a mark (seq, recent_writes, xact, outermost, number, token, readers), or the
    floor.

    Args:
        row: None: there is no mark.
    """

    row: Row | None


_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python

Answers = list[Any]
Plan = Generator[Ask, Answers, T]

NESTED = "a rollback to the savepoint would drop the check; advance before the savepoint"


def plan_check(
    fences: Sequence[Fence], *, seen: Literal["", "isolation", "snapshot"] = "", nested: str = NESTED
) -> Plan[list[Admitted]]:
    """Begin a transaction, and check each fence as its first statements.

    Args:
        fences: sorted by resource.
        seen: how to find out whether the transaction has an old snapshot, where it may have read before. "isolation":
            a mark that is younger than the snapshot cannot be seen. "snapshot": the check sees what is newer than the
            transaction's reads. They are compared.
        nested: the text for a check in a savepoint.

    Raises:
        StaleFence, UnclaimedFence: the rule refuses a fence.
        GuardUnavailable: the transaction may have read old data.
        ValueError: it is in a savepoint.
    """
    shown: Answers = []
    if seen == "snapshot":
        shown = yield Ask([Statement("read_mark", fence.resource) for fence in fences])
    if len(fences) == 1:
        [fence] = fences  # the usual case: each guarded write comes here, so nothing is called that is not needed
        check = _new(Statement, ("check", fence.resource, fence.number, fence.token, new_id(), 1, "", ""))
        answers = yield _new(Ask, ((check,), True, False, "", ""))
    else:
        answers = yield Ask([_on("check", fence, after="admitted") for fence in fences], begins=True)
    admitted = []
    for fence, answer in zip(fences, answers, strict=True):
        if answer is None or type(answer) is Refused:
            answer = yield from _check_again(fence, answer, seen)
        if len(answer) > 3 and answer[3] not in (True, "t"):
            raise ValueError(nested)
        admitted.append(_new(Admitted, (fence, int(answer[0]), answer[1], answer[2] if len(answer) > 2 else None)))
    for row, now in zip(shown, admitted, strict=False):
        if row is None or now.recent_writes != _remember(now.recent_writes, row[3]):
            raise old_snapshot(now.fence)
    return admitted


def _check_again(fence: Fence, answer: Any, seen: str) -> Plan[Any]:
    """Raise the reason why the check did not admit the fence, unless it admits the fence when it is repeated."""
    for _ in range(ROUNDS):
        found = yield from _refused_mark(fence, answer)
        try:
            admit_write(found.mark, fence)
        except UnclaimedFence as error:
            if seen == "isolation":
                [levels] = yield Ask([ISOLATION])
                if levels[0][0] != "read committed":
                    raise old_snapshot(fence) from error
            raise
        [answer] = yield Ask([_on("check", fence)])
        if is_admitted(answer):
            return answer
    raise keeps_changing(fence)


def plan_claim(fences: Sequence[Fence], writes: int) -> Plan[list[Admitted]]:
    """Begin a transaction, and raise each mark to its fence as its first statements. A mere claim is also committed.

    A mere claim of one fence may be sent together with its COMMIT: a claim that is refused has changed nothing, and one
    that arrives late does no harm.

    Args:
        fences: sorted by resource.
        writes: what to add to the marks' seq. 0: a mere claim.

    Raises:
        StaleFence: the rule refuses a fence.
    """
    mere = not writes
    at_once = mere and len(fences) == 1
    claims = [_on("claim", fence, writes, after="admitted") for fence in fences]
    opening = Ask(claims, begins=True, read_committed=mere, ends="COMMIT" if at_once else "")
    answers = yield opening
    found = [is_admitted(answer) for answer in answers]
    if False in found and True in found[found.index(False) :]:
        # Later marks are locked, and an earlier one is not. So begin again, and lock them in their order.
        yield Ask([], ends="ROLLBACK")
        yield opening._replace(statements=[])
        answers = [None] * len(fences)
    admitted = []
    for fence, answer in zip(fences, answers, strict=True):
        if not is_admitted(answer):
            answer = yield from _claim_one(fence, writes, answer, opening if at_once else _INSIDE)
        admitted.append(Admitted(fence, int(answer[0]), answer[1], answer[2] if len(answer) > 2 else None))
    if mere and not at_once:
        yield Ask([], ends="COMMIT")
    return admitted


def _claim_one(fence: Fence, writes: int, answer: Any, around: Ask) -> Plan[Any]:
    """Raise the mark to the fence, or make it where there is none.

    Args:
        answer: to a claim that was not admitted.
        around: how a request begins and ends.
    """
    claim, first = _on("claim", fence, writes), _on("first_claim", fence, writes, after="admitted")
    for _ in range(ROUNDS):
        if type(answer) is Refused and answer.row is not None:
            found = _mark_in(answer)
            admit_claim(found.mark, fence, found.floor)
        else:
            # The floor is locked until this transaction ends, so the next statement reads it as it is.
            locked, claimed = yield around._replace(statements=[_on("lock_floor", fence), first])
            if is_admitted(claimed):
                return claimed
            floor = locked.row if type(locked) is Refused else locked
            found = yield from _refused_mark(fence, answer if claimed is None else claimed, around)
            if found is _NO_ROW:
                if floor is None:
                    raise GuardNotEnforceable(NO_FLOOR)
                found = _Found(None, int(floor[0]))
            admit_claim(found.mark, fence, found.floor)
        [answer] = yield around._replace(statements=[claim])  # where there is a mark, it counts, and not the floor
        if is_admitted(answer):
            return answer
    raise keeps_changing(fence)


def plan_mark(resource: str) -> Plan[Mark | None]:
    """Read the mark. It locks nothing, so the mark may change at any time."""
    [row] = yield Ask([Statement("read_mark", resource)], begins=True, ends="COMMIT")
    return _found_in(row).mark


def plan_settle(unknown: OutcomeUnknown) -> Plan[bool | None]:
    """Return whether the write has landed: lock the mark or its absence, read it, and leave everything as it was.

    An open transaction may be about to insert the mark. To insert it here waits for that transaction.
    """
    fence = unknown.fence
    probes = [_on("lock_mark", fence), _on("lock_absence", fence, after="refused"), _on("lock_floor", fence)]
    if unknown.once is not None:
        probes += [Statement(name, fence.resource, key=unknown.once) for name in ("read_done", "key_floor")]
    for _ in range(ROUNDS):
        mark, absent, floor, *done = yield Ask(probes, begins=True, read_committed=True, ends="ROLLBACK")
        if is_admitted(mark) or is_admitted(absent):
            row = floor.row if type(floor) is Refused else floor
            return verdict(
                unknown,
                Settled(
                    recent_writes=None if mark is None else mark[0],
                    table="" if row is None else row[1],
                    floor=MAX_NUMBER if row is None else int(row[0]),
                    done_by=_done_by(*done) if done else None,
                ),
            )
    raise keeps_changing(fence, ASK_AGAIN)


def _done_by(done: Row | None, floor: Row | None) -> str | None:
    if done is not None:
        return str(done[1])
    return "" if floor is None else None


def plan_create(choice: Choice, lock: Sequence[str] = ()) -> Plan[None]:
    """Create the tables and the floor row where they are missing. Two processes may do it at once.

    The floor of a new table is 0: there never was a mark. Otherwise marks may be lost, so it shuts out all fences that
    are older than now.

    Args:
        choice: of the tables.
        lock: keeps others that do the same away.
    """
    *_, visible = yield Ask([*lock, Statement("visible_tables")], begins=True, read_committed=True)
    schema = choice.to_create(visible)
    if schema is not None:
        tables = [create_table(choice.home(schema), definition, choice.database) for definition in TABLES]
        *_, visible = yield Ask([*tables, _floor(0), Statement("visible_tables")], schema=schema)
        choice.of(visible)  # a table may have been there that is not of this version
        yield Ask([], ends="COMMIT")
        return
    schema = choice.of(visible)
    is_done = visible.everywhere[schema].done is not None
    tables = [] if is_done else [create_table(choice.home(schema), DONE_TABLE, choice.database)]
    *_, floor = yield Ask([*tables, Statement("read_floor", FLOOR)], ends="COMMIT", schema=schema)
    if floor is None:
        yield Ask([_floor(now_as_number())], begins=True, read_committed=True, ends="COMMIT")


def _floor(number: int) -> Statement:
    return Statement("make_floor", FLOOR, number, write=new_id())


def plan_facts(choice: Choice) -> Plan[tuple[str, str]]:
    """Look up the mark table anew, and ask PostgreSQL for the facts of ``verify``. Return its schema, and the facts."""
    [visible] = yield Ask([Statement("visible_tables")], begins=True, ends="ROLLBACK")
    schema = choice.of(visible)
    [facts] = yield Ask([postgresql_facts(schema)], begins=True, ends="ROLLBACK", schema=schema)
    return schema, facts[0][0]


def plan_floor(table: str) -> Plan[list[Finding]]:
    """Return a finding where no new name can be claimed.

    Its first statement is a write, because a SELECT may not begin a transaction: in autocommit a trial claim would
    stay.
    """
    write = f"UPDATE {table} SET seq = seq WHERE resource = ''"
    _, floor = yield Ask([write, Statement("read_floor", FLOOR)], begins=True, ends="ROLLBACK")
    found = [*missing_floor(0 if floor is None else 1)]
    if floor is not None and _number(floor[0]) > highest_plausible():
        found += implausible_marks([(FLOOR, _number(floor[0]))])
    return found


def plan_trial(name: str) -> Plan[list[Finding]]:
    """Return a finding where names, tokens or numbers are not exact, as trial claims of this name show.

    The performer must undo them: it runs the plan inside a transaction of its own.
    """
    trial = Fence(name, MAX_NUMBER, "a" * 22)
    try:
        yield from plan_claim([trial], 0)
        exact = (yield from plan_mark(name)) == Mark(trial.number, trial.token)
    except (TypeError, ValueError):  # the row is no mark
        exact = False
    if not exact:
        return [Finding("safety", "a mark is read differently from what was written", MAKE_ANEW)]
    found = []
    for other in (name.upper(), f"{name} "):
        if (yield from plan_mark(other)) is not None:
            found.append(Finding("safety", f"the names {name!r} and {other!r} have one mark", MAKE_ANEW))
    try:
        yield from plan_claim([Fence(name, MAX_NUMBER, "A" * 22)], 0)
    except StaleFence:
        return found
    return [*found, Finding("safety", "tokens that differ only in case are treated as equal", MAKE_ANEW)]


def plan_prune(pruning: Pruning, batch: Callable[[Pruning], Plan[Batch]]) -> Plan[int]:
    """Delete all marks that may go, in one transaction after the other. Return how many were deleted.

    Args:
        pruning: which marks may go.
        batch: the plan of one transaction.
    """
    deleted, left = 0, pruning
    while True:
        done = yield from batch(left)
        if done.floor is None:
            raise GuardNotEnforceable(NO_FLOOR)
        deleted += done.deleted
        rest = left.next_batch(int(done.floor), done.deleted)
        if rest is None:
            warn_of_implausible(int(done.implausible))
            return deleted
        left = rest


class Batch(NamedTuple):
    """One transaction of pruning: the new floor (None: there is none), and how many marks went, or have no plausible
    number."""

    floor: Any
    deleted: int
    implausible: Any


def plan_batch(table: str, statements: PruningStatements) -> Plan[Batch]:
    """Prune in one transaction, where a statement can change a table and select from it.

    DELETE is a statement after the one that locked the floor, so it sees the marks as they are then.
    """
    asked = [statements.raise_floor, statements.delete, count_implausible(table)]
    floor, deleted, implausible = yield Ask(asked, begins=True, read_committed=True, ends="COMMIT")
    return Batch(floor[0][0] if floor else None, deleted, implausible[0][0])


def plan_batch_of_mysql(table: str, pruning: Pruning) -> Plan[Batch]:
    """Prune in one transaction of MariaDB or MySQL, where a statement cannot change a table and select from it.

    So the names are read first, and then sent back.
    """
    old = pruning.condition(f"claimed_at < UTC_TIMESTAMP(6) - INTERVAL {pruning.seconds:.3f} SECOND")
    lock = f"UPDATE {table} SET seq = seq WHERE resource = '{FLOOR}'"
    highest = f"SELECT COALESCE(MAX(GREATEST(number, readers)), 0) FROM {table} WHERE {old}"
    _, found = yield Ask([lock, highest], begins=True, read_committed=True)
    raise_floor = f"UPDATE {table} SET number = GREATEST(number, {int(found[0][0])}) WHERE resource = '{FLOOR}'"
    _, floor = yield Ask([raise_floor, f"SELECT number FROM {table} WHERE resource = '{FLOOR}' FOR UPDATE"])
    asked = [count_implausible(table)]
    if floor:
        may_go = f"{old} AND GREATEST(number, readers) <= {int(floor[0][0])}"
        [names] = yield Ask([lock_names_of_mysql(table, may_go)])
        listed = ", ".join(f"x'{name}'" for (name,) in names)
        if listed:  # they are locked, so none of them has been raised since
            asked.insert(0, f"DELETE FROM {table} WHERE resource IN ({listed})")
    *deleted, implausible = yield Ask(asked, ends="COMMIT")
    return Batch(floor[0][0] if floor else None, deleted[0] if deleted else 0, implausible[0][0])


def _on(name: str, fence: Fence, writes: int = 1, *, after: Literal["", "admitted", "refused"] = "") -> Statement:
    return Statement(name, fence.resource, fence.number, fence.token, new_id(), writes, after)


def is_admitted(answer: Any) -> bool:
    """Return whether a statement has found or admitted something."""
    return answer is not None and type(answer) is not Refused


class _Found(NamedTuple):
    """A row of a mark. An empty token: no holder yet, and a claim must exceed ``floor``, as where there is no row."""

    mark: Mark | None
    floor: int = 0


_NO_ROW = _Found(None)


def _refused_mark(fence: Fence, answer: Any, around: Ask = _INSIDE) -> Plan[_Found]:
    """Return the mark that has refused a fence. It is read where the answer does not have it."""
    if type(answer) is Refused:
        return _mark_in(answer)
    [row] = yield around._replace(statements=[Statement("read_mark", fence.resource)])
    return _found_in(row)


def _mark_in(answer: Refused) -> _Found:
    row = answer.row
    return _NO_ROW if row is None else _found_in((row[4], row[5], row[0], "", row[6]))


def _found_in(row: Row | None) -> _Found:
    """Return the mark in an answer (number, token, seq, recent_writes, readers)."""
    if row is None:
        return _NO_ROW
    number, token, seq, _, readers = row
    if not token:
        return _Found(None, max(_number(number), _number(readers)))
    return _Found(Mark(_number(number), token, _number(seq), _number(readers)))


def _number(value: Any) -> Any:
    """Return the number in an answer, which is a text from psycopg. One of a wrong type stays as it is."""
    return int(value) if type(value) is str else value


def _remember(now: str, before: str) -> str:
    """Return a mark's writes as they would be if the newest one of ``now`` came right after ``before``."""
    newest = now.partition(" ")[0]
    return f"{newest} {before}"[:REMEMBERED_CHARACTERS]

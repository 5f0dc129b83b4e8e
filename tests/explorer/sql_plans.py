"""The plans of ``storage_guards/sql/plans.py`` over a model of PostgreSQL, in every order of their statements.

Clients have fences, and no lock. Each performs the guards' own plans, statement by statement. What the plans ask is the
guards'; what a statement does is written down here: transactions at READ COMMITTED, row locks, waits, and a snapshot
for each statement. A reply can be lost: then the session goes on to the end of what it was sent, at any later time, and
is rolled back unless that was a COMMIT. The client begins a session anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from unittest import mock

from fencing.kernel.errors import AlreadyDone, GuardUnavailable, OutcomeUnknown, StaleFence, TooOld, UnclaimedFence
from fencing.kernel.fence import Fence
from storage_guards.sql import plans
from storage_guards.sql.once import plan_once, plan_prune_done
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.plans import Ask, Plan, Statement
from storage_guards.sql.pruning import Pruning, PruningStatements
from tests.explorer.search import explore
from tests.explorer.state import CLAIM_BACK, LOST_UPDATE, NEVER_DONE, STALE_READ, SUPERSEDED, TWICE, VERDICT, Step

__all__ = [
    "KEY",
    "RESOURCE",
    "Row",
    "SQLProgram",
    "SQLScenario",
    "SQLWorld",
    "assert_safe",
    "once_writer",
    "pruner",
    "pruner_of_keys",
    "writer",
]

RESOURCE, FLOOR, DATA = "r", "fencing:floor", "data"
KEY, DONE, KEY_FLOOR = "k", "done", "done floor"
NAMES = "ABC"
FIRST_WRITE = "table"
REMEMBERED = 3
"""A mark remembers fewer writes here."""

Value = frozenset[tuple[int, int]]
"""The writes that were made: of which client, in which of its attempts."""


class Row(NamedTuple):
    """The row of a mark, or of the floor."""

    number: int
    token: str = ""
    writes: tuple[str, ...] = ()


class LostReply(Exception):
    """A client got no reply; its connection is broken."""


LOST = ("lost",)


# What a client does


class Note(NamedTuple):
    """The client has learnt something: its write was made, or was not and never will be. Or what it does once was done
    before, by itself or by another one; or it is too old."""

    what: Literal["acknowledged", "denied", "done by itself", "done by another", "too old"]
    attempt: int


Effect = Ask | Note
Moves = Generator[Effect, Any, Any]


def _performed(plan: Plan[Any]) -> Moves:
    answers: Any = None
    while True:
        try:
            asked = plan.send(answers)
        except StopIteration as done:
            return done.value
        answers = yield asked
        if answers == LOST:
            raise LostReply


def _alone(*statements: Statement | str, begins: bool = False, ends: Literal["", "COMMIT", "ROLLBACK"] = "") -> Moves:
    answers = yield Ask(statements, begins=begins, ends=ends)
    if answers == LOST:
        raise LostReply
    return answers


def _until_answered(plan: Callable[[], Plan[Any]]) -> Moves:
    while True:
        try:
            return (yield from _performed(plan()))
        except LostReply:
            continue


READ = Statement("read_data")


def _write(base: Value, client: int, attempt: int) -> Statement:
    after = sorted(base | {(client, attempt)})
    return Statement("write_data", token=" ".join(f"{who}.{which}" for who, which in after))


@dataclass(frozen=True)
class SQLProgram:
    """What a client does, and with which plans. By default these are the guards' own.

    Args:
        moves: of the client.
        number: of its fence, or the highest that it prunes.
        claims: "apart": in a transaction of its own. "at once": in the one that writes.
        reads: after the claim or check, before it, or within its statement.
        writes: after the check; in one request with it, and with the COMMIT; or without one, where the mark exists;
            or after the check was rolled back to a savepoint.
        attempts: how many transactions it begins.
        asks: for the outcome, where a COMMIT got no reply. Otherwise it tries again.
    """

    moves: Callable[[SQLProgram, int], Moves]
    number: int = 0
    claims: Literal["apart", "at once"] = "apart"
    reads: Literal["after", "before", "within"] = "after"
    writes: Literal["after", "in one request", "where it exists", "rolled back"] = "after"
    attempts: int = 2
    asks: bool = True
    claim: Callable[..., Plan[Any]] = plans.plan_claim
    check: Callable[..., Plan[Any]] = plans.plan_check
    settle: Callable[[OutcomeUnknown], Plan[bool | None]] = plans.plan_settle
    batch: Callable[[str, PruningStatements], Plan[plans.Batch]] = plans.plan_batch
    enter: Callable[[SQLProgram, Fence], Plan[Any]] | None = None
    once: Callable[..., Plan[None]] = plan_once
    prune_keys: Callable[[str, str], Plan[int]] = plan_prune_done


def writer(program: SQLProgram, client: int) -> Moves:
    """Claim, and then add an update in a transaction of its own. Where its outcome is unknown, ask, and do it again."""
    fence = fence_of(program, client)
    try:
        if program.claims == "apart":
            yield from _until_answered(lambda: program.claim([fence], 0))
        for attempt in range(program.attempts):
            try:
                if program.writes in ("in one request", "where it exists"):
                    yield from _unguarded(program, client, fence, attempt)
                    return
                base: Value = frozenset()
                if program.reads == "before":
                    [base] = yield from _alone(READ, begins=True)
                if program.reads == "within":
                    both = Statement("claim_and_read", RESOURCE, fence.number, fence.token, f"{client}+{attempt}")
                    [(row, base)] = yield from _alone(both, begins=True)
                    if row is None:
                        raise UnclaimedFence(fence=fence, mark=None)
                    admitted = Admitted(fence, *row)
                else:
                    at_once = program.claims == "at once"
                    plan = program.claim([fence], 1) if at_once else program.check([fence])
                    [admitted] = yield from _performed(plan)
                if program.reads == "after":
                    [base] = yield from _alone(READ)
                if program.writes == "rolled back":
                    yield from _alone("ROLLBACK TO")
                yield from _alone(_write(base, client, attempt))
            except LostReply:
                continue
            try:
                yield from _alone(ends="COMMIT")
            except LostReply:
                unknown = admitted.unknown()
                landed = yield from _until_answered(lambda u=unknown: program.settle(u))  # type: ignore[misc]
                if landed is None:
                    return
                yield Note("acknowledged" if landed else "denied", attempt)
                if landed:
                    return
                continue
            yield Note("acknowledged", attempt)
            return
    except (StaleFence, UnclaimedFence, GuardUnavailable):
        yield Ask([], ends="ROLLBACK")


def once_writer(program: SQLProgram, client: int) -> Moves:
    """Claim, and then add an update in a transaction of its own, once for the key."""
    fence = fence_of(program, client)
    try:
        if program.claims == "apart":
            yield from _until_answered(lambda: program.claim([fence], 0))
        for attempt in range(program.attempts):
            try:
                admitted = yield from _performed((program.enter or _enter)(program, fence))
                [base] = yield from _alone(READ)
                yield from _alone(_write(base, client, attempt))
            except LostReply:
                continue
            except AlreadyDone as error:
                yield Note("done by itself" if error.is_own else "done by another", attempt)
                break
            except TooOld:
                yield Note("too old", attempt)
                break
            try:
                yield from _alone(ends="COMMIT")
            except LostReply:
                if not program.asks:
                    continue
                unknown = admitted.unknown(KEY)
                landed = yield from _until_answered(lambda u=unknown: program.settle(u))  # type: ignore[misc]
                if landed is not None:
                    yield Note("acknowledged" if landed else "denied", attempt)
                return
            yield Note("acknowledged", attempt)
            return
    except (StaleFence, UnclaimedFence, GuardUnavailable):
        pass
    yield Ask([], ends="ROLLBACK")


def _enter(program: SQLProgram, fence: Fence) -> Plan[Any]:
    """Check the fence, and note the key, as the guards do."""
    [admitted] = yield from program.claim([fence], 1) if program.claims == "at once" else program.check([fence])
    yield from program.once(admitted, KEY, fence)
    return admitted


def pruner_of_keys(program: SQLProgram, _: int) -> Moves:
    """Delete what is noted of the key."""
    try:
        yield from _performed(program.prune_keys(RESOURCE, chr(ord(KEY) + 1)))
    except LostReply:
        return


def _unguarded(program: SQLProgram, client: int, fence: Fence, attempt: int) -> Moves:
    """Read, and write in a transaction whose check nobody has read before its COMMIT."""
    [base] = yield from _alone(READ, begins=True, ends="COMMIT")
    write = _write(base, client, attempt)
    check = Statement("check", RESOURCE, fence.number, fence.token, f"{client}+{attempt}")
    if program.writes == "where it exists":
        done = yield from _alone(
            write._replace(name="write_if_claimed", number=fence.number), begins=True, ends="COMMIT"
        )
    else:
        done = yield from _alone(check, write, begins=True, ends="COMMIT")
    if done[0]:
        yield Note("acknowledged", attempt)


def pruner(program: SQLProgram, client: int) -> Moves:
    """Delete the mark, up to the program's number."""
    statements = PruningStatements("RAISE", "DELETE")
    try:
        yield from _performed(plans.plan_prune(Pruning(program.number, 0.0), lambda _: program.batch("t", statements)))
    except LostReply:
        return


def fence_of(program: SQLProgram, client: int) -> Fence:
    return Fence(RESOURCE, program.number, NAMES[client] * 22)


@lru_cache(maxsize=200_000)
def _effect_of(program: SQLProgram, client: int, answers: tuple[Any, ...]) -> Effect | None:
    """What the client does next, after these answers. None: it has ended."""
    with mock.patch.object(plans, "new_id", map(f"{client}.{{}}".format, itertools.count()).__next__):
        moves = program.moves(program, client)
        try:
            effect: Effect = next(moves)
            for answer in answers:
                effect = moves.send(_thawed(answer))
        except StopIteration:
            return None
        finally:
            moves.close()
        return effect


def _thawed(answer: Any) -> Any:
    return list(answer) if isinstance(answer, tuple) and answer != LOST else answer


# The database


class Session(NamedTuple):
    """A session of the server.

    Args:
        client: whose it was, or is.
        todo: what it was sent and has not done yet.
        replies: to what it has done of the last request.
        seen: the rows as the statement that waits saw them when it began; None: none waits.
        changes: its own rows, not committed yet.
        locked: the rows that it has locked for itself.
        shared: those that it has locked FOR SHARE.
        is_open: in a transaction.
        is_left: nobody hears its replies. It is rolled back when it has done all.
        claimed: the fence of its last check or claim.
    """

    client: int
    todo: tuple[Any, ...] = ()
    replies: tuple[Any, ...] = ()
    seen: tuple[tuple[str, Any], ...] | None = None
    changes: tuple[tuple[str, Any], ...] = ()
    locked: frozenset[str] = frozenset()
    shared: frozenset[str] = frozenset()
    is_open: bool = False
    is_left: bool = False
    claimed: tuple[int, str] | None = None


class SQLState(NamedTuple):
    """Everything; hashable."""

    rows: tuple[tuple[str, Any], ...]
    sessions: tuple[Session, ...]
    clients: tuple[tuple[Any, ...], ...]  # the answers of each
    newest: tuple[int, str] = (0, "")
    acknowledged: Value = frozenset()
    denied: Value = frozenset()
    lost: int = 0


class Waits(Exception):
    """A statement waits for a row that somebody else has locked."""


@dataclass(frozen=True)
class SQLScenario:
    """Clients, and how many replies may be lost."""

    name: str
    programs: tuple[SQLProgram, ...]
    lost: int = 0
    rows: tuple[tuple[str, Any], ...] = field(default=())


class SQLWorld:
    """The steps of a scenario."""

    most_refusals = 0

    def __init__(self, scenario: SQLScenario) -> None:
        self.scenario = scenario
        self._once = {each for each, program in enumerate(scenario.programs) if program.moves is once_writer}

    def start(self) -> SQLState:
        rows = {FLOOR: Row(0, "", (FIRST_WRITE,)), DATA: frozenset(), **dict(self.scenario.rows)}
        clients = range(len(self.scenario.programs))
        return SQLState(_frozen(rows), tuple(map(Session, clients)), ((),) * len(clients))

    def steps(self, state: SQLState) -> Iterator[Step]:
        for client, program in enumerate(self.scenario.programs):
            yield from self._client_steps(state, client, program)
        for index, session in enumerate(state.sessions):
            if session.todo:
                yield from self._server_steps(state, index, session)

    def _client_steps(self, state: SQLState, client: int, program: SQLProgram) -> Iterator[Step]:
        index = self._session_of(state, client)
        session = state.sessions[index]
        if session.todo or session.replies:
            return  # it waits for its reply
        effect = _effect_of(program, client, state.clients[client])
        if effect is None:
            return
        if isinstance(effect, Note):
            yield self._learns(state, client, effect)
            return
        sent: list[Any] = ["BEGIN"] if effect.begins else []
        sent += effect.statements
        sent += [effect.ends] if effect.ends else []
        name = NAMES[client]
        said = f"{name} sends {', '.join(map(_named, sent))}"
        after = _with_session(state, index, session._replace(todo=(*sent, None)))
        yield Step(said, after)
        if state.lost < self.scenario.lost:
            gone = _with_session(state, index, session._replace(todo=(*sent, None), is_left=True))
            gone = gone._replace(sessions=(*gone.sessions, Session(client)), lost=state.lost + 1)
            yield Step(f"{said}, and its connection breaks", _answered(gone, client, LOST))

    def _session_of(self, state: SQLState, client: int) -> int:
        return max(index for index, each in enumerate(state.sessions) if each.client == client and not each.is_left)

    def _learns(self, state: SQLState, client: int, note: Note) -> Step:
        update = (client, note.attempt)
        after = state
        if note.what == "denied":
            after = state._replace(denied=state.denied | {update})
        elif note.what == "acknowledged":
            after = state._replace(acknowledged=state.acknowledged | {update})
        value = dict(state.rows)[DATA]
        violated: tuple[str, ...] = ()
        done_by = {who for who, _ in value if who in self._once}
        if (note.what == "too old" and not done_by) or (
            note.what.startswith("done") and (client in done_by, bool(done_by)) != (note.what == "done by itself", True)
        ):
            violated = (NEVER_DONE,)
        if note.what == "acknowledged" and update not in value:
            violated = (LOST_UPDATE,)
        if note.what == "denied" and update in value:
            violated = (VERDICT,)
        return Step(f"{NAMES[client]} learns: {note.what}", _answered(after, client, ()), violated)

    def _server_steps(self, state: SQLState, index: int, session: Session) -> Iterator[Step]:
        first, *rest = session.todo
        name = NAMES[session.client] + ("'s old session" if session.is_left else "")
        if first is None:  # all is done
            if session.is_left:
                ended = _ended(session)._replace(todo=())
                yield Step(f"{name} is rolled back", _without_session(state, index, ended))
                return
            done = session._replace(todo=(), replies=())
            yield Step(f"{name} hears", _answered(_with_session(state, index, done), session.client, session.replies))
            return
        if first in ("COMMIT", "ROLLBACK"):
            after, violated = self._end(state, index, session, first)
            yield Step(f"{name}: {first}", after, violated)
            return
        if first == "ROLLBACK TO":
            undone = session._replace(todo=tuple(rest), replies=((),), changes=(), locked=frozenset())
            yield Step(f"{name}: {first}", _with_session(state, index, undone))
            return
        if first == "BEGIN":
            begun = session._replace(todo=tuple(rest), is_open=True)
            yield Step(f"{name}: BEGIN", _with_session(state, index, begun))
            return
        seen = dict(state.rows if session.seen is None else session.seen)
        table = Table(state, index, session, {**seen, **dict(session.changes)})
        try:
            reply = table.run(first)
        except Waits:
            if session.seen is None:
                waiting = session._replace(seen=_frozen(seen))
                yield Step(f"{name}: {_named(first)} waits", _with_session(state, index, waiting))
            return
        done = table.session._replace(todo=tuple(rest), replies=(*session.replies, reply), seen=None)
        yield Step(f"{name}: {_named(first)} {_shown(reply)}", _with_session(state, index, done))

    def _end(self, state: SQLState, index: int, session: Session, how: str) -> tuple[SQLState, tuple[str, ...]]:
        violated: tuple[str, ...] = ()
        newest = state.newest
        rows = dict(state.rows)
        if how == "COMMIT":
            changes = dict(session.changes)
            mark = changes.get(RESOURCE)
            if mark is not None and mark.token:
                claimed = (mark.number, mark.token)
                if claimed != newest and mark.number <= newest[0]:
                    violated += (CLAIM_BACK,)
                newest = max(newest, claimed)
            if DATA in changes:
                if session.claimed != newest:
                    violated += (SUPERSEDED,)
                if not rows[DATA] <= changes[DATA]:
                    violated += (STALE_READ,)
                if not state.acknowledged <= changes[DATA]:
                    violated += (LOST_UPDATE,)
                if state.denied & (changes[DATA] - rows[DATA]):
                    violated += (VERDICT,)
                if len([who for who, _ in changes[DATA] if who in self._once]) > 1:
                    violated += (TWICE,)
            rows.update(changes)
            rows = {name: row for name, row in rows.items() if row is not None}
        ended = _ended(session)._replace(todo=session.todo[1:])
        return _with_session(state._replace(rows=_frozen(rows), newest=newest), index, ended), violated


class Table:
    """One statement of one session. Its ``seen`` are the rows when it began, with the session's own changes."""

    def __init__(self, state: SQLState, index: int, session: Session, seen: dict[str, Any]) -> None:
        self.session, self.seen = session, seen
        self._others = [each for other, each in enumerate(state.sessions) if other != index]
        self._now = {**dict(state.rows), **dict(session.changes)}

    def run(self, statement: Statement | str) -> Any:
        if isinstance(statement, str):
            of_pruning = {"RAISE": self._raise_floor, "DELETE": self._delete, "DELETE ANY": self._delete_any}
            return of_pruning.get(statement, lambda: ((0,),))()
        return getattr(self, f"_{statement.name}")(statement)

    # Row locks

    def _lock(self, name: str) -> Any:
        """Lock a row, and return it as it is now."""
        if any(name in each.locked or name in each.shared for each in self._others):
            raise Waits
        self.session = self.session._replace(locked=self.session.locked | {name})
        return self._now.get(name)

    def _set(self, name: str, row: Any) -> None:
        changes = {**dict(self.session.changes), name: row}
        self.session = self.session._replace(changes=_frozen(changes))

    # The statements on the mark

    def _changed(self, statement: Statement, admits: Callable[[Row], bool]) -> Any:
        """UPDATE … WHERE … RETURNING: a row that it has waited for is compared again, as it is then."""
        row = self.seen.get(RESOURCE)
        if row is None or not admits(row):
            return None
        row = self._lock(RESOURCE)
        if row is None or not admits(row):
            return None
        return self._admit(statement, row)

    def _admit(self, statement: Statement, row: Row) -> Any:
        writes = row.writes
        if statement.writes:
            writes = (statement.write, *writes)[:REMEMBERED]
        self._set(RESOURCE, Row(statement.number, statement.token, writes))
        self.session = self.session._replace(claimed=(statement.number, statement.token))
        return 0, " ".join(writes), None

    def _check(self, statement: Statement) -> Any:
        return self._changed(statement, lambda row: (row.number, row.token) == (statement.number, statement.token))

    def _claim(self, statement: Statement) -> Any:
        return self._changed(statement, lambda row: _admits(row, statement))

    def _claim_and_read(self, statement: Statement) -> Any:
        """WITH … (UPDATE …) SELECT …: what is read is as it was before the wait for the mark."""
        return self._claim(statement), self.seen[DATA]

    def _first_claim(self, statement: Statement) -> Any:
        """INSERT … SELECT … ON CONFLICT DO UPDATE: the floor is the one of the snapshot."""
        floor = self.seen.get(FLOOR)
        if floor is None or floor.number >= statement.number:
            return None
        row = self._lock(RESOURCE)
        if row is not None:
            return self._admit(statement, row) if _admits(row, statement) else None
        new = (statement.write, *floor.writes)
        self._set(RESOURCE, Row(statement.number, statement.token, new))
        self.session = self.session._replace(claimed=(statement.number, statement.token))
        return 0, " ".join(new), None

    def _lock_floor(self, _: Statement) -> Any:
        if any(FLOOR in each.locked for each in self._others):
            raise Waits
        self.session = self.session._replace(shared=self.session.shared | {FLOOR})
        return self._floor_in(self._now)

    def _read_floor(self, _: Statement) -> Any:
        return self._floor_in(self.seen)

    def _floor_in(self, rows: dict[str, Any]) -> Any:
        floor = rows.get(FLOOR)
        return None if floor is None else (floor.number, " ".join(floor.writes))

    def _lock_mark(self, statement: Statement) -> Any:
        if self.seen.get(statement.resource) is None:
            return None
        row = self._lock(statement.resource)
        return None if row is None else (" ".join(row.writes),)

    def _lock_absence(self, statement: Statement) -> Any:
        row = self._lock(RESOURCE)
        if row is not None:
            return None
        self._set(RESOURCE, Row(statement.number, "", ()))
        return (RESOURCE,)

    # The same without a lock, for rules that are switched off

    def _peek_mark(self, _: Statement) -> Any:
        row = self.seen.get(RESOURCE)
        return None if row is None else (" ".join(row.writes),)

    def _peek_absence(self, _: Statement) -> Any:
        return None if self.seen.get(RESOURCE) is not None else (RESOURCE,)

    def _read_mark(self, _: Statement) -> Any:
        row = self.seen.get(RESOURCE)
        return None if row is None else (row.number, row.token, 0, " ".join(row.writes), 0)

    # What is done once

    def _note_done(self, statement: Statement) -> Any:
        """INSERT … ON CONFLICT DO NOTHING: it waits for who is about to insert the row, or to delete it."""
        if any(DONE in each.locked for each in self._others):
            raise Waits
        if self._now.get(DONE) is not None:
            return None
        self._lock(DONE)
        self._set(DONE, (statement.number, statement.write))
        return (statement.number,)

    def _read_done(self, _: Statement) -> Any:
        row = self.seen.get(DONE)
        return None if row is None else (*row, 0)

    def _key_floor(self, _: Statement) -> Any:
        return (KEY,) if self.seen.get(KEY_FLOOR) else None

    def _last_done(self, _: Statement) -> Any:
        return (None, 0) if self.seen.get(DONE) is None else (KEY, 1)

    def _raise_key_floor(self, _: Statement) -> Any:
        self._lock(KEY_FLOOR)
        self._set(KEY_FLOOR, True)
        return 1

    def _delete_done(self, _: Statement) -> Any:
        if self.seen.get(DONE) is None:
            return 0
        self._lock(DONE)
        self._set(DONE, None)
        return 1

    # Pruning

    def _raise_floor(self) -> Any:
        mark = self.seen.get(RESOURCE)
        floor = self._lock(FLOOR)
        highest = 0 if mark is None else mark.number
        self._set(FLOOR, floor._replace(number=max(floor.number, highest)))
        return ((max(floor.number, highest),),)

    def _delete(self) -> Any:
        """With SKIP LOCKED."""
        row = self._now.get(RESOURCE)
        return 0 if row is None or row.number > self.seen[FLOOR].number else self._delete_any()

    def _delete_any(self) -> Any:
        if self._now.get(RESOURCE) is None or any(RESOURCE in each.locked for each in self._others):
            return 0
        self._lock(RESOURCE)
        self._set(RESOURCE, None)
        return 1

    # The caller's own

    def _read_data(self, _: Statement) -> Any:
        return self.seen[DATA]

    def _write_data(self, statement: Statement) -> Any:
        self._lock(DATA)
        parts = [each.split(".") for each in statement.token.split()]
        self._set(DATA, frozenset((int(who), int(which)) for who, which in parts))
        return 1

    def _write_if_claimed(self, statement: Statement) -> Any:
        """UPDATE … WHERE EXISTS (SELECT … of the mark): what it has waited for is the data, and not the mark."""
        row = self.seen.get(RESOURCE)
        if row is None or row.number != statement.number:
            return 0
        self.session = self.session._replace(claimed=(row.number, row.token))
        return self._write_data(statement)


def _admits(row: Row, statement: Statement) -> bool:
    return row.number < statement.number or (row.number, row.token) == (statement.number, statement.token)


def _ended(session: Session) -> Session:
    return session._replace(changes=(), locked=frozenset(), shared=frozenset(), is_open=False, seen=None, claimed=None)


def _frozen(rows: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(rows.items(), key=lambda item: item[0]))


def _with_session(state: SQLState, index: int, session: Session) -> SQLState:
    sessions = list(state.sessions)
    sessions[index] = session
    return state._replace(sessions=tuple(sessions))


def _without_session(state: SQLState, index: int, _: Session) -> SQLState:
    return state._replace(sessions=state.sessions[:index] + state.sessions[index + 1 :])


def _answered(state: SQLState, client: int, answer: Any) -> SQLState:
    answers = list(state.clients)
    answers[client] = (*answers[client], answer)
    return state._replace(clients=tuple(answers))


def _named(statement: Any) -> str:
    return statement.name if isinstance(statement, Statement) else str(statement)


def _shown(reply: Any) -> str:
    if isinstance(reply, frozenset):
        return str(len(reply))
    return "finds nothing" if reply is None else "is done"


def assert_safe(scenario: SQLScenario, say: Callable[[object], None]) -> None:
    """Explore a scenario to its end, and find nothing."""
    result = explore(scenario, world_of=SQLWorld)
    say(result)
    assert not result.violations, "\n".join(map(str, result.violations.values()))
    assert result.exhausted
    assert result.states > 500, "the bounds leave little to explore"

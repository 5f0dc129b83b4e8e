"""A guarded transaction on one of Django's connections: one of the guard's own, or one of the caller's that it joins.

What Django does not document of its connections is used here alone. It was seen in Django 5.2 and 6.1.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django.db import Error, transaction

from fencing.contrib.django.errors import commit_was_refused, savepoint_is_gone
from fencing.contrib.django.marks import Marks
from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import Fence
from storage_guards.sql.outcome import Admitted
from storage_guards.sql.plans import Plan, plan_check, plan_claim
from storage_guards.sql.transaction import GuardedTransaction

_ENDED_INSIDE = (
    "the checked transaction was not sound at the block's end. Perhaps a statement failed and its error was "
    "swallowed: then nothing was written; put transaction.atomic() around what may fail. Perhaps the block sent COMMIT "
    "or ROLLBACK as text, or a statement that commits implicitly (on MariaDB and MySQL each CREATE, ALTER, TRUNCATE "
    "…): then what it wrote before is committed or not, but nothing later; leave the end to the guard"
)

NOT_ATOMIC = (
    "outside transaction.atomic() each statement is committed at once, so the check would not hold until the write; "
    "call advance first in an atomic() block, or use guard.begin()"
)

NOT_AUTOCOMMIT = (
    "this connection has autocommit off, so Django leaves its commit to you, and the guard cannot have a transaction "
    "of its own; remove AUTOCOMMIT from DATABASES, and use transaction.atomic()"
)

IN_ATOMIC = (
    "begin() opens a transaction of its own, and this is inside atomic(). Call guard.advance(lease) first in the "
    "outermost atomic() instead. With ATOMIC_REQUESTS the view is inside one: decorate it with "
    "transaction.non_atomic_requests"
)

NESTED = (
    "this is inside a nested atomic(), which is a savepoint: a rollback to it would drop the check. Call the guard "
    "first in the outermost atomic(). With ATOMIC_REQUESTS that is the request's: decorate the view with "
    "transaction.non_atomic_requests, and open atomic() in it"
)

READ_BEFORE = (
    "this transaction has sent statements before the guard's, so what it has read may be older than the claim. The "
    "guard comes first in its transaction: with ATOMIC_REQUESTS before all that the view reads, request.user and "
    "sessions included. Or decorate the view with transaction.non_atomic_requests, and open atomic() behind the lock"
)


class DjangoTransaction(GuardedTransaction[Marks]):
    """A :class:`GuardedTransaction` on a connection of Django's."""

    @contextmanager
    def on(self, connection: Any) -> Iterator[Any]:
        """Begin and admit a transaction of the guard's own on entry; commit it or roll it back on exit."""
        require_autocommit(connection)
        with transaction.atomic(using=connection.alias, durable=True):
            if not self.writes:
                use_read_committed(self._marks, connection)
            with self._marks.bounded(connection, self.seconds):
                self._admit(connection)
            try:
                savepoint = self._set_savepoint(connection) if self.caller_block else ""
                yield connection
                if not connection.needs_rollback:
                    self._about_to_commit(connection, savepoint)
            except BaseException as error:
                self.body_failed(error)
                raise
        if self._committing:
            self.note_commit()

    def join(self, connection: Any, *, bounded: bool = True) -> None:
        """Check or claim as the first statements of a transaction of the caller's own.

        Args:
            connection: in that transaction.
            bounded: bound its waits.

        Raises:
            ValueError: it is in a savepoint, or has sent statements before.
        """
        state = State(connection)
        if state.is_nested:
            raise ValueError(NESTED)
        note = state.note()
        if not (state.is_of_test_case or (note and note.covers(self.fences))) and self._marks.may_have_read(connection):
            raise ValueError(READ_BEFORE)
        note = note or Note(connection)
        bounds = self._marks.bounded(connection, self.seconds) if bounded else nullcontext()
        with note.asking(), bounds:
            self._admit(connection, asks_for_savepoints=not state.is_of_test_case)
        note.fences.update(self.fences)

    def _admit(self, connection: Any, *, asks_for_savepoints: bool = False) -> None:
        plan: Plan[list[Admitted]]
        plan = plan_claim(self.fences, self.writes) if self.claims else plan_check(self.fences, nested=NESTED)
        admitted = self._marks.perform(connection, plan, joined=asks_for_savepoints)
        self.check_continuity(admitted)
        if self.once is not None:
            self._marks.perform(connection, self.plan_once(admitted[0], self.once))
        self._admitted = admitted

    def _set_savepoint(self, connection: Any) -> str:
        """Set a savepoint that ends with its transaction: by a COMMIT, an implicit commit, a deadlock."""
        savepoint = f"fencing_{secrets.token_hex(8)}"
        with connection.cursor() as cursor:
            cursor.execute(f"SAVEPOINT {savepoint}")
        return savepoint

    def _about_to_commit(self, connection: Any, savepoint: str) -> None:
        """End the block's own work: from here on a missing answer means an unknown outcome."""
        self.require_own()
        if savepoint:
            try:
                with connection.cursor() as cursor:
                    cursor.execute(f"RELEASE SAVEPOINT {savepoint}")
            except Error as error:
                if savepoint_is_gone(error):
                    self.refuse(_ENDED_INSIDE)
                self.note_not_sent(error)
                raise
        self._committing = True

    def _commit_was_refused(self, error: BaseException) -> bool:
        return commit_was_refused(error)


class State:
    """What Django knows of a connection's transaction.

    The blocks that a ``TestCase`` opens around each test do not count, as they do not for ``atomic(durable=True)``. So
    the code under test finds the same as without a test.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        blocks = connection.atomic_blocks
        of_test_case = [block for block in blocks if block._from_testcase]
        self.is_of_test_case = bool(of_test_case)
        self.is_joined = len(blocks) > len(of_test_case)
        """Whether the code is in an ``atomic()`` of its own."""
        # Each block but the outermost has an entry: the id of its savepoint, or None.
        self.is_nested = any(connection.savepoint_ids[len(of_test_case) :])

    def note(self) -> Note | None:
        """Return the note of this transaction, if a guard's statement was its first."""
        noted = (each for entry in self._connection.run_on_commit for each in entry)
        return next((each for each in noted if isinstance(each, Note)), None)


class Note:
    """A note that a guard's statement was the first of a transaction. Django drops it when the transaction ends.

    Args:
        connection: in that transaction, which has sent no statement.

    Attributes:
        fences: those that were claimed or checked before any other statement, or were covered already.
    """

    def __init__(self, connection: Any) -> None:
        self.fences: set[Fence] = set()
        self._is_alone, self._asks = True, False
        self._wrappers = connection.execute_wrappers
        self._wrappers.insert(0, self._watch)  # execute_wrapper() takes the last one off
        connection.on_commit(self)

    def __call__(self) -> None:
        """Do nothing, at the commit."""

    def covers(self, fences: Iterable[Fence]) -> bool:
        """Return whether nothing can have been read before these fences are checked, or were claimed."""
        return self._is_alone or self.fences.issuperset(fences)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Let a guard send its statements in the block."""
        self._asks = True
        try:
            yield
        finally:
            self._asks = False

    def _watch(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if not self._asks:
            self._is_alone = False
            self._wrappers.remove(self._watch)
        return execute(sql, params, many, context)


def use_read_committed(marks: Marks, connection: Any) -> None:
    """Make a transaction that has just begun READ COMMITTED. That of a ``TestCase`` has begun before."""
    if not State(connection).is_of_test_case:
        marks.use_read_committed(connection)


def require_autocommit(connection: Any) -> None:
    """Raise GuardNotEnforceable where Django leaves transactions to its user."""
    if not connection.in_atomic_block and not connection.get_autocommit():
        raise GuardNotEnforceable(NOT_AUTOCOMMIT)

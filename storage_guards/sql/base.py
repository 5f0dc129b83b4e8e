"""The base of every SQL guard: its operations, besides claims and guarded blocks, as values.

Each operation is one piece of work on a connection of its own. Each guard decides how to run it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, check_resource
from fencing.kernel.process import OfThisProcess
from storage_guards.bounds import check_timeout, check_unknown, wait_seconds
from storage_guards.once import check_key
from storage_guards.sql.enforcement import enforce, question_for_forgers
from storage_guards.sql.errors import ASK_AGAIN, NOTHING_WRITTEN, ErrorContext
from storage_guards.sql.pruning import Pruning, check_pruning
from storage_guards.sql.schema import check_schema

logger = logging.getLogger("fencing")

_REPEAT = "what was deleted until then stays deleted; call it again"


class Operation(NamedTuple):
    """Work on an idle connection, which it leaves idle.

    Args:
        errors: explains the errors of the work, and has the bound of each wait.
        work: does the work on a connection. With psycopg it returns the plan.
        waits: how often the server may stay silent for the whole bound.
    """

    errors: ErrorContext
    work: Callable[[Any], Any]
    waits: int = 1


class OperationsBase(OfThisProcess, ABC):
    """The operations as values, and the hooks that each guard supplies for them."""

    def __init__(self, timeout: float, schema: str | None) -> None:
        self._timeout = check_timeout(timeout)
        self._schema = check_schema(schema)

    def __repr__(self) -> str:
        schema = f", schema {self._schema!r}" if self._schema else ""
        return f"<{type(self).__name__} on {self._where()}{schema}, timeout {self._timeout:g} s>"

    @abstractmethod
    def _where(self) -> str:
        """Return the address of the database, without secrets."""

    def enforcement_sql(self, table: str, *, resource: str, role: str) -> str:
        """Return the statement that ``enforce`` executes, for use in a migration.

        It makes the same demands as ``enforce`` and fails in the same cases. Run it again after a later ``GRANT`` to
        another role and after a new partition: it does not notice these.

        Args:
            table: as for ``enforce``.
            resource: as for ``enforce``.
            role: as for ``enforce``.
        """
        return enforce(table, resource, role, self._schema)

    def _creation(self) -> Operation:
        return Operation(self._errors(), self._create)

    def _reading(self, resource: str) -> Operation:
        check_resource(resource)
        return Operation(self._errors(), lambda connection: self._read(connection, resource))

    def _listing(self, after: str) -> Operation:
        return Operation(self._errors(), lambda connection: self._list(connection, after))

    def _inquiry(self, error: object, timeout: float | None) -> Operation:
        unknown = check_unknown(error)
        seconds = wait_seconds((), self._timeout, timeout)
        errors = self._errors([unknown.fence], seconds, ASK_AGAIN)
        return Operation(errors, lambda connection: self._settle(connection, unknown, seconds), waits=3)

    def _pruning(self, below: object, older_than: object) -> Operation:
        pruning = check_pruning(below, older_than)
        return Operation(self._errors(then=_REPEAT), lambda connection: self._prune(connection, pruning))

    def _done_pruning(self, resource: str, below: object) -> Operation:
        check_resource(resource)
        key = check_key(below, "below")
        return Operation(self._errors(then=_REPEAT), lambda connection: self._prune_done(connection, resource, key))

    def _verification(self) -> Operation:
        return Operation(self._errors(), self._verify)

    def _enforcement(self, table: str, resource: str, role: str) -> Operation:
        return self._change(enforce(table, resource, role, self._schema), question_for_forgers(self._schema))

    def _change(self, statement: str, question: str = "SELECT '' WHERE false") -> Operation:
        return Operation(self._errors(), lambda connection: self._execute(connection, statement, question))

    def _warn_of(self, forgers: Sequence[str]) -> None:
        """Log the roles that may change marks although the database enforces."""
        if forgers:
            logger.warning(
                "these roles may change the mark table directly, so they can forge a mark and pass the check: %s; "
                "revoke that (pg_write_all_data, for instance), and call enforce() for those that use a guard",
                ", ".join(forgers),
            )

    @abstractmethod
    def _errors(
        self, fences: Sequence[Fence] = (), seconds: float | None = None, then: str = NOTHING_WRITTEN
    ) -> ErrorContext:
        """Return the driver's error context. Without ``seconds`` its bound is the guard's own."""

    @abstractmethod
    def _create(self, connection: Any) -> Any:
        """Create the table and its floor row where they are missing. Two processes may do it at once."""

    @abstractmethod
    def _read(self, connection: Any, resource: str) -> Any:
        """Read the mark. It locks nothing, so the mark may change at any time."""

    @abstractmethod
    def _list(self, connection: Any, after: str) -> Any:
        """Read a page of marks. It locks nothing, and begins behind this name."""

    @abstractmethod
    def _settle(self, connection: Any, unknown: OutcomeUnknown, seconds: float) -> Any:
        """Return the verdict: lock the mark, read it, and leave everything as it was."""

    @abstractmethod
    def _prune(self, connection: Any, pruning: Pruning) -> Any:
        """Delete the marks that may go, in several transactions, and return how many were deleted."""

    @abstractmethod
    def _prune_done(self, connection: Any, resource: str, below: str) -> Any:
        """Delete what is noted of the keys below this one, in several transactions, and return how many went."""

    @abstractmethod
    def _verify(self, connection: Any) -> Any:
        """Return the report."""

    @abstractmethod
    def _execute(self, connection: Any, statement: str, question: str) -> Any:
        """Execute the statement in a transaction of its own, within the guard's bounds, and return the texts that
        answer the question. PostgreSQL only."""

"""The common part of the sync and the async guard through psycopg: everything but ``with`` and ``await``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from psycopg.abc import PQGen
from psycopg.sql import SQL, Composed

from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark
from storage_guards.bounds import fences_of, wait_seconds
from storage_guards.continuity import Continuity
from storage_guards.once import check_once
from storage_guards.psycopg import plans
from storage_guards.psycopg.errors import PsycopgErrors
from storage_guards.psycopg.sources import address_of
from storage_guards.psycopg.statements import AnyConnection, MarkAccess
from storage_guards.psycopg.transaction import PsycopgTransaction
from storage_guards.psycopg.wire import perform
from storage_guards.sql.base import OperationsBase
from storage_guards.sql.errors import NOTHING_WRITTEN
from storage_guards.sql.listing import Page, page_on, plan_page
from storage_guards.sql.once import plan_prune_done
from storage_guards.sql.plans import Batch, Plan, plan_batch, plan_create, plan_mark, plan_prune, plan_settle
from storage_guards.sql.pruning import Pruning, on_postgresql
from storage_guards.sql.schema import Choice
from storage_guards.sql.statements import LOCK_CREATION, is_one_write, refuse_select
from storage_guards.sql.verify import VerifyReport

Query = str | bytes | SQL | Composed


class PsycopgBase(OperationsBase):
    """The base of both guards. It makes transactions of arguments, and plans of operations."""

    def __init__(self, source: object, timeout: float, schema: str | None) -> None:
        super().__init__(timeout, schema)
        self._access = MarkAccess(Choice("postgresql", self._schema))
        shared = (
            sys.intern(str(source)) if isinstance(source, str) else source
        )  # equal connection strings are one database
        self._continuity = Continuity(shared, self._schema)
        self._source = source

    def _where(self) -> str:
        return address_of(self._source)

    def _transaction(
        self,
        holders: Sequence[Fence | HasFence],
        *,
        claim: bool,
        writes: int = 1,
        timeout: float | None = None,
        caller_block: bool = False,
        joined: bool = False,
        once: str | None = None,
    ) -> PsycopgTransaction:
        if len(holders) == 1 and type(holders[0]) is Fence and timeout is None:  # the usual case, without calls
            fences, seconds = [holders[0]], self._timeout
        else:
            fences, seconds = fences_of(holders), wait_seconds(holders, self._timeout, timeout)
        if once is not None:
            check_once(once, holders)
        errors = PsycopgErrors(fences, seconds)
        return PsycopgTransaction(
            self._access,
            errors,
            claim=claim,
            writes=writes,
            caller_block=caller_block,
            joined=joined,
            holders=holders,
            continuity=self._continuity,
            once=once,
        )

    def _errors(
        self, fences: Sequence[Fence] = (), seconds: float | None = None, then: str = NOTHING_WRITTEN
    ) -> PsycopgErrors:
        return PsycopgErrors(fences, self._timeout if seconds is None else seconds, then)

    def _create(self, connection: AnyConnection) -> PQGen[None]:
        plan = plan_create(self._access.choice, [LOCK_CREATION])
        return perform(connection, self._access, plan, self._timeout)

    def _read(self, connection: AnyConnection, resource: str) -> PQGen[Mark | None]:
        return plans.located(connection, self._access, plan_mark(resource), self._timeout)

    def _list(self, connection: AnyConnection, after: str) -> PQGen[Page]:
        def page() -> Plan[Page]:
            return (yield from plan_page(page_on("postgresql", self._access.texts.table, after)))

        return plans.located(connection, self._access, page(), self._timeout)

    def _settle(self, connection: AnyConnection, unknown: OutcomeUnknown, seconds: float) -> PQGen[bool | None]:
        return plans.located(connection, self._access, plan_settle(unknown), seconds)

    def _prune(self, connection: AnyConnection, pruning: Pruning) -> PQGen[int]:
        def batch(left: Pruning) -> Plan[Batch]:
            table = self._access.texts.table
            return plan_batch(table, on_postgresql(table, left))

        return plans.located(connection, self._access, plan_prune(pruning, batch), self._timeout)

    def _prune_done(self, connection: AnyConnection, resource: str, below: str) -> PQGen[int]:
        return plans.located(connection, self._access, plan_prune_done(resource, below), self._timeout)

    def _verify(self, connection: AnyConnection) -> PQGen[VerifyReport]:
        return plans.verify(connection, self._access, self._timeout)

    def _execute(self, connection: AnyConnection, statement: str, question: str) -> PQGen[list[str]]:
        return plans.execute(connection, statement, question, self._timeout)


def may_end_the_transaction(query: object) -> bool:
    """Return whether the query may end the transaction, also as one of several statements. PostgreSQL takes these where
    there are no parameters."""
    text = query.decode("latin-1") if isinstance(query, bytes) else query
    if isinstance(text, str):
        refuse_select(text)
        return not is_one_write(text)
    if isinstance(query, Fence) or isinstance(getattr(query, "fence", None), Fence):
        raise TypeError("write got a fence in the place of the query: pass the lease first, then the query")
    if type(query).__module__.partition(".")[0] == "sqlalchemy":
        raise TypeError(
            f"write takes a query that psycopg executes, such as a str, not SQLAlchemy's {type(query).__name__}; pass "
            f"its SQL with %s for each value, or use SQLAlchemyGuard with an engine"
        )
    return True

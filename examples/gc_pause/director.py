"""Plays an act with two real processes, and measures the result.

The director decides when a worker is paused, when it goes on and how long it thinks. It does not decide what the
workers, the lock service and PostgreSQL do then; that is recorded as they report it.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, insert, select

from examples.drawing.events import Lane, Recorder
from examples.gc_pause.deposits import accounts
from examples.stage import director
from examples.stage.director import Act
from examples.stage.process import WorkerProcess
from examples.stage.screen import Screen
from storage_guards import SQLAlchemyGuard

OPENING = 100
AMOUNTS = {"A": 10, "B": 5}

LANES = (
    Lane("A", f"A adds {AMOUNTS['A']}", hue=1),
    Lane("lock", "LOCK"),
    Lane("B", f"B adds {AMOUNTS['B']}", hue=2),
    Lane("row", "ROW (PostgreSQL)"),
)


@dataclass(frozen=True)
class Outcome:
    """The measured result of an act."""

    act: Act
    acknowledged: dict[str, int]
    """By worker: deposits whose write was acknowledged by the database."""
    refused: list[str]
    """The messages that refused workers got."""
    final: int
    """The balance in the database."""

    @property
    def expected(self) -> int:
        return OPENING + sum(self.acknowledged.values())

    @property
    def lost(self) -> int:
        return self.expected - self.final

    @property
    def good(self) -> bool:
        return not self.lost

    @property
    def loser(self) -> str | None:
        """Whose acknowledged deposit is missing."""
        return next((name for name, amount in self.acknowledged.items() if amount == self.lost), None)

    @property
    def as_expected(self) -> bool:
        complete = self.acknowledged == AMOUNTS
        return complete and (self.lost > 0) == self.act.harms and bool(self.refused) != self.act.harms


class Director(director.Director):
    STORAGE = "row"

    def __init__(
        self,
        workers: dict[str, WorkerProcess],
        redis_client: Any,
        engine: Engine,
        recorder: Recorder,
        screen: Screen,
        *,
        ttl: float,
        prefix: str,
    ) -> None:
        super().__init__(workers, redis_client, SQLAlchemyGuard(engine), recorder, screen, ttl=ttl, prefix=prefix)
        self._engine = engine
        self._account = 0

    def play(self, act: Act) -> Outcome:
        self._begin_account(act)
        self._start("A", act)
        self._until("A", "read")
        pause = self._freeze("A")
        self._go_on("A")  # it has thought enough: from here on nothing but the pause keeps it from writing
        self._wait_for_expiry()
        self._start("B", act)
        self._until("B", "read")
        if not act.resumes_early:
            self._go_on("B")
            self._finish("B")
        self._thaw("A", pause)
        self._until("A", "wrote", "refused")
        if act.resumes_early:
            self._go_on("B")
            self._finish("B")
        self._finish("A")
        return Outcome(act, self._acknowledged, self._refused, self._row()[0])

    def _begin_account(self, act: Act) -> None:
        self._account += 1
        self._begin(act, f"account:{self._account}")
        self._sums: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        with self._engine.begin() as connection:
            connection.execute(insert(accounts).values(id=self._account, balance=OPENING, fence=0))
        self._recorder.begin(act.key)
        self._recorder.add("row", "found", f"{self._row()[0]}", balance=self._row()[0])

    def _start(self, name: str, act: Act) -> None:
        self._workers[name].send(how=act.how, resource=self._resource, account=self._account, amount=AMOUNTS[name])

    def _go_on(self, name: str) -> None:
        self._workers[name].send(think="done")

    def _finish(self, name: str) -> None:
        """Let a worker finish; each time it has read, it may go on at once."""
        while self._until(name, "read", "done") == "read":
            self._go_on(name)

    def _record(self, name: str, report: dict[str, Any]) -> None:
        at = report["at"]
        kind = report["kind"]
        add = self._recorder.add
        if kind == "read":
            self._sums[name] = report["sum"]
            add(
                name,
                kind,
                f"reads {report['balance']}",
                at=at,
                source="row",
                balance=report["balance"],
                sum=self._sums[name],
            )
        elif kind == "wrote":
            self._acknowledged[name] = AMOUNTS[name]
            text = f"writes {report['balance']}"
            add(name, kind, text, at=at, target="row", balance=report["balance"], **self._sent(name))
            self._record_row(name, at)
        elif kind == "refused":
            self._refused.append(report["reason"])
            late, sent, reason = self._sums[name], self._sent(name), report["reason"]
            add(name, "tried", f"tries to write {late}", at=at, target="row", sum=late, reason=reason, **sent)
            newest = report["newest"]  # as the refusal said: by now the worker may have claimed again
            add("row", kind, "REFUSED" + (f": {self._name(newest)} claimed" if newest else ""), because=at)

    def _record_row(self, name: str, at: float) -> None:
        """Record what the row holds after a write, and what it should hold. Nothing else writes meanwhile."""
        balance, fence = self._row()
        should = OPENING + sum(self._acknowledged.values())
        text = f"{balance}" + (f" ({self._name(fence)})" if fence else "")
        data: dict[str, Any] = {"balance": balance, "should": should, "by": name}
        if balance == should:
            self._recorder.add("row", "written", text, because=at, **data)
        else:
            flag = f"LOST UPDATE: {should - balance}"
            self._recorder.add("row", "damaged", f"{text}, not {should}", because=at, flag=flag, **data)

    def _row(self) -> tuple[int, int]:
        statement = select(accounts.c.balance, accounts.c.fence).where(accounts.c.id == self._account)
        with self._engine.connect() as connection:
            row = connection.execute(statement).one()
        return row.balance, row.fence

"""Plays an act with two real processes, and measures what came of it.

The director decides when a worker is stopped, when it goes on, and how long it thinks. What the workers, Redis and
PostgreSQL do then is theirs; it is recorded as they report it.
"""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Engine, insert, select

from examples.drawing.events import Event, Lane, Recorder
from examples.gc_pause.deposits import accounts
from examples.stage.process import PATIENCE, DemoError, WorkerProcess
from examples.stage.screen import Screen
from fencing import FencedLock
from storage_guards import SQLAlchemyGuard

OPENING = 100
AMOUNTS = {"A": 10, "B": 5}

LANES = (
    Lane("A", f"A adds {AMOUNTS['A']}", hue=1),
    Lane("lock", "LOCK (Redis)"),
    Lane("B", f"B adds {AMOUNTS['B']}", hue=2),
    Lane("row", "ROW (PostgreSQL)"),
)


class Act(NamedTuple):
    key: str
    title: str
    how: str
    """The function in deposits.py."""
    fenced: bool
    """Its writes carry the fencing number."""
    wakes_early: bool
    """A wakes when B has read and not yet written; else when B is done."""
    loses: bool
    """What is claimed of it, to be compared with what is measured."""


@dataclass(frozen=True)
class Outcome:
    """What an act came to, as measured."""

    act: Act
    acknowledged: dict[str, int]
    """By worker: deposits whose write was acknowledged by the database."""
    refused: list[str]
    """What a refused worker was told."""
    final: int
    """The balance in the database."""

    @property
    def expected(self) -> int:
        return OPENING + sum(self.acknowledged.values())

    @property
    def lost(self) -> int:
        return self.expected - self.final

    @property
    def loser(self) -> str | None:
        """Whose acknowledged deposit is missing."""
        return next((name for name, amount in self.acknowledged.items() if amount == self.lost), None)

    @property
    def as_claimed(self) -> bool:
        complete = self.acknowledged == AMOUNTS
        return complete and (self.lost > 0) == self.act.loses and bool(self.refused) != self.act.loses


class Director:
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
        self._workers = workers
        self._redis = redis_client
        self._engine = engine
        self._guard = SQLAlchemyGuard(engine)
        self._recorder = recorder
        self._screen = screen
        self._ttl = ttl
        self._prefix = prefix
        self._account = 0

    def play(self, act: Act) -> Outcome:
        self._begin(act)
        self._start("A", act)
        self._until("A", "read")
        pause = self._freeze("A")
        self._go_on("A")  # it has thought enough: from here on nothing but the pause keeps it from writing
        self._wait_for_expiry()
        self._start("B", act)
        self._until("B", "read")
        if not act.wakes_early:
            self._go_on("B")
            self._finish("B")
        self._thaw("A", pause)
        self._until("A", "wrote", "refused")
        if act.wakes_early:
            self._go_on("B")
            self._finish("B")
        self._finish("A")
        return Outcome(act, self._acknowledged, self._refused, self._row()[0])

    def _begin(self, act: Act) -> None:
        self._act = act
        self._account += 1
        self._resource = f"{self._prefix}account:{self._account}"
        self._lock = FencedLock(self._redis, self._resource, ttl=self._ttl)
        self._leases: dict[str, Event] = {}
        self._names: dict[int, str] = {}
        self._sent: dict[str, dict[str, Any]] = {}
        """By worker: the fencing number that its writes carry, if they carry one."""
        self._sums: dict[str, int] = {}
        self._acknowledged: dict[str, int] = {}
        self._refused: list[str] = []
        with self._engine.begin() as connection:
            connection.execute(insert(accounts).values(id=self._account, balance=OPENING, fence=0))
        self._recorder.begin(act.key)
        self._recorder.add("row", "found", f"{self._row()[0]}", balance=self._row()[0])

    def _start(self, name: str, act: Act) -> None:
        self._workers[name].send(how=act.how, resource=self._resource, account=self._account, amount=AMOUNTS[name])

    def _go_on(self, name: str) -> None:
        self._workers[name].send(think="done")

    def _until(self, name: str, *kinds: str) -> str:
        """Take in a worker's reports up to one of these kinds; which one it was."""
        while True:
            report = self._workers[name].report(lambda: self._screen.wait(f"waiting for worker {name}"))
            self._record(name, report)
            if report["kind"] in kinds:
                return str(report["kind"])
            if report["kind"] == "done":
                raise DemoError(f"worker {name} was done before it came to {' or '.join(kinds)}")

    def _finish(self, name: str) -> None:
        """Let a worker come to its end; whenever it has read, it may go on at once."""
        while self._until(name, "read", "done") == "read":
            self._go_on(name)

    def _freeze(self, name: str) -> Event:
        worker = self._workers[name]
        worker.freeze()
        return self._recorder.open(name, "frozen", "FROZEN (SIGSTOP)", pid=worker.pid)

    def _thaw(self, name: str, pause: Event) -> None:
        self._recorder.close(pause, "wakes (SIGCONT)")
        self._workers[name].thaw()

    def _wait_for_expiry(self) -> None:
        """Ask Redis until the frozen worker's lock has run out."""
        deadline = time.monotonic() + self._ttl + PATIENCE
        while (holder := self._lock.holder()) is not None:
            if time.monotonic() > deadline:
                raise DemoError(f"Redis still holds the lock of {holder.owner}")
            self._screen.wait(f"A's lock runs out in {holder.remaining or 0:.1f} s")
            time.sleep(0.02)
        self._recorder.close(self._leases.pop("A"), "expires")

    def _record(self, name: str, report: dict[str, Any]) -> None:
        at = report["at"]
        kind = report["kind"]
        add = self._recorder.add
        if kind == "acquired":
            self._record_grant(name, at, report["number"])
        elif kind == "read":
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
            sent = self._sent[name]
            add(name, kind, f"writes {report['balance']}", at=at, target="row", balance=report["balance"], **sent)
            self._record_row(name, at)
        elif kind == "refused":
            self._refused.append(report["reason"])
            late, sent, reason = self._sums[name], self._sent[name], report["reason"]
            add(name, "tried", f"tries to write {late}", at=at, target="row", sum=late, reason=reason, **sent)
            newest = report["newest"]  # as the refusal said: by now the worker may have claimed again
            add("row", kind, "REFUSED" + (f", {self._name(newest)} claimed" if newest else ""), because=at)
        elif kind == "told":
            add(name, kind, "is told: lock lost", at=at, reason=report["reason"])
        elif kind == "released":
            add(name, kind, "frees the lock", at=at, target="lock")
            self._recorder.close(self._leases.pop(name), "free", at=at)

    def _record_grant(self, name: str, at: float, number: int) -> None:
        alias = self._recorder.alias(number)
        fence: dict[str, Any] = {"number": number, "label": alias}
        label = self._names[number] = f"{name} {alias}"
        self._sent[name] = fence if self._act.fenced else {}
        self._recorder.add(name, "acquired", "takes the lock", at=at, source="lock", **fence)
        self._leases[name] = self._recorder.open("lock", "held", label, at=at, holder=name, number=number)
        mark = self._guard.mark(self._resource)
        if mark:  # in the database: that it was claimed, and by whom
            fence = {"number": mark.number, "label": self._recorder.alias(mark.number)}
            text = f"claimed: {self._name(mark.number)}"
            self._recorder.add("row", "claimed", text, because=at, source=name, **fence)

    def _record_row(self, name: str, at: float) -> None:
        """What the row holds after a write, beside what it should hold. Nobody else writes meanwhile."""
        balance, fence = self._row()
        should = OPENING + sum(self._acknowledged.values())
        text = f"{balance}" + (f" ({self._name(fence)})" if fence else "")
        data: dict[str, Any] = {"balance": balance, "should": should, "by": name}
        if balance == should:
            self._recorder.add("row", "written", text, because=at, **data)
        else:
            flag = f"LOST UPDATE: {should - balance}"
            self._recorder.add("row", "damaged", f"{text}, not {should}", because=at, flag=flag, **data)

    def _name(self, number: int) -> str:
        """Whose fencing number this is; a grant that nobody got to see has only its alias."""
        return self._names.get(number, self._recorder.alias(number))

    def _row(self) -> tuple[int, int]:
        statement = select(accounts.c.balance, accounts.c.fence).where(accounts.c.id == self._account)
        with self._engine.connect() as connection:
            row = connection.execute(statement).one()
        return row.balance, row.fence

"""Every interleaving of two callers of ``hold_all`` with crossed orders: none waits for the other in a circle."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from fencing import LockTable, MemoryCoordinator
from fencing.kernel.effects import Plan, Shielded, Sleep
from fencing.locks import several

WAITS, RUNS, DONE = "waits", "runs", "done"


def flat(plan: Plan[Any]) -> Plan[Any]:
    """Yield the requests and pauses of a plan and of the plans inside it."""
    result = None
    while True:
        try:
            effect = plan.send(result)
        except StopIteration as stop:
            return stop.value
        if isinstance(effect, (several.At, Shielded)):
            result = yield from flat(effect.plan)
        else:
            result = yield effect


class Walked(MemoryCoordinator):
    def __init__(self, table: LockTable, **options: Any) -> None:
        super().__init__(table, **options)
        self._backend.give_back_later = nothing  # the walk leaves many plans in the middle
        self._backend.track = nothing  # it is not in the process' timer


def nothing(*_: object) -> None:
    pass


class Caller:
    """A caller that takes its locks, releases them and ends. One step is one request."""

    def __init__(self, table: LockTable, resources: Sequence[str]) -> None:
        self.coordinator = Walked(table, ttl=1000, renew=False)
        self.resources = resources
        self.table = table
        self.wanted = ""
        self.reply: Any = None
        self.state = RUNS
        self._steps = self._work()

    def _work(self) -> Generator[Any, Any, None]:
        parts = several.parts_of([self.coordinator.lock(each) for each in self.resources])
        for part in parts:
            part.lease = lambda holding: holding
        for holding in reversed((yield from flat(several.acquire_all(parts, float("inf"))))):
            holding.end("released")
            yield from flat(
                self.coordinator._backend.plan_release(holding.fence, self.coordinator._backend.settings, deadline=0)
            )

    def step(self) -> None:
        try:
            effect = self._steps.send(self.reply)
        except StopIteration:
            self.state = DONE
            return
        if isinstance(effect, Sleep):
            self.state, self.reply = WAITS, None
            return
        self.state = RUNS
        self.wanted = effect.arguments[0]
        self.reply = self.coordinator._backend.perform(effect)

    @property
    def can_go_on(self) -> bool:
        """Whether a step would get it further: one that waits asks again in vain while the lock is taken."""
        return self.state == RUNS or (self.state == WAITS and self.wanted not in self.table._held)


def walk(*orders: Sequence[str]) -> tuple[int, int]:
    """Run the callers in every interleaving. Return how many end well, and how many end in a circle."""
    well = circles = 0
    schedules: list[tuple[int, ...]] = [()]
    while schedules:
        schedule = schedules.pop()
        table = LockTable()
        callers = [Caller(table, order) for order in orders]
        for caller in schedule:
            callers[caller].step()
        able = [index for index, caller in enumerate(callers) if caller.can_go_on]
        schedules += [(*schedule, index) for index in able]
        if not able:
            ended = all(caller.state == DONE for caller in callers)
            well, circles = well + ended, circles + (not ended)
    return well, circles


@pytest.mark.thorough
def test_crossed_orders_never_make_a_circle() -> None:
    well, circles = walk(["a", "b"], ["b", "a"])
    assert circles == 0
    assert well > 100


@pytest.mark.thorough
def test_three_locks() -> None:
    well, circles = walk(["a", "b", "c"], ["c", "a", "b"])
    assert circles == 0
    assert well > 500


@pytest.mark.thorough
def test_without_the_order_there_are_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "_in_order", list)
    well, circles = walk(["a", "b"], ["b", "a"])
    assert circles > 0
    assert well > 0

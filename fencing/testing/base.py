"""What the suites of coordinators share: how coordinators are made and asked, and a guard that a test can upset."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from fencing.kernel.admission import admit_claim, as_fence
from fencing.kernel.effects import Plan, run, run_async
from fencing.kernel.errors import FencingError
from fencing.kernel.fence import Fence, HasFence, Mark
from fencing.locks import plans
from fencing.memory import MemoryCoordinator
from fencing.testing.contract import Contract


class CoordinatorTests(Contract):
    """What the suites of coordinators share: how coordinators are made, and asked."""

    short_ttl: float = 0.3
    """Seconds; the shortest ttl that the backend keeps well. Tests that wait for an expiry take a few of these."""

    def make(self, **options: Any) -> Any:
        """Make a new coordinator on the backend under test, as another process would make one. To be overridden."""
        raise AssertionError("override make()")

    def make_expiring(self, ttl: float) -> Any:
        """Make one whose leases expire after ``ttl`` seconds, for want of a renewal. To be overridden where
        ``renew=False`` is refused, as by a backend that keeps a session alive."""
        return self.make(ttl=ttl, renew=False)

    def make_unreachable(self, **options: Any) -> Any:
        """Make one whose service does not answer: it is silent, or away. None: that is not tried."""
        return None

    def teardown_method(self) -> None:
        """Close what was made for a test."""
        for coordinator in self.__dict__.pop("_made", ()):
            if not coordinator.closed:
                self.call(coordinator.close)

    # Plumbing

    def _make(self, **options: Any) -> Any:
        return self._keep(self.make(**options))

    def _expiring(self) -> Any:
        return self._keep(self.make_expiring(self.short_ttl))

    def _keep(self, coordinator: Any) -> Any:
        self.__dict__.setdefault("_made", []).append(coordinator)
        return coordinator

    def _name(self) -> str:
        return f"contract:{plans.new_token()}"

    def _plan(self, coordinator: Any, plan: Plan[Any]) -> Any:
        shell = run_async if inspect.iscoroutinefunction(coordinator.perform) else run
        return self.call(shell, plan, coordinator.perform)

    def _acquire(self, coordinator: Any, name: str, token: str, floor: int = 0) -> Any:
        deadline = coordinator.clock() + 5
        plan = coordinator.plan_acquire(name, token, coordinator.settings, floor=floor, deadline=deadline)
        return self._plan(coordinator, plan)

    def _remint(self, coordinator: Any, fence: Fence, token: str, floor: int) -> Any:
        deadline = coordinator.clock() + 5
        plan = coordinator.plan_remint(fence, token, coordinator.settings, floor=floor, deadline=deadline)
        return self._plan(coordinator, plan)

    def _with_enough_time(self, story: Callable[[], None]) -> None:
        """Run a story; if it fails, again with a longer ``short_ttl``: leases expire while a busy machine stalls."""
        shortest = self.short_ttl
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # a story that fails releases nothing
            for factor in (1, 4):
                self.short_ttl = factor * shortest
                try:
                    return story()
                except (AssertionError, FencingError):
                    pass
        self.short_ttl = 16 * shortest
        return story()

    def _guard(self) -> Any:
        asynchronous = inspect.iscoroutinefunction(self._make().perform)
        return AsyncScriptedGuard() if asynchronous else ScriptedGuard()


def can(coordinator: Any, capability: Any) -> bool:
    return isinstance(coordinator, capability)


def claimed_an_hour_above(coordinator: MemoryCoordinator, fence: Fence) -> Fence:
    """What replaces the fence: as if its coordinator's clock were an hour ahead."""
    settings, floor = coordinator.settings, fence.number + 3_600_000_000
    deadline = coordinator.clock() + 5
    plan = coordinator.plan_remint(fence, plans.new_token(), settings, floor=floor, deadline=deadline)
    grant = run(plan, coordinator.perform)
    assert grant is not None
    for guard in settings.guards:
        guard.claim(grant.fence)
    return grant.fence


class ScriptedGuard:
    """A guard in memory whose next claim a test can upset."""

    def __init__(self, marks: dict[str, Mark] | None = None) -> None:
        self.marks: dict[str, Mark] = {} if marks is None else marks
        self.claimed: list[Fence] = []
        self.timeouts: list[float | None] = []
        self.before_claim: Any = lambda fence: None

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        self._claim(holders, timeout)

    def mark(self, resource: str) -> Mark | None:
        return self.marks.get(resource)

    def _claim(self, holders: tuple[Fence | HasFence, ...], timeout: float | None) -> None:
        self.timeouts.append(timeout)
        for fence in map(as_fence, holders):
            self.claimed.append(fence)
            self.before_claim(fence)
            self.marks[fence.resource] = admit_claim(self.marks.get(fence.resource), fence)


class AsyncScriptedGuard(ScriptedGuard):
    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:  # type: ignore[override]
        self._claim(holders, timeout)

    async def mark(self, resource: str) -> Mark | None:  # type: ignore[override]
        return self.marks.get(resource)

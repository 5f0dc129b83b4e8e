"""The base of the coordinators' suites: the making of coordinators, and a guard whose claims a test controls."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

from fencing.kernel.admission import admit_claim, as_fence
from fencing.kernel.effects import Plan, run, run_async
from fencing.kernel.errors import CoordinatorUnavailable, FencingError
from fencing.kernel.fence import Fence, HasFence, Mark, new_token
from fencing.locks.backend import Undecided
from fencing.memory.coordinator import MemoryCoordinator
from fencing.testing.contract import Contract


class CoordinatorTests(Contract):
    """The base of the coordinators' suites."""

    short_ttl: float = 0.3
    """The shortest ttl that the backend keeps reliably, in seconds. Tests that wait for an expiry take a few of it."""

    time_step: float = 0.0
    """In which steps the service tells how long a lock still lasts, in seconds: 1.0 if it tells whole seconds, rounded
    or cut."""

    used_share: float = 0.0
    """How much of its ttl a new grant may lack: 0.33 if a lease of before serves it that may be a third of it old."""

    def make(self, **options: Any) -> Any:
        """Return a new coordinator on the backend under test, as another process would make one. Override this."""
        raise AssertionError("override make()")

    def make_expiring(self, ttl: float) -> Any:
        """Return a coordinator whose leases expire after ``ttl`` seconds, because they are not renewed.

        Override this if ``renew=False`` is refused, for example by a backend that keeps a session alive.
        """
        return self.make(ttl=ttl, renew=False)

    def end_session(self, coordinator: Any) -> None:
        """End the session of a coordinator at its service, as an operator can. The coordinator is not told of it here.

        Override this for a backend with ``RenewsSession``.
        """
        raise AssertionError("override end_session(), because all locks of the coordinator share a session")

    def make_unreachable(self, **options: Any) -> Any:
        """Return a coordinator whose service does not answer. Override this; None: the test is skipped."""
        return None

    def take_as_another_program(self, name: str) -> Callable[[], object] | None:
        """Take the lock as a program without this library does. Override this if there are such programs.

        Returns:
            A function that frees the lock again; None: there is no such program, and the test is skipped.
        """
        return None

    def teardown_method(self) -> None:
        """Close the coordinators of a test."""
        for coordinator in self.__dict__.pop("_made", ()):
            if not coordinator.closed:
                self.call(coordinator.close)

    # Helpers

    def _make(self, **options: Any) -> Any:
        return self._track(self.make(**options))

    def _expiring(self) -> Any:
        return self._track(self.make_expiring(self.short_ttl))

    def _track(self, coordinator: Any) -> Any:
        self.__dict__.setdefault("_made", []).append(coordinator)
        return coordinator

    def _name(self) -> str:
        return f"contract:{new_token()}"

    def _remaining(self, coordinator: Any, name: str) -> tuple[float, float]:
        """Return between which moments from now the lock frees itself, as far as its service tells that."""
        holder = self.call(coordinator.lock(name).holder)
        assert holder.expires
        if holder.remaining is None:
            return 0.0, math.inf
        return holder.remaining - self.time_step, holder.remaining + self.time_step

    def _holders(self, coordinator: Any, pattern: str) -> list[Any]:
        async def collect() -> list[Any]:
            return [each async for each in coordinator.holders(pattern)]

        if hasattr(coordinator.holders(pattern), "__anext__"):
            return list(self.call(collect))
        return list(coordinator.holders(pattern))

    def _plan(self, coordinator: Any, plan: Plan[Any]) -> Any:
        shell = run_async if inspect.iscoroutinefunction(coordinator._backend.perform) else run
        return self.call(shell, plan, coordinator._backend.perform)

    def _acquire(self, coordinator: Any, name: str, token: str, floor: int = 0) -> Any:
        deadline, reply = coordinator._backend.clock() + 5, None
        while reply is None or (
            isinstance(reply, Undecided) and coordinator._backend.clock() < deadline
        ):  # a machine may stall
            plan = coordinator._backend.plan_acquire(
                name, token, coordinator._backend.settings, floor=floor, deadline=deadline
            )
            try:
                reply = self._plan(coordinator, plan)
            except CoordinatorUnavailable:
                if coordinator._backend.clock() > deadline:
                    raise
        return reply

    def _remint(self, coordinator: Any, fence: Fence, token: str, floor: int) -> Any:
        deadline = coordinator._backend.clock() + 5
        plan = coordinator._backend.plan_remint(
            fence, token, coordinator._backend.settings, floor=floor, deadline=deadline
        )
        return self._plan(coordinator, plan)

    def _acquire_expiring(self, name: str) -> tuple[Any, Any]:
        """Return a coordinator whose leases expire, and a lease of it. Acquire again if a stall outlasted the grant."""
        for _ in range(4):
            coordinator = self._expiring()
            try:
                return coordinator, self.call(coordinator.acquire, name, timeout=10)
            except FencingError:
                continue
        return coordinator, self.call(coordinator.acquire, name, timeout=10)

    def _first_expiring(self, name: str, token: str) -> tuple[Any, Any]:
        """Return a coordinator whose leases expire, and the grant of a plan. A busy machine needs a longer ttl."""
        for factor in (1, 4, 16):
            coordinator = self._track(self.make_expiring(factor * self.short_ttl))
            try:
                return coordinator, self._acquire(coordinator, name, token)
            except CoordinatorUnavailable:
                if factor == 16:
                    raise
        raise AssertionError("the last one returns or raises")

    def _with_enough_time(self, story: Callable[[], None]) -> None:
        """Run a story of renewals in time; if it fails, again with a longer ``short_ttl``: a busy machine stalls."""
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
        asynchronous = inspect.iscoroutinefunction(self._make()._backend.perform)
        return AsyncScriptedGuard() if asynchronous else ScriptedGuard()


def has_capability(coordinator: Any, capability: Any) -> bool:
    """Return whether the coordinator's backend has a capability of ``fencing/locks/capabilities.py``."""
    return isinstance(coordinator._backend, capability)


def remint_a_minute_ahead(coordinator: MemoryCoordinator, fence: Fence) -> Fence:
    """Replace the fence by one whose number is a minute ahead, claim that at every guard, and return it.

    A remint above it may lift all names of an installation for ever, so it is no more than a test may take.
    """
    settings, floor = coordinator._backend.settings, fence.number + 60_000_000
    deadline = coordinator._backend.clock() + 5
    plan = coordinator._backend.plan_remint(fence, new_token(), settings, floor=floor, deadline=deadline)
    grant = run(plan, coordinator._backend.perform)
    assert grant is not None
    for guard in settings.guards:
        guard.claim(grant.fence)
    return grant.fence


class ScriptedGuard:
    """A guard in memory. A test can set ``before_claim``, which runs before each claim."""

    def __init__(self, marks: dict[str, Mark] | None = None) -> None:
        self.marks: dict[str, Mark] = {} if marks is None else marks
        self.claimed: list[Fence] = []
        self.timeouts: list[float | None] = []
        self.before_claim: Any = lambda fence: None

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Run ``before_claim``, then apply the rule for a claim to each fence."""
        self._claim(holders, timeout)

    def mark(self, resource: str) -> Mark | None:
        """Return the newest fence admitted for ``resource``; None: there is none yet."""
        return self.marks.get(resource)

    def _claim(self, holders: tuple[Fence | HasFence, ...], timeout: float | None) -> None:
        self.timeouts.append(timeout)
        for fence in map(as_fence, holders):
            self.claimed.append(fence)
            self.before_claim(fence)
            self.marks[fence.resource] = admit_claim(self.marks.get(fence.resource), fence)


class AsyncScriptedGuard(ScriptedGuard):
    """A :class:`ScriptedGuard` with async methods."""

    async def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:  # type: ignore[override]
        """Run ``before_claim``, then apply the rule for a claim to each fence."""
        self._claim(holders, timeout)

    async def mark(self, resource: str) -> Mark | None:  # type: ignore[override]
        """Return the newest fence admitted for ``resource``; None: there is none yet."""
        return self.marks.get(resource)

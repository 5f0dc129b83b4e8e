"""Breadth first through everything that can happen; so the first violation found is a shortest one."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from tests.explorer.world import World

__all__ = ["Result", "Violation", "explore"]


@dataclass(frozen=True)
class Violation:
    """A shortest way to violate a property."""

    kind: str
    trace: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.trace)

    def __str__(self) -> str:
        return f"TRACE {len(self)}: {', '.join(self.trace)}: {self.kind}"


@dataclass
class Result:
    """What was found. ``exhausted``: there is no state within the bounds that was not visited."""

    scenario: Any
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    most_refusals: int = 0
    depth: int = 0
    limit: int = 0
    violations: dict[str, Violation] = field(default_factory=dict)
    world: Any = None

    def __str__(self) -> str:
        verdict = "exhausted" if self.exhausted else "stopped"
        if self.exhausted and not self.violations:
            verdict = "SAFE"
        return (
            f"{self.scenario.name}: {verdict} {self.states:,} states, {self.steps:,} steps, depth {self.depth}, "
            f"at most {self.most_refusals} claims of a client refused, {self.seconds:.1f} s"
        )


def explore(
    scenario: Any,
    *,
    until: Collection[str] | None = None,
    limit: int = 10_000_000,
    world_of: Callable[[Any], Any] = World,
) -> Result:
    """Visit every state of a scenario.

    Args:
        until: stop at the first violation of one of these properties; None: of any. The first violations of others
            are noted on the way.
        limit: stop after so many states.
        world_of: makes the world of the scenario.
    """
    started = time.perf_counter()
    world = world_of(scenario)
    result = Result(scenario, world=world, limit=limit)
    start = world.start()
    came_from: dict[Any, tuple[Any, str] | None] = {start: None}
    level = [start]
    try:
        while level and len(came_from) < limit:
            following: list[Any] = []
            for state in level:
                for step in world.steps(state):
                    result.steps += 1
                    for kind in step.violated:
                        if kind not in result.violations:
                            trace = (*_trace(came_from, state), step.label)
                            result.violations[kind] = Violation(kind, trace)
                        if until is None or kind in until:
                            return result
                    origin = (state, step.label)
                    if came_from.setdefault(step.state, origin) is origin:  # one hash of the state, not two
                        following.append(step.state)
            if following:
                result.depth += 1
            level = following
        result.exhausted = not level
        return result
    finally:
        result.states = len(came_from)
        result.most_refusals = world.most_refusals
        result.seconds = time.perf_counter() - started


def _trace(came_from: dict[Any, tuple[Any, str] | None], state: Any) -> tuple[str, ...]:
    labels: list[str] = []
    before = came_from[state]
    while before is not None:
        state, label = before
        labels.append(label)
        before = came_from[state]
    return tuple(reversed(labels))

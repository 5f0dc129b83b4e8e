"""Five Redis servers that are nodes of one installation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from examples.servers import FakeClock, RedisServer
from tests.support.redlock import FreshNodes, RedlockNodes, start_node
from tests.support.sides import Side


@pytest.fixture(autouse=True)
def _patient_tries(patient_tries: None) -> None:
    """Real servers answer late on a busy machine."""


@pytest.fixture(scope="session")
def redlock_nodes() -> Iterator[RedlockNodes]:
    """Five nodes that were admitted, shared by the run. Tests use names of their own."""
    with ExitStack() as stack:
        nodes = RedlockNodes([stack.enter_context(start_node()) for _ in range(5)], longest_ttl=60.0)
        coordinator = nodes.coordinator(Side(False))
        coordinator.initialise()
        coordinator.close()
        yield nodes


@pytest.fixture
def fresh_nodes() -> Iterator[FreshNodes]:
    """Starts nodes of the test's own, to freeze, kill or restart."""
    with ExitStack() as stack:

        def start(
            count: int = 3,
            *,
            longest_ttl: float = 0.5,
            extra_args: tuple[str, ...] = (),
            admitted: bool = True,
            clocks: Sequence[FakeClock] = (),
        ) -> RedlockNodes:
            servers: list[RedisServer] = [
                stack.enter_context(start_node(extra_args, clocks[i] if clocks else None)) for i in range(count)
            ]
            nodes = RedlockNodes(servers, longest_ttl=longest_ttl)
            if admitted:
                coordinator = nodes.coordinator(Side(False))
                coordinator.initialise()
                coordinator.close()
            return nodes

        yield start

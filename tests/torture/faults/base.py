"""What a fault is, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.torture.processes import Processes

__all__ = ["FAULTS", "Fault", "InVain", "Strike", "fault"]


class InVain(Exception):
    """The fault could not happen: the service has none of what it needs, or is in another one."""


class Strike(NamedTuple):
    """A fault that happens now.

    Args:
        service: whose.
        processes: the workers.
        target: which worker, how many requests or signals.
        seconds: how long it lasts, where it lasts.
        after: call it with seconds and what shall be done then. All of it is done by the end of the run.
    """

    service: Any
    processes: Processes
    target: int
    seconds: float
    after: Callable[[float, Callable[[], None]], None]


class Fault(NamedTuple):
    """A kind of fault.

    Args:
        name: what.
        services: whose it can be; none: it befalls workers.
        happen: makes it happen.
        weight: how likely it is, beside others.
        is_slow: whether it takes longer than others can wait.
        is_alone: whether it would disturb another one of the same service, or that one would disturb it.
    """

    name: str
    services: tuple[str, ...]
    happen: Callable[[Strike], None]
    weight: int
    is_slow: bool
    is_alone: bool


FAULTS: list[Fault] = []


def fault(
    name: str, *services: str, weight: int = 1, is_slow: bool = False, is_alone: bool = True
) -> Callable[[Callable[[Strike], None]], Callable[[Strike], None]]:
    """Add a function to the list of faults."""

    def add(happen: Callable[[Strike], None]) -> Callable[[Strike], None]:
        FAULTS.append(Fault(name, services, happen, weight, is_slow, is_alone))
        return happen

    return add

"""The holders of all locks whose names match a pattern."""

from __future__ import annotations

from typing import cast

from fencing.kernel.effects import Plan
from fencing.kernel.patterns import Pattern
from fencing.locks.backend import Backend, Holder
from fencing.locks.capabilities import ListsHolders


def check_listing(backend: Backend, pattern: str) -> Pattern:
    """Return the pattern.

    Raises:
        TypeError: the backend cannot list holders, or the pattern is not a text.
    """
    if not isinstance(backend, ListsHolders):
        raise TypeError(f"{backend.kind} cannot list holders; ask for each with holder(resource)")
    return Pattern(pattern, backend.prefix)


def plan_page(backend: Backend, pattern: Pattern, page: str) -> Plan[tuple[list[tuple[str, Holder]], str]]:
    """Return some holders, and the next page; empty: this was the last one."""
    deadline = backend.clock() + backend.settings.request_seconds
    lists = cast(ListsHolders, backend)
    return (yield from lists.plan_holders(pattern, page, backend.settings, deadline=deadline))

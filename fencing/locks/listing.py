"""The holders of all locks whose names match a pattern."""

from __future__ import annotations

import re
from typing import Any, cast

from fencing.kernel.effects import Plan
from fencing.locks.backend import Backend, Holder
from fencing.locks.capabilities import ListsHolders


class Pattern:
    """A pattern of resources: ``*`` stands for any characters, ``?`` for one; all others stand for themselves.

    Args:
        text: the pattern, with or without the prefix.
        prefix: of the coordinator; its characters all stand for themselves.

    Attributes:
        text: the prefix and the pattern. As a pattern, it may match more.
    """

    def __init__(self, text: Any, prefix: str = "") -> None:
        if not isinstance(text, str) or not text:
            raise TypeError(f'the pattern is a text such as "orders:*", not {text!r:.100}')
        text = text.removeprefix(prefix)
        self.text = prefix + text
        parts = (".*" if each == "*" else "." if each == "?" else re.escape(each) for each in re.split("([*?])", text))
        self._matches = re.compile(re.escape(prefix) + "".join(parts), re.DOTALL).fullmatch

    def matches(self, resource: str) -> bool:
        """Return whether the resource matches."""
        return self._matches(resource) is not None


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

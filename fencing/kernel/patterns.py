"""Patterns of names: which locks, and which marks, a listing shows."""

from __future__ import annotations

import re
from typing import Any


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

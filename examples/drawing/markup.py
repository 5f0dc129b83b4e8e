"""Markup that is both HTML and XML, so that any parser can check it."""

import re
from html import escape

# What XML does not allow at all: most control characters, halves of surrogate pairs, two more.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(content: object) -> str:
    """Return text as markup: its content stays text."""
    return escape(_FORBIDDEN.sub("\ufffd", str(content)))


def element(name: str, /, *content: str, **attributes: object) -> str:
    """Return an element; its content is markup already, its attributes are not.

    In names of attributes `_` stands for `-`, and a `_` at the end is for Python (`class_`). None leaves one out.
    Numbers are rounded.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(content)
    return f"<{name}{written}>{inner}</{name}>" if inner or name not in _EMPTY else f"<{name}{written}/>"


_EMPTY = frozenset({"circle", "line", "meta", "path", "polyline", "rect"})
"""Elements that are closed at once; in HTML the others must not be."""


def _plain(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value

"""The table of names: what the async side calls a thing, and what the sync side calls it.

Two rules cover most names: ``Async`` or ``async_`` at the beginning goes, and so does ``_async`` at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

NAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
    "asynccontextmanager": "contextmanager",
}
"""Names that follow neither rule."""

DOTTED = {
    ("asyncio", "sleep"): ("time", "sleep"),
    ("redis", "asyncio"): ("redis",),
}
"""Names of two parts that are others together."""

AN = ("a", "e", "i", "o", "u", "httpx", "sql")
"""The beginnings of words that have "an" before them."""


def _with_article(match: re.Match[str]) -> str:
    """Return "a" or "an", as the word behind it needs it now, and that word."""
    return f"{match['a']}{'n' if match['word'].lower().startswith(AN) else ''} {match['marks']}{match['word']}"


PHRASES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"\(await ([^()]*\([^()]*\))\)", r"\1"),
    (r"\bawait\s+", ""),
    (r"\bredis\.asyncio\b", "redis"),
    (r"\s+for\s+asyncio\b", ""),
    (r"\s+\(async\s+ones\)", ""),
    (r"\b(?P<a>[Aa])n\s+(?P<marks>`*)async\s+(?P<word>with|for|def)\b", _with_article),
    (r"\basync (?=with\b|for\b|def\b)", ""),
    (r"\b(?P<a>[Aa])n\s+async\s+(?P<marks>`*)(?P<word>\w+)", _with_article),
    (r"\bsqlalchemy\.ext\.asyncio\.Async(?=Session\b)", "sqlalchemy.orm."),
    (r"\bsqlalchemy\.ext\.asyncio\.Async", "sqlalchemy."),
    (r"\bcreate_async_engine\b", "create_engine"),
    (r"\b(?P<a>[Aa])n\s+(?P<marks>(?::class:)?`*)(?:Async|async_)(?P<word>[A-Za-z]\w+)", _with_article),
    (r"\b__a(?=enter__|exit__)", "__"),
    (r"\bthe\s+running\s+loop's\b", "the"),
    (r"\basync\b", "sync"),
    (r"(?<![A-Za-z])(_?)Async(?=[A-Z])", r"\1"),
    (r"\basync_(?=[a-z])", ""),
)
"""What changes in texts: strings, docstrings and comments."""


def sync_name(name: str) -> str:
    """Return what the sync side calls a name."""
    return NAMES.get(name) or re.sub(r"^(_?)(?:Async(?=[A-Z])|async_(?=[a-z]))|_async$", r"\1", name)


def sync_text(text: str) -> str:
    """Return what the sync side says in a string or a comment."""
    for pattern, replacement in PHRASES:
        text = re.sub(pattern, replacement, text)
    return text

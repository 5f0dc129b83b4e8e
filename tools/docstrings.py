"""Docstrings of the sync side: the words of the table, the marks behind a docstring, and lines that are filled again.

A mark is a comment right behind the docstring that it changes::

    # SYNC "After a cancellation, the": After Ctrl-C, the

It puts the text behind the colon, which may go on in indented comment lines, in place of the words in quotes. A text
that begins in the line below keeps its lines, so it may be paragraphs, or items of a list. ``...`` between the words
stands for all in between; at their end, for the rest of the paragraph. Without a text the words go, and so does a
paragraph that has no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tools.names import sync_text

WIDTH = 120
MARK = re.compile(r'# SYNC "(?P<old>.+)":(?P<new>.*)')


class Change(NamedTuple):
    """What a mark says: the words that go, and the text that comes."""

    old: str
    new: str


class Item(NamedTuple):
    """Lines that are filled together: a paragraph, or one of a list."""

    lines: tuple[str, ...]
    hanging: int

    @property
    def indent(self) -> int:
        return len(self.lines[0]) - len(self.lines[0].lstrip())


def changes_in(comments: Sequence[str]) -> list[Change]:
    """Return what the marks among these comments say. All of them are marks, or continue one."""
    changes: list[Change] = []
    for comment in comments:
        if match := MARK.fullmatch(comment):
            changes.append(Change(match["old"], match["new"].strip()))
        else:
            text = comment.removeprefix("#").removeprefix("     ").rstrip()
            new = changes[-1].new
            separator = " " if new and not new.startswith("\n") else "\n"
            changes[-1] = changes[-1]._replace(new=f"{new}{separator}{text}")
    return changes


def sync_docstring(literal: str, indent: int, changes: Sequence[Change] = ()) -> str:
    """Return the docstring of the sync side, as it stands in the source behind ``indent`` spaces."""
    before = {item.lines for item in _items(literal, indent)}
    text = literal
    for number, change in enumerate(changes):
        text = _changed(text, change, f"\0{number}\0")
    text = sync_text(text)
    for number, change in enumerate(changes):
        text = text if change.new else re.sub(f"\n *\0{number}\0(?=\n)", "", text)
        text = _inserted(text, f"\0{number}\0", change.new.removeprefix("\n"), indent)
    lines: list[str] = []
    for item in _items(text, indent):
        lines += item.lines if item.lines in before else _filled(item)
    return _tidy(lines)


def _changed(text: str, change: Change, new: str) -> str:
    words = [r"\s+".join(map(re.escape, part.split())) for part in change.old.split("...")]
    # An ellipsis at an end reaches to the paragraph's.
    pattern = ".*?".join(words) + (r"(?:(?!\n\s*\n).)*?(?=\n\s*\n|\"\"\"$)" if change.old.endswith("...") else "")
    changed, count = re.subn(pattern, lambda _: new, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"the words {change.old!r} occur {count} times in the docstring {text[:60]!r}")
    return changed


def _inserted(text: str, place: str, new: str, indent: int) -> str:
    """Put the new words at their place. Lines below the first get the indent of the line there."""
    before, found, after = text.partition(place)
    line = before.rpartition("\n")[2] if "\n" in before else " " * indent
    gap = "\n" + " " * (len(line) - len(line.lstrip()))
    return before + re.sub(r" +(?=\n)", "", new.replace("\n", gap)) + after if found else text


def _items(text: str, indent: int) -> Iterator[Item]:
    """Split a docstring into what is filled together. Examples of code stay as they are, line by line."""
    lines = text.split("\n")
    lines[0] = " " * indent + lines[0]
    hanging, code, fresh = 0, None, True
    current: list[str] = []

    def ended() -> Iterator[Item]:
        if current:
            yield Item(tuple(current), hanging)
            current.clear()

    for line in lines:
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            yield from ended()
            yield Item(("",), 0)
            fresh = True
            continue
        if code is not None and depth <= code:
            code = None
        if code is not None or line.strip().startswith((">>>", "| ")):
            yield from ended()
            yield Item((line,), -1)
            continue
        if re.fullmatch(r"(Args|Raises|Attributes|Returns|Yields):", line.strip()):
            yield from ended()
            yield Item((line,), -1)
            hanging = 0 if line.strip() in ("Returns:", "Yields:") else 4
            continue
        if line.strip() == '"""':
            yield from ended()
            yield Item((line,), -1)
            continue
        if fresh and depth <= indent:
            hanging = 0
        if line.lstrip().startswith("- "):
            yield from ended()
            hanging = 2
        elif current and hanging and depth <= len(current[0]) - len(current[0].lstrip()):
            yield from ended()
        fresh = False
        current.append(line)
        if line.rstrip().endswith("::"):
            yield from ended()
            code = depth
    yield from ended()


def _filled(item: Item) -> list[str]:
    """Fill the lines of an item anew. What stands in double backticks stays together."""
    if item.hanging < 0 or not item.lines[0].strip():
        return list(item.lines)
    words = re.findall(r"(?:``[^`]*``|\S)+", " ".join(item.lines))
    lines = [" " * item.indent + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * (item.indent + item.hanging) + word)
    return lines


def _tidy(lines: list[str]) -> str:
    """Join the lines, without a second blank line where a paragraph went, and on one line where one is enough."""
    text = re.sub(r"\n(?:[ ]*\n)+", "\n\n", "\n".join(lines)).lstrip()
    text = re.sub(r"\n\n(\s*\"\"\")$", r"\n\1", text)
    paragraphs = text.removesuffix('"""').rstrip()
    if "\n" not in paragraphs and len(lines[0]) <= WIDTH - 3:
        return paragraphs + '"""'
    return text

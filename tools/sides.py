"""From the source of an async face to the sync one, token by token.

The marks, where the two really differ:

- ``# ASYNC`` behind a statement: it, with its block, is on the async side only. Behind a line within brackets: that
  line.
- ``# SYNC: code`` on a line of its own: the code is on the sync side only.
- ``# SYNC instead: code`` above a statement: the code stands in its place on the sync side. A block below it stays.
- ``# SYNC "words": text`` right behind a docstring: see ``docstrings.py``.

The output depends on no version of Python, and on no formatter: lines that are short enough now are joined here.
"""

from __future__ import annotations

import io
import itertools
import re
import tokenize
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from tools.docstrings import WIDTH, changes_in, sync_docstring
from tools.names import DOTTED, sync_name, sync_text

OPENING, CLOSING = "([{", ")]}"
ASYNC_MARK = "# ASYNC"
CODE_MARK = "# SYNC:"
INSTEAD_MARK = "# SYNC instead:"


class Token(NamedTuple):
    """A token, with the line and the column of its beginning and its end. Lines count from 0."""

    kind: int
    text: str
    start: tuple[int, int]
    end: tuple[int, int]


@dataclass
class Statement:
    """A logical line: what stands up to the end of a line that ends a statement, or begins a block."""

    tokens: list[Token] = field(default_factory=list)
    depth: int = 0
    opens_block: bool = False

    @property
    def first(self) -> int:
        return self.tokens[0].start[0]

    @property
    def last(self) -> int:
        return self.tokens[-1].end[0]


def tokens_of(source: str) -> list[Token]:
    """Split source text into tokens; an f-string is one, as before Python 3.12."""
    lines = source.splitlines(keepends=True)
    tokens: list[Token] = []
    begun: list[tuple[int, int]] = []
    for kind, text, (row, column), (last, end), _ in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[kind]
        start, stop = (row - 1, column), (last - 1, end)
        if name in ("FSTRING_START", "TSTRING_START"):
            begun.append(start)
        elif name in ("FSTRING_END", "TSTRING_END"):
            start = begun.pop()
            if not begun:
                tokens.append(Token(tokenize.STRING, _between(lines, start, stop), start, stop))
        elif not begun:
            tokens.append(Token(kind, text, start, stop))
    return tokens


def _between(lines: list[str], start: tuple[int, int], stop: tuple[int, int]) -> str:
    if start[0] == stop[0]:
        return lines[start[0]][start[1] : stop[1]]
    return lines[start[0]][start[1] :] + "".join(lines[start[0] + 1 : stop[0]]) + lines[stop[0]][: stop[1]]


def statements_of(tokens: list[Token]) -> list[Statement]:
    """Split tokens into statements. Comments on lines of their own belong to none."""
    statements = [Statement()]
    depth = 0
    for token in tokens:
        current = statements[-1]
        if token.kind == tokenize.INDENT:
            depth += 1
            statements[-2].opens_block = True
        elif token.kind == tokenize.DEDENT:
            depth -= 1
        elif token.kind == tokenize.NEWLINE:
            statements.append(Statement())
        elif token.kind == tokenize.ENDMARKER or (not current.tokens and token.kind in (tokenize.NL, tokenize.COMMENT)):
            continue
        else:
            current.tokens.append(token)
            current.depth = depth
    return [statement for statement in statements if statement.tokens]


def sync_side(source: str) -> str:
    """Return the source of the sync side."""
    translated = _translated(_without_async_only(source))
    return joined(sorted_imports(combined(translated))).rstrip() + "\n"


def _without_async_only(source: str) -> str:
    """Take out what is on the async side only. Of blank lines above and below it the longer run stays."""
    lines = source.split("\n")
    gone = _async_only(statements_of(tokens_of(source)), lines)
    kept: list[str] = []
    spare = 0  # of the blank lines below what went: how many are above it already
    for row, line in enumerate(lines):
        if row in gone:
            opens_block = bool(kept) and kept[-1].endswith(":")
            spare = len(lines) if opens_block else len(kept) - len("\n".join(kept).rstrip().split("\n"))
        elif line.strip():
            spare = 0
            kept.append(line.replace(INSTEAD_MARK, CODE_MARK, 1))
        elif spare:
            spare -= 1
        else:
            kept.append(line)
    return "\n".join(kept)


def _async_only(statements: list[Statement], lines: list[str]) -> set[int]:
    """Return the lines that are on the async side only."""
    rows = {row for row, line in enumerate(lines) if re.fullmatch(r"\s*#.*\S\s+# ASYNC", line)}
    for index, statement in enumerate(statements):
        for token in statement.tokens:
            if token.kind == tokenize.COMMENT and token.text.endswith(ASYNC_MARK):
                row = token.start[0]
                is_whole = row in (statement.first, statement.last)
                rows.update(range(statement.first, _end_of(statements, index) + 1) if is_whole else (row,))
        if statement.first and lines[statement.first - 1].lstrip().startswith(INSTEAD_MARK):
            rows.update(range(statement.first, statement.last + 1))
    return rows


def _end_of(statements: list[Statement], index: int) -> int:
    """Return the last line of a statement with its block; of a decorator, with what it decorates."""
    while statements[index].tokens[0].text == "@":
        index += 1
    last, depth = statements[index].last, statements[index].depth
    if statements[index].opens_block:
        for inner in statements[index + 1 :]:
            if inner.depth <= depth:
                break
            last = inner.last
    return last


def _translated(source: str) -> str:
    """Give every token the word of the sync side, and leave everything between them as it is."""
    tokens = [token for token in tokens_of(source) if token.kind not in (tokenize.INDENT, tokenize.DEDENT)]
    lines = source.splitlines(keepends=True)
    docstrings = _docstrings(tokens)
    dropped = _dropped(tokens)
    pieces: list[str] = []
    position = (0, 0)
    index = 0
    while index < len(tokens):
        token = tokens[index]
        gap = _between(lines, position, token.start) if token.start > position and token.start[0] < len(lines) else ""
        position = token.end
        pieces.append(gap)
        if index in docstrings:
            marks = docstrings[index]
            comments = [tokens[mark].text for mark in marks]
            pieces.append(sync_docstring(token.text, token.start[1], changes_in(comments)))
            if marks:  # they are behind the end of the docstring's line
                index, position = marks[-1], tokens[marks[-1]].end
        elif index in dropped:
            following = tokens[index + 1]
            if token.text in ("async", "await"):
                position = following.start
        elif token.kind == tokenize.NAME:
            taken, words = _names(tokens, index)
            pieces.append(words)
            index += taken - 1
            position = tokens[index].end
        elif token.kind == tokenize.COMMENT and token.text.startswith(CODE_MARK):
            pieces.append(token.text.removeprefix(CODE_MARK).removeprefix(" "))
        elif token.kind in (tokenize.COMMENT, tokenize.STRING):
            pieces.append(sync_text(token.text))
        else:
            pieces.append(token.text)
        index += 1
    return "".join(pieces)


def _names(tokens: list[Token], index: int) -> tuple[int, str]:
    """Return how many tokens from this name on are replaced together, and by what."""
    name = tokens[index].text
    following = tokens[index + 1 : index + 3]
    texts = [each.text for each in following]
    if texts[:1] == ["."] and (name, texts[-1]) in DOTTED:
        return 3, ".".join(DOTTED[name, texts[-1]])
    if name.endswith("asynchronous") and texts == ["=", "True"]:
        gap = " " if following[0].start > tokens[index].end else ""
        return 3, f"{name}{gap}={gap}False"
    return 1, sync_name(name)


def _docstrings(tokens: list[Token]) -> dict[int, list[int]]:
    """Return the indices of docstrings, each with those of the marks behind it."""
    found: dict[int, list[int]] = {}
    marks: list[int]
    for index, token in enumerate(tokens):
        if token.kind != tokenize.STRING or not token.text.startswith('"""'):
            continue
        if tokens[index + 1].kind != tokenize.NEWLINE or (
            index and tokens[index - 1].kind not in (tokenize.NEWLINE, tokenize.NL)
        ):
            continue
        marks = found[index] = []
        following = index + 2
        if tokens[following].kind == tokenize.NL:  # a blank line, as behind the docstring of a class
            following += 1
        while following + 1 < len(tokens) and tokens[following].kind == tokenize.COMMENT:
            text = tokens[following].text
            if not text.startswith('# SYNC "') and not (marks and (text == "#" or text.startswith("#  "))):
                break
            marks.append(following)
            following += 2
    return found


def _dropped(tokens: list[Token]) -> set[int]:
    """Return the indices of ``async``, ``await`` and ``Awaitable[...]``, and of brackets that only ``await`` needed."""
    dropped: set[int] = set()
    for index, token in enumerate(tokens):
        following = tokens[index + 1].text if index + 1 < len(tokens) else ""
        if token.kind != tokenize.NAME:
            continue
        if token.text == "Awaitable" and following == "[":
            dropped.update((index, index + 1, _closing(tokens, index + 1)))
        if token.text == "await" or (token.text == "async" and following in ("def", "with", "for")):
            dropped.add(index)
        if token.text == "await" and tokens[index - 1].text == "(":
            before = tokens[index - 2]
            is_call = before.text in CLOSING or (before.kind == tokenize.NAME and before.text not in ("return", "in"))
            closing = _closing(tokens, index - 1)
            if not is_call and tokens[closing + 1].text in (".", "["):
                dropped.update((index - 1, closing))
    return dropped


def _closing(tokens: list[Token], opening: int) -> int:
    """Return the index of the bracket that closes the one at ``opening``."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].kind == tokenize.OP:
            depth += (tokens[index].text in OPENING) - (tokens[index].text in CLOSING)
            if not depth:
                return index
    raise ValueError(f"the bracket in line {tokens[opening].start[0] + 1} is not closed")


def combined(source: str) -> str:
    """Write one ``with`` where two stand one in the other, because only the inner one was asynchronous."""
    while True:
        statements = statements_of(tokens_of(source))
        lines = source.split("\n")
        for index, (outer, inner) in enumerate(itertools.pairwise(statements)):
            is_inside = outer.opens_block and inner.depth == outer.depth + 1 and inner.first == outer.last + 1
            if not is_inside or {outer.tokens[0].text, inner.tokens[0].text} != {"with"}:
                continue
            last = _end_of(statements, index + 1)
            if _end_of(statements, index) != last:
                continue
            indent = " " * outer.tokens[0].start[1]
            items = [*_items(outer, lines), *_items(inner, lines)]
            heading = [f"{indent}with {', '.join(items)}:"]
            if len(heading[0]) > WIDTH:
                heading = [f"{indent}with (", *(f"{indent}    {item}," for item in items), f"{indent}):"]
            block = [line.removeprefix("    ") for line in lines[inner.last + 1 : last + 1]]
            source = "\n".join([*lines[: outer.first], *heading, *block, *lines[last + 1 :]])
            break
        else:
            return source


def _items(statement: Statement, lines: list[str]) -> Iterator[str]:
    """Yield the items of a ``with``, each on one line."""
    tokens = [token for token in statement.tokens[1:-1] if token.kind != tokenize.NL]
    if tokens[0].text == "(" and _closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    depth, start = 0, 0
    for index, token in enumerate([*tokens, Token(tokenize.OP, ",", (0, 0), (0, 0))]):
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == tokenize.OP else 0
        if token.text == "," and not depth:
            if item := tokens[start:index]:
                text = _between([f"{line}\n" for line in lines], item[0].start, item[-1].end)
                yield re.sub(r"(?<=[(\[{])\s*\n\s*|\s*\n\s*(?=[)\]}])", "", text).replace("\n", " ")
            start = index + 1


def sorted_imports(source: str) -> str:
    """Sort the imports of each group, and their names, as the linter wants them. What is not used here goes."""
    lines = source.split("\n")
    runs: list[list[Statement]] = []
    used: set[str] = set()
    for statement in statements_of(tokens_of(source)):
        if statement.depth or statement.tokens[0].text not in ("import", "from"):
            used.update(itertools.chain.from_iterable(map(_words_of, statement.tokens)))
            continue
        if runs and runs[-1][-1].last + 1 == statement.first:
            runs[-1].append(statement)
        else:
            runs.append([statement])
    for run in reversed(runs):
        found = list(_imports(run, used))
        lines[run[0].first : run[-1].last + (1 if found else 2)] = found
    return "\n".join(lines)


def _words_of(token: Token) -> list[str]:
    """Return the names in a token: one, those of an f-string, or none."""
    is_f_string = token.kind == tokenize.STRING and "f" in re.split("['\"]", token.text, maxsplit=1)[0].lower()
    if is_f_string:
        return re.findall(r"\w+", " ".join(re.findall(r"{([^{}]*)", token.text)))
    return [token.text] if token.kind == tokenize.NAME else []


def _imports(run: list[Statement], used: Set[str]) -> Iterator[str]:
    plain: set[str] = set()
    members: dict[str, set[str]] = {}
    exploded: set[str] = set()
    for statement in run:
        text = " ".join(token.text for token in statement.tokens if token.kind in (tokenize.NAME, tokenize.OP))
        text = re.sub(r" ?([.,]) ?", r"\1", text)
        if text.startswith("import "):
            plain.update([text] if text.removeprefix("import ").partition(".")[0] in used else ())
            continue
        module, _, names = text.removeprefix("from ").partition(" import ")
        if names.endswith(",)"):
            exploded.add(module)
        wanted = {name for name in names.strip("() ").split(",") if name in used or module == "__future__"}
        if wanted:
            members.setdefault(module, set()).update(wanted)
    yield from sorted(plain, key=str.lower)
    for module in sorted(members, key=str.lower):
        in_order = sorted(members[module], key=_import_order)
        line = f"from {module} import {', '.join(in_order)}"
        if module in exploded or len(line) > WIDTH:
            yield from (f"from {module} import (", *(f"    {name}," for name in in_order), ")")
        else:
            yield line


def _import_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then everything else."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2), name.lower()


def joined(source: str) -> str:
    """Join the lines of brackets that fit on one line now, as the formatter does."""
    row = 0
    while True:
        tokens = tokens_of(source)
        for statement in statements_of(tokens):
            if statement.last > row and (shorter := _joined(statement, source)) is not None:
                source, row = shorter, statement.first - 1
                break
        else:
            return source


def _joined(statement: Statement, source: str) -> str | None:
    """Return the source with the outermost bracket of the statement joined that can be, or None if none can be."""
    tokens = statement.tokens
    for index, token in enumerate(tokens):
        if token.kind != tokenize.OP or token.text not in OPENING:
            continue
        closing = _closing(tokens, index)
        inside = tokens[index : closing + 1]
        if token.start[0] == tokens[closing].start[0] or not _may_join(inside):
            continue
        lines = source.split("\n")
        first, last = token.start[0], tokens[closing].start[0]
        parts = [line.strip() for line in lines[first + 1 : last + 1]]
        line = lines[first]
        for part in parts:
            tight = line.endswith(tuple(OPENING)) or part.startswith(tuple(CLOSING))
            line += part if tight else f" {part}"
        if len(line) <= WIDTH:
            return "\n".join([*lines[:first], line, *lines[last + 1 :]])
    return None


def _may_join(tokens: list[Token]) -> bool:
    """Whether the formatter could join these lines: no comment, no text of several lines, no comma at the end."""
    for index, token in enumerate(tokens):
        if token.kind == tokenize.COMMENT or token.start[0] != token.end[0]:
            return False
        if token.text == "," and tokens[index + 1].kind == tokenize.NL and tokens[index + 2].text in CLOSING:
            return False
    return True

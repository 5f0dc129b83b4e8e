"""Sentences have at most 30 words: in the pages, and in the docstrings of what is public."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "examples" / "README.md"]
MODULES = [path for package in ("fencing", "storage_guards") for path in sorted(ROOT.glob(f"{package}/**/*.py"))]
LONGEST = 30

LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
HTML = re.compile(r"<[^>]+>")
ITEM = re.compile(r"^\s*(?:[-*] |\d+\. )")
ARGUMENT = re.compile(r"\s+\*{0,2}\w[\w.]*(?: \([^)]*\))?:(?:\s|$)")
HEADING = re.compile(r"\s*(?:#+ |\w+:$)")


def sentences(text: str) -> Iterator[str]:
    text = CODE.sub("code", LINK.sub(r"\1", text))
    for sentence in re.split(r"(?<=[.!?])[)\"”*_]*\s+", text):
        yield " ".join(sentence.split())


def words(sentence: str) -> int:
    return len(re.findall(r"\w[\w'./:-]*", sentence))


def blocks_of_page(text: str) -> Iterator[str]:
    """Yield paragraphs, items of lists, headings and cells of tables, without code."""
    text = HTML.sub("", re.sub(r"(?ms)^ *```.*?^ *```", "\n", text))
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_row = line.lstrip().startswith("|")
        if not line.strip() or is_row or ITEM.match(line) or HEADING.match(line):
            yield "\n".join(block)
            block = []
        if is_row:
            yield from re.split(r"(?<!\\)\|", line)
        elif line.strip():
            block.append(ITEM.sub("", line))
    yield "\n".join(block)


def blocks_of_docstring(text: str) -> Iterator[str]:
    """Yield paragraphs and the items of sections such as Args, without literal blocks."""
    block: list[str] = []
    literal = False
    for line in [*inspect.cleandoc(text).splitlines(), ""]:
        if literal and (not line.strip() or line.startswith(" ")):
            continue
        literal = False
        if not line.strip() or ITEM.match(line) or HEADING.match(line) or ARGUMENT.match(line):
            yield "\n".join(block)
            block = []
        if line.strip():
            block.append(ITEM.sub("", line))
        if literal := line.endswith("::"):
            yield "\n".join(block)
            block = []
    yield "\n".join(block)


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of the module and of each public class, function and method."""
    stack: list[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]] = [("", tree)]
    while stack:
        name, node = stack.pop()
        if found := ast.get_docstring(node, clean=False):
            yield name or "module", found
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith(
                "_"
            ):
                stack.append((f"{name}.{child.name}".lstrip("."), child))


def too_long(blocks: Iterator[str]) -> list[str]:
    return [
        f"{words(sentence)} words: {sentence}"
        for block in blocks
        for sentence in sentences(block)
        if words(sentence) > LONGEST
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_sentences_of_a_page_are_short(page: Path) -> None:
    assert not too_long(blocks_of_page(page.read_text("utf-8")))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_the_sentences_of_public_docstrings_are_short(module: Path) -> None:
    tree = ast.parse(module.read_text("utf-8"))
    assert not {name: found for name, text in docstrings(tree) if (found := too_long(blocks_of_docstring(text)))}


def test_a_long_sentence_is_found_and_code_is_one_word() -> None:
    long = "word " * 31
    assert too_long(blocks_of_page(f"A title\n\nShort. {long}end."))
    assert too_long(blocks_of_page(f"| cell | {long} |"))
    assert too_long(blocks_of_docstring(f"Return it.\n\n    Args:\n        one: {long}\n"))
    assert not too_long(blocks_of_page(f"```\n{long}\n```\n\n`{long}` is code.\n- {'word ' * 20}\n- {'word ' * 20}"))
    assert not too_long(blocks_of_docstring(f"The tree::\n\n    {long}\n\nAnd `` {long}``."))
    assert not too_long(blocks_of_docstring(f"{'word ' * 20}::\n\n    code\n\n{'word ' * 20}"))

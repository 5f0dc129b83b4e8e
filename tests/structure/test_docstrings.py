"""Docstrings of functions begin with a verb, and public methods have one of their own, async ones too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(file for package in ("fencing", "storage_guards") for file in (ROOT / package).rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef

NO_VERBS = frozenset(
    """
    a all an and another any as at both by each either every for from has his how if in is it its no nobody not nothing
    of on one only others see since so some somebody that the their these they this those to true two under until what
    whatever when where whether which who whoever whose why with without yes
    """.split()  # noqa: SIM905
)
"""Words that begin a sentence about something, and no request to do it."""


def functions(tree: ast.AST, public: bool = True) -> Iterator[tuple[Function, bool]]:
    """The functions and methods of a module, each with whether its name, and its class's, is public."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node, public and not node.name.startswith("_")
            yield from functions(node, public=False)
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, public and not node.name.startswith("_"))


def is_noun(function: Function) -> bool:
    """Whether it is read like an attribute, and so described by a noun."""
    names = [ast.unparse(decorator).rpartition(".")[2] for decorator in function.decorator_list]
    return any(name in ("property", "cached_property", "setter") or name.startswith("fixture") for name in names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_docstrings_of_functions_begin_with_a_verb(file: Path) -> None:
    wrong = []
    for function, _ in functions(ast.parse(file.read_text("utf-8"))):
        text = ast.get_docstring(function)
        if text and not is_noun(function) and not function.name.startswith("test_"):
            first = text.split()[0].strip("`:*.,").lower()
            if first in NO_VERBS or (first.endswith(("ing", "ed")) and first not in ("embed", "feed", "need")):
                wrong.append(f"{function.lineno} {function.name}: {text.splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_public_async_methods_have_a_docstring_of_their_own(file: Path) -> None:
    wrong = []
    for function, public in functions(ast.parse(file.read_text("utf-8"))):
        is_overload = any(ast.unparse(decorator) == "overload" for decorator in function.decorator_list)
        if public and isinstance(function, ast.AsyncFunctionDef) and not is_overload:
            text = ast.get_docstring(function) or ""
            if not text or (text.startswith("See ") and len(text) < 60):
                wrong.append(f"{function.lineno} {function.name}: {text or 'nothing'}")
    assert not wrong, "\n".join(wrong)

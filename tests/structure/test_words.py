"""The words of the field, and no others: in identifiers, messages, docstrings and comments.

One table: a word, and what to say instead. docs/internals/architecture.md and the errors speak the same language.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fencing", "storage_guards", "examples", "tests", "tools")

IN_PARTS = {
    "among": "due_together",
    "bell": "the event's name",
    "blueprint": "factory",
    "colour": "sync / async",
    "conclude": "report",
    "fate": "ended",
    "heard": "received, on_message, alive",
    "hub": "listener",
    "insist": "retry",
    "judge": "assess",
    "look": "recheck, inspect, read",
    "nobody": "a positive predicate",
    "rang": "woke",
    "ring": "wake",
    "rung": "woken",
    "stir": "wake",
    "strayed": "what has happened",
    "tell": "notify, send",
    "told": "notified, sent",
    "trouble": "error",
    "wakeups": "listener",
    "whatever": "what it is",
    "whoever": "what it is",
}
"""No part of an identifier, between underscores or capitals, is one of these, nor its plural."""

WHOLE = {
    "carry": "finish_within",
    "either_way": "with_fallback",
    "goes_on": "resumed, continues",
    "had": "what was had",
    "has_lost_a_race": "lost_race",
    "keep": "track, hold, store",
    "let_go": "release, abandon",
    "meaning": "what is returned",
    "meet": "what happens",
    "not_inside_another": "refuse_nested",
    "of_the_way": "of the access",
    "others": "which others",
    "own_transactions": "nesting",
    "pause_at_a_line": "Pause",
    "stop_here": "stop",
    "the_loop": "loop",
    "who": "the role: holder, waiter, owner",
}
"""No function, class, parameter or private attribute is called so, with an underscore before it or without."""

LOCAL = {
    "beginning": "prefix",
    "fate": "ended",
    "keep": "track, hold, store",
    "lender": "connection_source",
    "moving": "keeps_changing",
    "once": "run_alone, or what it is",
    "silence": "heartbeat, or what it is",
    "takes": "may_take",
    "translated": "what it is now",
    "undo": "compensation",
    "way": "access",
    **{word: WHOLE[word] for word in ("carry", "either_way", "not_inside_another", "own_transactions")},
}
"""In the packages, no variable, attribute, parameter, function or class is called so where it gets its name."""

CLASSES = {
    "late": "superseded, or what it is",
    "ready": "packed, or what it is",
    "running": "guarded_block, or what it is",
    "waiting": "waiters, or what it is",
}
"""In the packages, no class is called so. These are words of English: variables may have them."""

DRAWINGS = ("examples/stage/", "tests/demos/", "tests/docs/test_pictures.py")
EXCEPTIONS = {
    # Colours that one sees, and how a drawing looks.
    "colour": (*DRAWINGS, "examples/drawing/", "tests/support/browser.py", "tests/benchmarks/", "tests/cli/"),
    "look": (*DRAWINGS, "examples/"),
    "nobody": ("examples/servers/local.py",),  # the user of that name
    "tell": ("storage_guards/objects/", "tests/objects/"),  # of a file
    "keep": ("storage_guards/objects/",),  # how many publications a collection keeps: public
    "once": ("fencing/", "storage_guards/"),  # an argument of guards, and a field of an error: public
}
THIS = Path(__file__).resolve()

FILES = {
    str(file.relative_to(ROOT)): file
    for folder in FOLDERS
    for ending in ("*.py", "*.lua")
    for file in sorted((ROOT / folder).rglob(ending))
    if file != THIS
}


def parts_of(name: str) -> list[str]:
    """The words of a name: between underscores, and of CamelCase."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_in(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Every identifier with its line, and whether it is defined there as a function, class or parameter."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield line, node.name, True
        elif isinstance(node, ast.arg):
            yield line, node.arg, True
        elif isinstance(node, ast.Attribute):
            yield line, node.attr, False
        elif isinstance(node, ast.Name):
            yield line, node.id, False
        elif isinstance(node, ast.keyword) and node.arg:
            yield line, node.arg, False


def names_made_in(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Every identifier where it gets its name, with its line, and whether it is the name of a class."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield line, node.name, isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.arg):
            yield line, node.arg, False
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield line, node.attr, False
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield line, node.id, False


def names_in_lua(text: str) -> Iterator[tuple[int, str, bool]]:
    for line, code in enumerate(text.splitlines(), 1):
        for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"--.*|'[^']*'|\"[^\"]*\"", "", code)):
            yield line, name, False


def is_excepted(word: str, file: str) -> bool:
    return file.startswith(EXCEPTIONS.get(word, ("no file",)))


def unwanted_in(file: str) -> Iterator[str]:
    """The identifiers of a file that are not of the field, each with what to say instead."""
    text = FILES[file].read_text("utf-8")
    names = names_in_lua(text) if file.endswith(".lua") else names_in(ast.parse(text))
    module = Path(file).stem
    for line, name, defined in [(0, module, True), *names]:
        if defined and name.startswith("test_"):
            continue  # a sentence, not a name
        words = parts_of(name)
        for word in words:
            one = word if word in IN_PARTS else word.removesuffix("s")
            if one in IN_PARTS and not is_excepted(one, file):
                yield f"{file}:{line}: {name}: say {IN_PARTS[one]}"
        whole = "_".join(words)
        if defined and whole in WHOLE and not is_excepted(whole, file):
            yield f"{file}:{line}: {name}: say {WHOLE[whole]}"


def test_identifiers_are_the_words_of_the_field() -> None:
    unwanted = sorted({said for file in FILES for said in unwanted_in(file)})
    assert not unwanted, "\n".join(["", *unwanted])


def unwanted_names_made_in(file: str, tree: ast.AST) -> Iterator[str]:
    for line, name, is_class in names_made_in(tree):
        word = "_".join(parts_of(name))
        instead = LOCAL.get(word) or (CLASSES.get(word) if is_class else None)
        if instead is not None and not is_excepted(word, file):
            yield f"{file}:{line}: {name}: say {instead}"


def test_local_names_are_the_words_of_the_field() -> None:
    unwanted = [
        said
        for file, path in FILES.items()
        if file.startswith(("fencing/", "storage_guards/")) and file.endswith(".py")
        for said in unwanted_names_made_in(file, ast.parse(path.read_text("utf-8")))
    ]
    assert not unwanted, "\n".join(["", *unwanted])


@pytest.mark.parametrize(
    "code",
    ["undo = 1", "self._keep = 1", "def f(translated): ...", "with a as lender: ...", "class Late: ..."],
)
def test_an_old_word_is_found_wherever_a_name_is_made(code: str) -> None:
    assert list(unwanted_names_made_in("storage_guards/sql/base.py", ast.parse(code)))
    assert not list(unwanted_names_made_in("storage_guards/sql/base.py", ast.parse("late = last = ready = 1")))


def test_sync_and_async_are_no_colours() -> None:
    """Neither in messages, docstrings and comments, nor in names of tests."""
    found = [
        f"{file}:{number}: {line.strip()}: say sync or async"
        for file, path in FILES.items()
        if not is_excepted("colour", file)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"(?<![A-Za-z])colou?r", line, re.IGNORECASE)
    ]
    assert not found, "\n".join(["", *found])


def test_the_words_of_a_name() -> None:
    assert parts_of("_has_HTTPServer2Ring") == ["has", "http", "server", "ring"]
    assert parts_of("string") == ["string"]
    assert [instead for word, instead in IN_PARTS.items() if word in parts_of("_WakeHub")] == ["listener"]

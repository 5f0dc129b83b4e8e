"""Helpers of tests are in ``tests/support``: no file imports a test or a conftest."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ROOT / "tests" / "compat" / "redis_py"
"""The tests of another library, which stay as they are."""


def imports_of(source: str) -> Iterator[str]:
    """Every module that a file names in its imports; of ``from a import b`` also ``a.b``, which may be one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_tests(source: str) -> list[str]:
    """The tests and conftests among the modules that a file imports."""
    parts = {module: module.split(".") for module in imports_of(source) if module.startswith(("tests.", "."))}
    return sorted(
        module
        for module, names in parts.items()
        if any(name == "conftest" or name.startswith("test_") for name in names)
    )


def test_no_file_imports_a_test_or_a_conftest() -> None:
    found = {
        str(file.relative_to(ROOT)): imported
        for folder in ("tests", "examples")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if OTHERS not in file.parents and (imported := imported_tests(file.read_text("utf-8")))
    }
    assert not found, "\n".join(["move what is shared to tests/support:", *(f"{k}: {v}" for k, v in found.items())])


def test_it_finds_imports_of_every_form() -> None:
    for code in (
        "from tests.conftest import RedisFactory",
        "from tests.redis.test_waiting import until",
        "from tests.redis import test_waiting",
        "import tests.redis.test_waiting as it",
        "def f():\n    from .test_waiting import until",
    ):
        assert imported_tests(code), code
    assert imported_tests("from tests.support.sides import Side") == []

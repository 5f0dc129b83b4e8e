"""docs/guards/your-own.md: the guard built there passes the contract, by the page's own code alone."""

from __future__ import annotations

import re
import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fencing import Fence, GuardUnavailable, StaleFence

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guards" / "your-own.md"
MINE, NEWER = Fence("r", 5, "a" * 22), Fence("r", 6, "b" * 22)


def module_of_the_page() -> Any:
    """All its Python, one block after the other, as one module."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 6
    module = ModuleType("your_own_guard")
    sys.modules[module.__name__] = module
    exec(compile("\n\n".join(blocks), str(PAGE), "exec"), vars(module))
    return module


_module = module_of_the_page()

TestSQLiteGuard = _module.TestSQLiteGuard
TestAsyncSQLiteGuard = _module.TestAsyncSQLiteGuard


def test_a_holder_that_is_frozen_in_its_block_keeps_others_waiting_for_a_bounded_time(tmp_path: Path) -> None:
    path = tmp_path / "data.sqlite"
    holder, other = _module.SQLiteGuard(path), _module.SQLiteGuard(path, timeout=0.05)
    holder.claim(MINE)
    with holder.begin(MINE) as connection:
        connection.execute(_module.PUT, ["r", 1])
        with pytest.raises(GuardUnavailable, match="stayed locked"):
            other.claim(NEWER)
    other.claim(NEWER)
    with pytest.raises(StaleFence):
        holder.write(MINE, _module.PUT, ["r", 2])
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT value FROM data").fetchall() == [(1,)]
    connection.close()

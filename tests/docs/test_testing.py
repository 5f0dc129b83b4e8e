"""docs/guide/testing.md: its tests pass, as a user would run them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide" / "testing.md"


@pytest.mark.thorough
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    if importlib.util.find_spec("lupa") is None:  # of fakeredis; there is none for Python 3.15
        blocks = [block for block in blocks if "import fakeredis" not in block]
    tests = sum(block.count("def test_") for block in blocks)
    assert tests in (3, 4)
    (tmp_path / "test_deposits.py").write_text("\n\n".join(blocks))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={ROOT}",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert re.search(f"{tests - 1} passed, 1 skipped|{tests} passed", done.stdout), done.stdout + done.stderr

"""The sync guard without greenlet, and an SQLAlchemy that is too old: the import works, or says what is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, folder: Path, *paths: Path) -> str:
    path = f"import sys; sys.path[:0] = {[str(each) for each in (*paths, ROOT)]!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", path + program], capture_output=True, text=True, timeout=300, cwd=folder
    )
    return done.stdout + done.stderr


@pytest.mark.thorough
def test_the_sync_guard_needs_no_greenlet(tmp_path: Path) -> None:
    printed = run(
        "sys.modules['greenlet'] = None\n"
        "from sqlalchemy import create_engine, text\n"
        "from storage_guards import SQLAlchemyGuard\n"
        "from fencing import MemoryCoordinator\n"
        "guard = SQLAlchemyGuard(create_engine('sqlite:///test.sqlite'))\n"
        "guard.create_tables()\n"
        "with MemoryCoordinator(guards=[guard]).hold('r', timeout=1) as lease, guard.session(lease) as session:\n"
        "    print(session.execute(text('SELECT 7')).scalar_one())\n",
        tmp_path,
    )
    assert printed.splitlines()[-1] == "7"


@pytest.mark.thorough
def test_an_old_sqlalchemy_is_named(tmp_path: Path) -> None:
    (tmp_path / "sqlalchemy").mkdir()
    (tmp_path / "sqlalchemy" / "__init__.py").touch()
    (tmp_path / "sqlalchemy-1.4.54.dist-info").mkdir()
    (tmp_path / "sqlalchemy-1.4.54.dist-info" / "METADATA").write_text("Name: sqlalchemy\nVersion: 1.4.54\n")
    for name in ("SQLAlchemyGuard", "AsyncSQLAlchemyGuard"):
        printed = run(f"from storage_guards import {name}", tmp_path, tmp_path)
        assert f"{name} needs SQLAlchemy 2.0 or later; 1.4.54 is installed" in printed

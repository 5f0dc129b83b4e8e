"""``from storage_guards import *`` gives what can be loaded, whatever is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import is_typeddict

import pytest

import fencing
import storage_guards

CODE = """
import sys

class Absent:
    def find_spec(name, *_):
        if name in sys.argv[1:]:
            raise ModuleNotFoundError(name, name=name)

import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *_: None if name in sys.argv[1:] else find(name)
sys.meta_path.insert(0, Absent)
from storage_guards import *
print(*sorted(name for name in globals() if name.endswith("Guard")))
"""
ALL = {"File", "HTTP", "Memory", "ObjectStore", "Psycopg", "Redis", "SQLAlchemy"}

ALL_NAMES = storage_guards.__getattr__("__all__")


def test_classes_are_told_by_their_public_module() -> None:
    """In tracebacks and pickles: private paths may change. A TypedDict needs the names of its own module."""
    for package, names in ((fencing, fencing.__all__), (storage_guards, ALL_NAMES)):
        for found in (getattr(package, name) for name in names):
            if isinstance(found, type) and not is_typeddict(found):
                assert found.__module__ == package.__name__, found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("absent", "left"),
    [
        (["obstore"], ALL - {"ObjectStore"}),
        (["httpx2", "obstore", "psycopg", "sqlalchemy"], {"File", "Memory", "Redis"}),
        ([], ALL),
    ],
)
def test_a_missing_extra_does_not_stop_it(absent: list[str], left: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, *absent], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {f"{kind}{name}Guard" for name in left for kind in ("", "Async")}

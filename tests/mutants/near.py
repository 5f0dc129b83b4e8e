"""Runs the tests that are nearest to a changed file: those that find its mutants, then those of its folder.

    python -m tests.mutants.near FILE [--seconds 30]

The tests of the folder begin with the files that name the changed one. They end after so many seconds: what is left is
skipped, and the end says how many. The tests of the mutants always run, all of them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS

ROOT = Path(__file__).resolve().parents[2]

SUBJECTS = {
    "fencing": "tests/locks",
    "fencing/kernel": "tests/kernel",
    "fencing/memory": "tests/memory",
    "fencing/testing": "tests/memory",
    "fencing/redis": "tests/redis",
    "fencing/redlock": "tests/redlock",
    "fencing/compat": "tests/compat",
    "fencing/sql": "tests/sql_locks",
    "fencing/etcd": "tests/etcd",
    "storage_guards": "tests/guards",
    "storage_guards/memory": "tests/memory",
    "storage_guards/testing": "tests/memory",
    "storage_guards/sql": "tests/sql",
    "storage_guards/sqlalchemy": "tests/sql",
    "storage_guards/psycopg": "tests/psycopg",
    "storage_guards/objects": "tests/objects",
    "storage_guards/redis": "tests/redis_guard",
    "storage_guards/files": "tests/files",
    "storage_guards/http": "tests/http",
    "examples": "tests/demos",
    "examples/servers": "tests/servers",
    "tests/support/servers": "tests/servers",
    "docs": "tests/docs",
}
"""The tests of a folder, or of a file. The longest name decides."""

SECONDS = 30.0
"""For the tests of the folder."""

SPREAD = ("-n", "auto", "--dist", "load")
"""In the order of the list, which worksteal does not keep: the nearest tests are the first."""

FEW = 4
"""So many tests run sooner than the processes start that would share them."""


def named(file: str) -> str:
    """Return a path of the project from its root.

    Raises:
        ValueError: no such file is in the project.
    """
    path = (ROOT / file).resolve()
    if not file or not path.is_file() or not path.is_relative_to(ROOT):
        raise ValueError(
            f"there is no file {file!r}: name one from the project's root, as in FILE=fencing/redis/keys.py"
        )
    return path.relative_to(ROOT).as_posix()


def tests_of_mutants(file: str) -> list[str]:
    """Return the tests that find the mutants of a file, as pytest takes them."""
    return sorted({test for mutant in MUTANTS if mutant.file == file for test in mutant.killed_by})


def folder_of(file: str) -> str:
    """Return the folder of a file's tests.

    Raises:
        ValueError: the file has no tests of its own.
    """
    if found := max((name for name in SUBJECTS if is_in(file, name)), key=len, default=None):
        return SUBJECTS[found]
    folder = "/".join(file.split("/")[:2])
    if folder.startswith("tests/") and any((ROOT / folder).rglob("test_*.py")):
        return folder
    raise ValueError(f"{file} belongs to no folder of tests: run all of them with `make test` and `make check`")


def is_in(file: str, name: str) -> bool:
    return file == name or file.startswith(f"{name}/")


def nearest_first(folder: str, file: str) -> list[str]:
    """Return the files of tests in a folder: first those with its name, then those that name it."""
    module = file.removesuffix(".py").replace("/", ".")
    names = (file, module, f"{module.rpartition('.')[0]} import {Path(file).stem}\n")

    def distance(path: Path) -> int:
        if Path(file).stem in path.stem:
            return 0
        return 1 if any(name in path.read_text("utf-8") for name in names) else 2

    found = sorted((ROOT / folder).rglob("test_*.py"), key=lambda path: (distance(path), path))
    return [path.relative_to(ROOT).as_posix() for path in found]


def run(about: str, arguments: Sequence[str]) -> bool:
    """Run tests, and return whether they passed."""
    print(about, flush=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


# The plugin that ends the tests of a folder in time


UNTIL = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--near-seconds", type=float, default=SECONDS, help="skip what has not begun after so many seconds"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The time begins with the first test, since processes may need long to start."""
    seconds, now = item.config.getoption("--near-seconds"), time.monotonic()
    if now > item.config.stash.setdefault(UNTIL, now + seconds):
        pytest.skip(f"{seconds:g} seconds are over")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.near", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("file", metavar="FILE", nargs="?", default="", help="that has changed, from the project's root")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for the tests of its folder ({SECONDS:g})")
    given = parser.parse_args(arguments)
    try:
        file = named(given.file)
        folder = folder_of(file)
    except ValueError as error:
        parser.error(str(error))
    tests = tests_of_mutants(file)
    spread = SPREAD if len(tests) > FEW else ()
    if not tests:
        print(f"No mutants of {file}.", flush=True)
    elif not run(f"The tests that find the mutants of {file}: {len(tests)}", [*spread, *tests]):
        return 1
    about = f"The tests of {folder}, for {given.seconds:g} s; all of them: make test ARGS={folder}"
    plugin = ["-p", "tests.mutants.near", "--near-seconds", str(given.seconds)]
    return 0 if run(about, [*plugin, *SPREAD, *nearest_first(folder, file)]) else 1


if __name__ == "__main__":
    sys.exit(main())

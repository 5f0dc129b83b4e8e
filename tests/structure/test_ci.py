"""What ``.ci/run`` and a run of the tests print at their ends."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("redis-server", "mariadbd", "pgbouncer", "faketime", "chromium", "npm")  # all are there: none is installed
NEWEST = "3.15"


def ci(folder: Path, make: str) -> subprocess.CompletedProcess[str]:
    """Run ``.ci/run`` with a ``make`` of the test's own."""
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    (folder / ".ci" / "install-python").write_text("#!/bin/sh\n")
    programs = folder / "bin"
    programs.mkdir()
    for name, script in {**dict.fromkeys(PROGRAMS, ":"), "make": make}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    return subprocess.run(
        [folder / ".ci" / "run"], env={"PATH": f"{programs}:/usr/bin:/bin"}, capture_output=True, text=True, timeout=300
    )


def test_the_seconds_of_each_part_are_told_before_the_last_one(tmp_path: Path) -> None:
    done = ci(tmp_path, 'echo "make $1"; [ "$1" != wheel ] || sleep 1')
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == "make test", "its own summary ends the output"
    table = lines[lines.index("The parts took:") + 1 : -2]
    names = ["check", "wheel", "thorough", "thorough-mysql", "thorough-etcd", f"test-on-{NEWEST}"]
    assert [line.split()[2] for line in table] == names
    assert int(table[1].split()[0]) >= 1
    assert lines[lines.index("make wheel") + 1] == f"wheel took {table[1].split()[0]} s."


def test_a_newest_python_that_cannot_be_had_is_told(tmp_path: Path) -> None:
    done = ci(tmp_path, f'echo "make $1 $3"; [ "$3" != .venv-{NEWEST}/.check ]')
    assert done.returncode == 0
    assert f"No Python {NEWEST} with all packages here: the tests did not run on it." in done.stdout
    assert "on-" not in done.stdout.partition("The parts took:")[2]


def test_a_part_that_fails_ends_it(tmp_path: Path) -> None:
    done = ci(tmp_path, 'echo "make $1"; [ "$1" != thorough ]')
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "make thorough"


def test_a_run_lists_its_failures_and_its_skips(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_red(): assert 1 == 2\n"
        "def test_left_out(): pytest.skip('no server')\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError('a fixture')\n"
        "def test_broken(broken): pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--noconftest",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    summary = done.stdout.partition("short test summary info")[2]
    assert re.findall(r"(?m)^(FAILED|ERROR|SKIPPED)\b", summary) == ["FAILED", "ERROR", "SKIPPED"], done.stdout
    assert "no server" in summary


def test_type_checkers_are_installed_for_those_who_run_them_alone() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    names = {extra: {re.split(r"[^\w-]", each)[0] for each in needed} for extra, needed in extras.items()}
    checkers = {"mypy", "pyright", "ruff"}
    assert [extra for extra, needed in names.items() if needed & checkers] == ["check"]
    assert names["check"] >= checkers
    makefile = (ROOT / "Makefile").read_text("utf-8")
    expected = {"test": ".dev", "thorough deep": ".runtimes $(VENV)/.data", "check": ".check", "wheel": ".check"}
    found = dict(re.findall(r"(?m)^(test|thorough deep|check|wheel): \$\(VENV\)/(\S.*)$", makefile))
    assert found == expected

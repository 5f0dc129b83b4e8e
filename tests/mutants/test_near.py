"""Which tests ``make near`` runs for a file, and for how long."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants import near
from tests.mutants.catalog import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "fencing/redis/lua/release_alone.lua"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[str]]]:
    """The runs of pytest, which all pass."""
    made: list[tuple[str, Sequence[str]]] = []

    def run(about: str, arguments: Sequence[str]) -> bool:
        made.append((about, arguments))
        return True

    monkeypatch.setattr(near, "run", run)
    return made


def test_the_tests_of_the_mutants_run_first_and_then_those_of_the_folder(runs: list[tuple[str, Sequence[str]]]) -> None:
    assert near.main([SCRIPT]) == 0
    (_, first), (about, second) = runs
    assert set(first) == {test for mutant in MUTANTS if mutant.file == SCRIPT for test in mutant.killed_by}
    assert "tests/redis/test_waiting.py" in second
    assert "make test ARGS=tests/redis" in about


def test_a_file_without_mutants_gets_the_tests_of_its_folder(runs: list[tuple[str, Sequence[str]]]) -> None:
    assert near.main(["fencing/kernel/guard.py"]) == 0
    [(_, arguments)] = runs
    assert "tests/kernel/test_fence.py" in arguments


def test_the_folder_waits_for_the_mutants_tests_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def run(about: str, _: Sequence[str]) -> bool:
        made.append(about)
        return False

    monkeypatch.setattr(near, "run", run)
    assert near.main([SCRIPT]) == 1
    assert len(made) == 1


def test_a_path_may_be_written_in_other_ways(runs: list[tuple[str, Sequence[str]]]) -> None:
    assert near.main([str(ROOT / "fencing" / "kernel" / "guard.py")]) == 0
    assert near.main(["./fencing/kernel/../kernel/guard.py"]) == 0
    assert runs[0] == runs[1]


@pytest.mark.parametrize("file", ["", "fencing", "fencing/redis/no_such.py", "../rooms.py", "/etc/passwd"])
def test_a_file_that_is_not_there_is_refused_with_an_example(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        near.main([file])
    assert "as in FILE=fencing/redis/keys.py" in capsys.readouterr().err


def test_a_file_of_no_subject_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        near.main(["Makefile"])
    assert "make test" in capsys.readouterr().err


def test_the_files_that_name_the_changed_one_are_the_first() -> None:
    found = near.nearest_first("tests/redis", "fencing/redis/keys.py")
    assert "tests/redis/test_keys.py" in found[:5]
    assert sorted(found) == [f"tests/redis/{path.name}" for path in sorted((ROOT / "tests/redis").glob("test_*.py"))]


def test_a_file_of_a_test_belongs_to_its_own_folder() -> None:
    assert near.folder_of("tests/redis/conftest.py") == "tests/redis"
    assert near.folder_of("tests/support/servers/proxy.py") == "tests/servers"


def test_each_file_of_the_packages_has_its_tests() -> None:
    for package in ("fencing", "storage_guards"):
        for path in (ROOT / package).rglob("*.*"):
            if path.suffix in (".py", ".lua"):
                assert (ROOT / near.folder_of(path.relative_to(ROOT).as_posix())).is_dir()
    for name, folder in near.SUBJECTS.items():
        assert (ROOT / name).exists(), name
        assert any((ROOT / folder).rglob("test_*.py")), folder


@pytest.mark.thorough
@pytest.mark.parametrize(("seconds", "outcome"), [("0", "1 passed, 1 skipped"), ("60", "2 passed")])
def test_what_has_not_begun_in_time_is_skipped(tmp_path: Path, seconds: str, outcome: str) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--noconftest"]
    plugin = ["-p", "no:cacheprovider", "-p", "tests.mutants.near", "--near-seconds", seconds]
    done = subprocess.run([*command, *plugin, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"\b{outcome}\b", done.stdout)

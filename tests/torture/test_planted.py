"""Faults put into a copy of the library, and other locks in its place: the run finds them, in seconds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import copy_to
from tests.torture.checker import LOST_UPDATE
from tests.torture.planted import PLANTED, Planted
from tests.torture.run import torture

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)
SECONDS = 8
PAUSE = 0.1
RUNS = 6
"""Threads and servers do as they please: a fault that needs a meeting of two is missed by about one run in three."""


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_its_text_occurs_once_in_the_code(planted: Planted) -> None:
    assert (ROOT / planted.file).read_text("utf-8").count(planted.before) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_the_run_finds_it(planted: Planted, tmp_path: Path) -> None:
    copy = copy_to(tmp_path / "copy")
    file = copy / planted.file
    file.write_text(file.read_text("utf-8").replace(planted.before, planted.after), "utf-8")
    for run in range(RUNS):
        output = run_in(copy, planted, SEED + run, tmp_path / str(run))
        print(output)
        [counted] = [line for line in output.splitlines() if line.startswith("violations ")]
        if any(rule in counted for rule in planted.found_as):
            return
    raise AssertionError(f"{RUNS} runs have not found it")


def run_in(copy: Path, planted: Planted, seed: int, folder: Path) -> str:
    command = [sys.executable, "-m", "tests.torture", "--seed", str(seed), "--seconds", str(SECONDS)]
    command += ["--folder", str(folder)]
    command += ["--on", planted.on, "--kinds", planted.kinds, "--with", planted.contender, "--pause", str(PAUSE)]
    path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=180)
    assert "violations" in done.stdout, done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("contender", ["redis-py", "write-checked"])
def test_without_a_guard_updates_are_lost(contender: str, tmp_path: Path) -> None:
    lost = 0
    for run in range(RUNS):
        outcome = torture(
            SEED + run,
            SECONDS,
            ["sqlite"],
            contender=contender,
            pause=PAUSE,
            kinds=("flush", "flush", "stop"),
            folder=tmp_path / str(run),
        )
        print(outcome)
        lost += sum(violation.rule == LOST_UPDATE for violation in outcome.violations)
        if lost:
            break
    print(f"{contender}: {lost} lost updates")
    assert lost

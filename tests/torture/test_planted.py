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
from tests.torture.schedules import SCHEDULES, play

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)
SECONDS = 8
PAUSE = 0.1
RUNS = 5
"""At the most. A run of the write-checked fence lost 2 to 7 updates, redis-py's lock 33 and more. Updates are lost
independently of each other. So if 2 are lost on average, five runs lose none in one of e^10 = 22,000 cases."""


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_its_text_occurs_once_in_the_code(planted: Planted) -> None:
    for before, _ in planted.changes:
        assert (ROOT / planted.file).read_text("utf-8").count(before) == 1, before


@pytest.mark.parametrize(
    "name",
    [
        name if schedule.on == ("redis", "sqlite") else pytest.param(name, marks=pytest.mark.thorough)
        for name, schedule in SCHEDULES.items()
    ],
)
def test_a_schedule_breaks_no_rule(name: str, tmp_path: Path) -> None:
    outcome = play(name, tmp_path)
    assert not outcome.violations
    assert outcome.history
    assert all(event.end is not None for event in outcome.history if event.kind in ("acquire", "read", "write"))


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(each, marks=pytest.mark.thorough if isinstance(each.shown_by, str) else pytest.mark.deep)
        for each in PLANTED
    ],
    ids=[each.name for each in PLANTED],
)
def test_it_is_found(planted: Planted, copy: Path, tmp_path: Path) -> None:
    file = copy / planted.file
    text = file.read_text("utf-8")
    try:
        for before, after in planted.changes:
            file.write_text(file.read_text("utf-8").replace(before, after), "utf-8")
        output = run_in(copy, planted, tmp_path)
    finally:
        file.write_text(text, "utf-8")
    [counted] = [line for line in output.splitlines() if line.startswith("violations ")]
    assert any(rule in counted for rule in planted.found_as), output


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_to(tmp_path_factory.mktemp("planted") / "copy")


def run_in(copy: Path, planted: Planted, folder: Path) -> str:
    shown_by = planted.shown_by
    arguments = ["schedule", shown_by] if isinstance(shown_by, str) else shown_by
    command = [sys.executable, "-m", "tests.torture", *arguments]
    path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command += ["--folder", str(folder)]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=180)
    assert "violations" in done.stdout, done.stderr
    return done.stdout


CONTENDERS = ("redis-py", "write-checked")


@pytest.mark.parametrize("contender", CONTENDERS)
def test_without_a_guard_a_schedule_loses_an_update(contender: str, tmp_path: Path) -> None:
    assert [found.rule for found in play("both have read", tmp_path, contender).violations] == [LOST_UPDATE]


@pytest.mark.thorough
@pytest.mark.parametrize("contender", CONTENDERS)
def test_without_a_guard_updates_are_lost(contender: str, tmp_path: Path) -> None:
    lost = 0
    for run in range(RUNS):
        outcome = torture(
            2 * SEED + 1 + 2 * run,  # odd: numbers grow, so a late write is not just refused
            SECONDS,
            ["redis", "sqlite"],
            contender=contender,
            pause=PAUSE,
            kinds=("flush redis",),
            folder=tmp_path / str(run),
        )
        print(outcome)
        lost += sum(violation.rule == LOST_UPDATE for violation in outcome.violations)
        if lost:
            break
    print(f"{contender}: {lost} lost updates")
    assert lost

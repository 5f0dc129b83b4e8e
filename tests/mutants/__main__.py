"""Puts each fault of the catalog into a copy of the project, and runs the tests that are to find it.

    python -m tests.mutants [NAME ...] [--jobs 2]
    python -m tests.mutants --check-clean      (do those tests pass without a fault?)

Only a test that fails counts. A test that is gone, or skipped, or cannot begin says nothing of the fault.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

from tests.mutants.catalog import MUTANTS, Mutant
from tools.faces import PAIRS, make

ROOT = Path(__file__).resolve().parents[2]

LONGEST_SECONDS = 300.0
"""For the tests of one fault. A fault that makes them hang is found, too."""

CLEAN_SECONDS = 1800.0

END_SECONDS = 30.0
"""What interrupted tests get to end their servers."""


class Result(NamedTuple):
    """What became of one mutant, and how it is known."""

    verdict: Literal["killed", "SURVIVED", "not applicable"]
    why: str


class Ended(NamedTuple):
    """A run of pytest. ``code`` is None where it was out of time."""

    code: int | None
    output: str

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1].strip("= ") if lines else "no output"


def copy_to(folder: Path) -> Path:
    """A copy of all tracked files, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in listed.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def pytest_in(copy: Path, arguments: Sequence[str], seconds: float) -> Ended:
    """Run pytest on the copy's own product."""
    path = os.pathsep.join(filter(None, [str(copy), os.environ.get("PYTHONPATH")]))
    # No bytecode: two faults of one file may be written within one tick of its clock.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfEs", "-p", "no:cacheprovider", *arguments]
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            return Ended(process.returncode, output)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends the servers that it has started
            try:
                output, _ = process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            return Ended(None, output)


def write(file: Path, text: str, copy: Path) -> None:
    """Write a file of the copy, and the sync face that is made from it."""
    file.write_text(text, "utf-8")
    make(copy, [pair for pair in PAIRS if copy / pair.source == file])


def run(mutant: Mutant, copy: Path) -> Result:
    """Put the fault into the copy, look, and take it out again."""
    file = copy / mutant.file
    text = file.read_text("utf-8") if file.is_file() else ""
    if text.count(mutant.before) != 1:
        return Result("not applicable", f"its text occurs {text.count(mutant.before)} times in {mutant.file}")
    if not mutant.killed_by:
        return Result("SURVIVED", "no test is known that finds it")
    write(file, text.replace(mutant.before, mutant.after), copy)
    try:
        ended = pytest_in(copy, ["-x", "-n", "0", *mutant.killed_by], LONGEST_SECONDS)
    finally:
        write(file, text, copy)
    return assess(ended)


def assess(ended: Ended) -> Result:
    """Return the verdict on a fault after a run with it."""
    if ended.code is None:
        return Result("killed", f"out of time, after {LONGEST_SECONDS:.0f} s")
    failed = [line for line in ended.output.splitlines() if line.startswith("FAILED ")]
    if ended.code == 1 and failed:
        return Result("killed", failed[0].removeprefix("FAILED ").partition(" - ")[0])
    if ended.code == 0 and " passed" in ended.last_line:
        return Result("SURVIVED", ended.last_line)
    return Result("not applicable", f"pytest ended with {ended.code}: {ended.last_line}")


def run_all(mutants: Sequence[Mutant], jobs: int) -> int:
    """Run them, print a line for each, and return how many were killed."""
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(copy_to(Path(folder) / str(number)))

        def in_a_copy(mutant: Mutant) -> tuple[Result, float]:
            copy, began = copies.get(), time.monotonic()
            try:
                return run(mutant, copy), time.monotonic() - began
            finally:
                copies.put(copy)

        for mutant, (result, seconds) in zip(mutants, pool.map(in_a_copy, mutants), strict=True):
            print(f"{result.verdict:<14} {mutant.name:<56} {seconds:6.1f} s  {result.why}", flush=True)
            killed += result.verdict == "killed"
    print(f"{killed} of {len(mutants)} killed")
    return killed


def check_clean(mutants: Sequence[Mutant], jobs: int) -> bool:
    """Whether the tests that are to find the faults pass where there is none."""
    tests = sorted({test for mutant in mutants for test in mutant.killed_by})
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        ended = pytest_in(copy_to(Path(folder)), ["-n", str(jobs), *tests], CLEAN_SECONDS)
    print(ended.output, end="")
    return ended.code == 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; all if none is given")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at the same time (2)")
    parser.add_argument("--check-clean", action="store_true", help="run the tests once, without any fault")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no such mutants: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not given.names or mutant.name in given.names]
    if given.check_clean:
        return 0 if check_clean(chosen, given.jobs) else 1
    return 0 if run_all(chosen, given.jobs) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())

"""The benchmark suite: `python -m tests.benchmarks [all] [PART …] [--quick] [--json FILE]`, or `make bench ARGS="…"`.

It prints the rows with their targets, and names those that are missed. With `all` it also measures other libraries, all
cores and large numbers. With `--runs 3` each figure is the middle one of three runs. The figures go into FILE
(bench.json), and all times into FILE.pyperf.json, in pyperf's format.
`python -m tests.benchmarks report FILE` makes docs/benchmarks.md and docs/benchmarks/ of a run of everything.

With `--against REVISION` it measures the library of this checkout and that of a revision, turn about, and prints the
ratios. The times of the revision go into FILE.against.json: `pyperf compare_to` judges the two files.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import describe, noise
from tests.benchmarks.parts import ALL_ONLY, COMPARED, PARTS, Other, Run, figures_of, load, merged
from tests.benchmarks.report import write_pages
from tests.benchmarks.rows import verdicts
from tests.benchmarks.tables import missed, plain, ratio_rows, verdict_rows

EVERYTHING = "all"


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        recorded = json.loads(Path(*sys.argv[2:3] or ["bench.json"]).read_text("utf-8"))
        if not recorded["everything"]:
            sys.exit("The pages need a run of everything: make bench ARGS=all")
        print("\n".join(map(str, write_pages(recorded))))
        return
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    described = "; ".join(f"{name}: {its}" for name, its in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{EVERYTHING}: everything; {described}")
    parser.add_argument("--quick", action="store_true", help="few rounds: does everything work?")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="of each figure, the middle one of N runs")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE")
    parser.add_argument("--against", metavar="REVISION", help=f"compare with a revision: {', '.join(COMPARED)}")
    options = parser.parse_args()
    there = COMPARED if options.against else (*PARTS, EVERYTHING)
    if unknown := set(options.parts).difference(there):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    everything = EVERYTHING in options.parts
    by_default = COMPARED[:3] if options.against else [name for name in PARTS if everything or name not in ALL_ONLY]
    results: dict[str, Any] = {"machine": describe(), "quick": options.quick, "everything": everything, "parts": {}}
    times: dict[Path, dict[str, list[Sequence[float]]]] = {}
    done: dict[str, list[dict[str, Any]]] = {}
    started = time.monotonic()
    with _unpacked(options.against) if options.against else nullcontext() as other:
        suffixes = {".pyperf.json": "", **({".against.json": other.suffix} if other else {})}
        for name in ([name for name in options.parts if name != EVERYTHING] or list(by_default)) * options.runs:
            run = Run(name, options.quick, everything or name in ALL_ONLY, other)
            done.setdefault(name, []).append(run_part(run))
            results["parts"][name] = merged(done[name])
            options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False), "utf-8")
            for ending, suffix in suffixes.items():
                its = times.setdefault(options.json.with_suffix(ending), {})
                for of, values in run.times(suffix).items():
                    its.setdefault(of, []).append(values)
    print(summary(results, options.against))
    for file, its in times.items():
        write_times(file, its)
    files = ", ".join(map(str, (options.json, *times)))
    print(f"\n{time.monotonic() - started:.0f} s. All figures are in {files}.")


def run_part(run: Run) -> dict[str, Any]:
    """Return the figures of a part."""
    before = noise()
    try:
        load(run.name).part(run)
    except Exception as error:  # noqa: BLE001 - it is reported, and the other parts go on
        run.failed("all", "all", f"{type(error).__name__}: {error}")
    return {**run.result(), "noise": [before, noise()]}


@contextmanager
def _unpacked(revision: str) -> Iterator[Other]:
    """Yield a revision, with its packages in a folder. The measurements themselves are those of this checkout."""
    command = ["git", "archive", revision, "fencing", "storage_guards"]
    packed = subprocess.run(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, check=False)
    if packed.returncode:
        sys.exit(f"There is no revision {revision} with these packages.")
    with tempfile.TemporaryDirectory(prefix="fencing-bench-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        yield Other(revision, Path(folder))


def write_times(file: Path, times: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Write the times of each run, in seconds, in pyperf's format: https://pyperf.readthedocs.io/en/latest/api.html."""
    pyperf = importlib.import_module("pyperf")
    benchmarks = []
    for name, runs in times.items():
        described = {"metadata": {"name": name, "unit": "second"}, "collect_metadata": False}
        above = [[value for value in its if value > 0] for its in runs]  # a clock may have stood still
        if any(above):
            benchmarks.append(pyperf.Benchmark([pyperf.Run(its, **described) for its in above if its]))
    if benchmarks:
        pyperf.BenchmarkSuite(benchmarks).dump(str(file), replace=True)


def summary(results: dict[str, Any], against: str | None = None) -> str:
    """Return the table of the rows, with the missed ones and the failures at its end; or that of the ratios."""
    figures = figures_of(results)
    found = verdicts(figures)
    lines = [
        "",
        plain(ratio_rows(figures, against) if against else verdict_rows(found)),
        "",
        "Medians, with the 10th and the 90th percentile. A/A: the ratio of a measurement to the same one, in this run.",
    ]
    for name, part in results["parts"].items():
        for failure in part["failures"]:
            lines.append(f"failed: {name}, {failure['scenario']}, {failure['of']}: {failure['said']}")
    if not against:
        open_ = missed(found)
        targets = sum(verdict.row.limit is not None for verdict in found)
        lines += ["", f"Missed: {len(open_)} of {targets} targets", *(f"  {line}" for line in open_)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

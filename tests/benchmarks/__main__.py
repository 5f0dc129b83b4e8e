"""The benchmark suite: `python -m tests.benchmarks [all] [PART …] [--quick] [--json FILE]`, or `make bench ARGS="…"`.

It prints the rows with their targets, and names those that are missed. With `all` it also measures other libraries, all
cores and large numbers. The figures go into FILE (bench.json). `python -m tests.benchmarks report FILE` makes
docs/benchmarks.md and docs/benchmarks/ of a run of everything.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import describe, noise
from tests.benchmarks.parts import ALL_ONLY, PARTS, Run, figures_of, load
from tests.benchmarks.report import write_pages
from tests.benchmarks.rows import verdicts
from tests.benchmarks.tables import missed, plain, verdict_rows

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
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys() - {EVERYTHING}
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    everything = EVERYTHING in options.parts
    named = [name for name in options.parts if name != EVERYTHING]
    results: dict[str, Any] = {"machine": describe(), "quick": options.quick, "everything": everything, "parts": {}}
    started = time.monotonic()
    for name in named or [name for name in PARTS if everything or name not in ALL_ONLY]:
        results["parts"][name] = run_part(name, quick=options.quick, everything=everything or name in ALL_ONLY)
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False), "utf-8")
    print(summary(results))
    print(f"\n{time.monotonic() - started:.0f} s. All figures are in {options.json}.")


def run_part(name: str, *, quick: bool, everything: bool) -> dict[str, Any]:
    """Return the figures of a part."""
    run = Run(name, quick, everything)
    before = noise()
    try:
        load(name).part(run)
    except Exception as error:  # noqa: BLE001 - it is reported, and the other parts go on
        run.failed("all", "all", f"{type(error).__name__}: {error}")
    return {**run.result(), "noise": [before, noise()]}


def summary(results: dict[str, Any]) -> str:
    """Return the table of the rows, with the missed ones and the failures at its end."""
    found = verdicts(figures_of(results))
    lines = [
        "",
        plain(verdict_rows(found)),
        "",
        "Medians, with the 10th and the 90th percentile. A/A: the ratio of a measurement to the same one, in this run.",
        "* Or 1.25 times raw commands, if these alone exceed 0.30.",
    ]
    for name, part in results["parts"].items():
        for failure in part["failures"]:
            lines.append(f"failed: {name}, {failure['scenario']}, {failure['of']}: {failure['said']}")
    open_ = missed(found)
    targets = sum(verdict.row.limit is not None for verdict in found)
    lines += ["", f"Missed: {len(open_)} of {targets} targets", *(f"  {line}" for line in open_)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

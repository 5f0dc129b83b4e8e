"""The benchmark suite: `python -m tests.benchmarks [--quick] [--json FILE] [PART …]`, or `make bench ARGS="…"`.

Without names, every part. What is found goes into FILE (bench.json), and `python -m tests.benchmarks report FILE` makes
docs/benchmarks.md and docs/benchmarks/ of it. Ratios are what counts: absolute times are of this machine at this hour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import describe, noise
from tests.benchmarks.parts import PARTS, PROGRAM_SECONDS, Figure, Run, load
from tests.benchmarks.report import write_pages
from tests.benchmarks.tables import figure_rows, plain, scenarios, verdict_rows
from tests.benchmarks.targets import TARGETS, assess


def main() -> None:
    if sys.argv[1:2] == ["report"]:
        written = write_pages(json.loads(Path(*sys.argv[2:3] or ["bench.json"]).read_text("utf-8")))
        print("\n".join(map(str, written)))
        return
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help="; ".join(f"{name}: {its}" for name, its in PARTS.items())
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: does everything work?")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), metavar="FILE")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    results: dict[str, Any] = {"machine": describe(), "quick": options.quick, "parts": {}}
    for name in options.parts or PARTS:
        results["parts"][name] = run_part(name, quick=options.quick)
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False), "utf-8")
    print(summary(results))
    print(f"\nAll of it is in {options.json}; `python -m tests.benchmarks report {options.json}` makes the page of it.")


def run_part(name: str, *, quick: bool) -> dict[str, Any]:
    """What a part found; and its tables, printed."""
    run = Run(name, quick)
    before = noise()
    module = load(name)
    text = ""
    if module is None:
        run.failed("all", "all", "there is nothing to measure yet")
    elif hasattr(module, "part"):
        module.part(run)
    else:
        text = _program(run)
    result = {**run.result(), "noise": [before, noise()], "text": text}
    print(f"\n{name}: {PARTS[name]}")
    for scenario in scenarios(run.figures):
        print(f"\n{scenario}\n{plain(figure_rows(run.figures, scenario))}")
    if text:
        print(text)
    return result


def _program(run: Run) -> str:
    """What a module without ``part`` prints when it is run by itself."""
    command = [sys.executable, "-m", f"tests.benchmarks.{run.name}"]
    run.say("a program of its own")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        run.failed("all", "all", f"did not end within {PROGRAM_SECONDS:.0f} s, and was killed")
        return ""
    if done.returncode:
        run.failed("all", "all", (done.stderr.strip() or "no word").splitlines()[-1])
    return done.stdout.rstrip()


def summary(results: dict[str, Any]) -> str:
    """The targets, and whatever failed."""
    figures = {name: [Figure(**figure) for figure in part["figures"]] for name, part in results["parts"].items()}
    verdicts = [assess(target, figures) for target in TARGETS]
    wanted = [verdict for verdict in verdicts if any(place[0] in figures for place in verdict.target.places)]
    lines = []
    if wanted:
        lines = [
            f"\nTargets: {sum(verdict.met for verdict in wanted)} of {len(wanted)} met",
            plain(verdict_rows(wanted)),
        ]
    for name, part in results["parts"].items():
        for failure in part["failures"]:
            lines.append(f"failed: {name}, {failure['scenario']}, {failure['of']}: {failure['said']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

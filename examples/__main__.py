"""Run all demos, one after the other, and write one page with the outcomes of each side by side: ``make demos``."""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.drawing.index import Entry, index
from examples.drawing.page import write_page

HERE = Path(__file__).parent
TIMEOUT = 300


def find_demos() -> list[str]:
    """Return the modules: packages with a ``__main__.py``, and stories of one file. A new one joins by being there."""
    packages = [file.parent.name for file in sorted(HERE.glob("*/__main__.py"))]
    stories = [file.stem for file in sorted((HERE / "stories").glob("*.py")) if "perform(" in file.read_text("utf-8")]
    return [f"examples.{name}" for name in packages] + [f"examples.stories.{name}" for name in stories]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if each demo had the expected result, else 1."""
    parser = argparse.ArgumentParser(prog="python -m examples", description=__doc__)
    parser.add_argument("--html", type=Path, metavar="DIRECTORY", help="write the pages there (default: a new one)")
    parser.add_argument("--only", metavar="WORD", default="", help="only demos with this in their name")
    parser.add_argument("--seed", default="1", help="of what is drawn by lot (default 1)")
    parser.add_argument("--slow", action="store_true", help="wait a moment after each event")
    options = parser.parse_args(arguments)
    directory = (options.html or Path(tempfile.mkdtemp(prefix="fencing-demos-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    demos = [module for module in find_demos() if options.only in module]
    more = ["--seed", options.seed, *(["--slow"] if options.slow else [])]
    entries = [play(module, directory, more) for module in demos]
    page = write_page(directory / "index.html", "", index("What goes wrong with locks", INTRODUCTION, entries))
    print(f"\nAll stories, for a browser: {page}")
    return 0 if all(entry.as_expected for entry in entries) else 1


INTRODUCTION = (
    "Each story was played just now, by real processes on real servers. ✗ is what happens with the lock alone, or with "
    "a wrong one. ✓ is the same with a right one, or with fencing numbers that the storage checks."
)


def play(module: str, directory: Path, more: Sequence[str]) -> Entry:
    """Run a demo, and return its line of the index."""
    name = module.rpartition(".")[2].replace("_", "-")
    began = time.monotonic()
    events, page = directory / f"{name}.jsonl", directory / f"{name}.html"
    command = [sys.executable, "-m", module, "--json", str(events), "--html", str(page), *more]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=TIMEOUT)
    print(f"{'✓' if done.returncode == 0 else '✗'} {name}, {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode or not page.exists():
        print(done.stdout[-2000:] + done.stderr, file=sys.stderr)
    measured = [event["data"] for event in _read(events) if event["kind"] == "measured"]
    title = re.search("<h1>(.*?)</h1>", page.read_text("utf-8")) if page.exists() else None
    return Entry(
        title=title[1] if title else name,
        page=page.name,
        bad=[act["verdict"] for act in measured if not act["good"]],
        good=[act["verdict"] for act in measured if act["good"]],
        as_expected=done.returncode == 0,
    )


def _read(events: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in events.read_text("utf-8").splitlines()] if events.exists() else []


if __name__ == "__main__":
    sys.exit(main())

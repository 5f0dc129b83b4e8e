"""A demo, run as a user would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Environment:
    """An environment whose processes can be found again."""

    def __init__(self, **variables: str) -> None:
        self._mark = f"FENCING_DEMO_RUN={uuid.uuid4().hex}"
        name, value = self._mark.split("=")
        own = {key: os.environ[key] for key in os.environ if not key.startswith("FENCING_")}
        self.variables = {**own, name: value, "PYTHONIOENCODING": "utf-8", **variables}

    def processes(self) -> list[str]:
        """Command lines of the processes that were started in it: workers, servers and the servers' watchers."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # gone, or not ours to look into
        return found


class Run(NamedTuple):
    status: int
    output: str
    events: list[dict[str, Any]]
    drawn: Path
    seconds: float
    environment: Environment


def run_demo(module: str, directory: Path, *arguments: str, **variables: str) -> Run:
    environment = Environment(**variables)
    path, drawn = directory / "events.jsonl", directory / "drawn.html"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", module, "--json", str(path), "--html", str(drawn), *arguments],
        cwd=ROOT,
        env=environment.variables,
        capture_output=True,
        timeout=300,
        encoding="utf-8",
    )
    assert not done.stderr, done.stderr  # this file's assertions are not explained by pytest
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Run(done.returncode, done.stdout, events, drawn, time.monotonic() - started, environment)

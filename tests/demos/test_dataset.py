"""The demo of the Parquet dataset, run as a user would run it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from examples.servers import RedisServer, S3Server
from tests.support.demos import ROOT, run_demo

DEMO = "examples.dataset"
NEEDS = ("duckdb", "pyarrow", "fsspec")
DAYS = ["all Sunday", "all Tuesday"]

needs_data = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, NEEDS)), reason="needs DuckDB and pyarrow: pip install '.[data]'"
)


@pytest.mark.thorough
@needs_data
def test_the_acts(any_redis: RedisServer, s3_server: S3Server, tmp_path: Path) -> None:
    from examples.dataset.story import STORY
    from examples.drawing.events import Event

    run = run_demo(DEMO, tmp_path)  # the fixtures only say that there are servers: it starts its own
    assert run.status == 0, run.output
    assert run.environment.processes() == []
    acts = [event["data"] for event in run.events if event["kind"] == "measured"]
    assert [(act["final"], act["days"]) for act in acts] == [
        ("Tuesday, Monday, Monday", DAYS),
        ("all Tuesday", DAYS),
        ("all Tuesday", DAYS),
    ]
    for act in acts:
        assert set(act["torn"]) == {"DuckDB", "pyarrow"}
        assert all(reads >= 15 for reads in act["reads"].values())  # before the pause, in it, after it
    assert all(acts[0]["torn"].values())
    assert not any(any(act["torn"].values()) for act in acts[1:])
    refused = [(event["act"], event["text"]) for event in run.events if event["kind"] == "refused"]
    assert refused == [("2a", "REFUSED: B #2 claimed"), ("2b", "REFUSED: B #2 claimed")]
    assert run.output.count("A is paused: SIGSTOP") == 3
    events = [Event(**{key: value for key, value in event.items() if key != "wall"}) for event in run.events]
    assert run.drawn.read_text(encoding="utf-8") == STORY.report(" ".join(STORY.introduction(1.5)), events)


@pytest.mark.thorough
def test_what_is_missing_is_said() -> None:
    program = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "duckdb" else find(name, *more)
from examples.dataset.__main__ import main
sys.exit(main([]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=300)
    assert done.returncode == 1
    assert "duckdb" in done.stderr
    assert "pip install '.[demo-objects,data]'" in done.stderr


@pytest.mark.thorough
@needs_data
@pytest.mark.parametrize(
    ("key", "acknowledged", "refused", "torn", "final", "as_expected"),
    [
        ("1", ["B", "A"], [], (3, 9), ("Tuesday", "Monday", "Monday"), True),
        ("1", ["B", "A"], [], (0, 9), ("Tuesday", "Monday", "Monday"), False),  # DuckDB saw nothing of it
        ("1", ["B", "A"], [], (3, 9), ("Tuesday",) * 3, False),
        ("2a", ["B"], ["stale"], (0, 0), ("Tuesday",) * 3, True),
        ("2a", ["B"], [], (0, 0), ("Tuesday",) * 3, False),  # nothing was refused
        ("2a", ["B", "A"], ["stale"], (0, 0), ("Tuesday",) * 3, False),
        ("2a", ["B"], ["stale"], (0, 1), ("Tuesday",) * 3, False),
        ("2a", ["B"], ["stale"], (0, 0), ("Tuesday",) * 2, False),  # a month is gone
    ],
)
def test_the_expected_result_is_compared_with_the_measured_one(
    key: str,
    acknowledged: list[str],
    refused: list[str],
    torn: tuple[int, int],
    final: tuple[str, ...],
    as_expected: bool,
) -> None:
    from examples.dataset.director import Outcome
    from examples.dataset.story import STORY
    from examples.dataset.tables import Seen

    act = next(act for act in STORY.ACTS if act.key == key)
    found = dict(zip(("DuckDB", "pyarrow"), torn, strict=True))
    reads = dict.fromkeys(found, 20)
    assert Outcome(act, acknowledged, refused, reads, found, DAYS, Seen(final)).as_expected is as_expected

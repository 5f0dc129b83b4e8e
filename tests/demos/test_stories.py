"""The stories of one file each, run as a user would run them, their pages, and the page that leads to all."""

from __future__ import annotations

import importlib
import random
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from examples.__main__ import find_demos, play
from examples.drawing.events import Event, Recorder
from examples.drawing.index import Entry, index
from examples.servers import MissingTool, PostgresServer, RedisServer, S3Server, find_faketime
from examples.stage import director
from examples.stage.coordinators import CHOICES
from examples.stage.director import Act
from examples.stage.process import WorkerProcess
from examples.stage.run import Demo, run
from examples.stage.screen import Screen
from examples.stage.tale import Result, Tale, perform
from storage_guards import MemoryGuard
from tests.support.browser import browser, render, require_browser
from tests.support.demos import ROOT, run_demo
from tests.support.fixtures import missing

SVG = "{http://www.w3.org/2000/svg}svg"
HARMS = {
    "wrong_locks": {"1": "stuck for ever", "2": "stuck for ever", "7a": "nobody can work"}
    | {"6b": "True is not true", "7b": "False is not true"}
    | dict.fromkeys(("3b", "3c", "3d", "4", "5", "6a", "9a"), "two at work"),
    "network_delay": {"1": "56"},
    "slow_work": {"1": "2"},
    "hot_standby": {"1": "5"},
    "clock_jump": {"1": "56"},
    "redlock": dict.fromkeys(("1a", "2a", "3a", "4a"), "overwritten"),
}
"""By act in which something goes wrong: the last cell of its line."""
LOCKS_SAY = {
    "1": ["A is AT WORK (SETNX: True)", "B sees a refusal (SETNX: False)"],
    "2": ["B sees a refusal (SETNX: False)"],
    "3a": ["B is AT WORK (GETSET: over for …)", "A sees a refusal (GETSET: over in …)"],
    "3b": [
        "B is AT WORK (GETSET: over for …)",
        "A sees a refusal (GETSET: over in …)",
        "C is AT WORK (GETSET: over for …)",
    ],
    "3c": ["A is AT WORK (SETNX: True)", "B is AT WORK (GETSET: over for …)"],
    "3d": [
        "A is AT WORK (SETNX: True)",
        "B is AT WORK (GETSET: over for …)",
        "A has sent its release (DEL: 1)",
        "C is AT WORK (SETNX: True)",
    ],
    "4": [
        "A is AT WORK (SET: True)",
        "B is AT WORK (SET: True)",
        "A has sent its release (DEL: 1)",
        "C is AT WORK (SET: True)",
    ],
    "5": [
        "A is AT WORK (SET: True)",
        "B is AT WORK (SET: True)",
        "A its release says True (DEL: 1)",
        "C is AT WORK (SET: True)",
    ],
    "6a": ["A is AT WORK (SET: True)", "B is AT WORK (SET: None)"],
    "6b": [
        "A is AT WORK (SET: True)",
        "B is AT WORK (SET: True)",
        "B its release says True (EVAL: 1)",
        "A its release says True (EVAL: 0)",
    ],
    "7a": ["A sees a refusal (SET: True)", "B sees a refusal (SET: None)"],
    "7b": ["A is AT WORK (SET: True)", "A its release says False (EVAL: 1)", "B is AT WORK (SET: True)"],
    "8": [
        "A is AT WORK (SET: True)",
        "B is AT WORK (SET: True)",
        "A its release says False (EVAL: 0)",
        "C sees a refusal (SET: None)",
        "C is AT WORK (SET: True)",
    ],
    "9a": ["A is AT WORK (SET: True)", "B is AT WORK (SET: True)"],
}
"""By act of `wrong_locks`: what each process believes, and what Redis replied to it."""
STORIES = [module.rpartition(".")[2] for module in find_demos() if ".stories." in module]


def require_tools(module: str) -> None:
    if module.endswith(("clock_jump", "redlock")) and find_faketime() is None:
        missing(
            "faketime",
            "found no libfaketime (pip install libfaketime, or apt-get install faketime)",
        )


def story(name: str) -> Tale:
    found: Tale = importlib.import_module(f"examples.stories.{name}").STORY
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", STORIES)
def test_a_story(name: str, any_redis: RedisServer, postgres_server: PostgresServer, tmp_path: Path) -> None:
    # The fixtures only say that there are servers: it starts its own.
    require_tools(name)
    played = run_demo(f"examples.stories.{name}", tmp_path, "--ttl", "0.8")
    assert played.status == 0, played.output
    assert played.seconds < 240
    assert played.environment.processes() == []
    tale = story(name)
    measured = [event["data"] for event in played.events if event["kind"] == "measured"]
    acts = [event["act"] for event in played.events if event["kind"] == "measured"]
    assert acts == [act.key for act in tale.ACTS]
    assert {act: data["cells"][-1] for act, data in zip(acts, measured, strict=True) if not data["good"]} == HARMS[name]
    if name == "wrong_locks":
        check_beliefs(played.events)
    check_page(tale, played.events, played.drawn.read_text("utf-8"), tmp_path)


def check_beliefs(events: list[dict[str, Any]]) -> None:
    found: dict[str, list[str]] = {}
    for event in events:
        if event["act"] in LOCKS_SAY and event["kind"] in ("at-work", "missed", "freed"):
            text = re.sub(r"[\d.]+ s\)", "…)", event["text"])
            found.setdefault(event["act"], []).append(f"{event['lane']} {text}")
    assert found == LOCKS_SAY


def check_page(tale: Tale, events: list[dict[str, object]], drawn: str, directory: Path) -> None:
    """The pictures: from the recorded events and nothing else, and legible."""
    recorded = [Event(**{key: value for key, value in event.items() if key != "wall"}) for event in events]  # type: ignore[arg-type]
    introduction = " ".join(tale.introduction(0.8))
    assert drawn == tale.report(introduction, recorded)
    root = ElementTree.fromstring(drawn.removeprefix("<!DOCTYPE html>"))
    assert len([picture for picture in root.iter(SVG) if picture.get("class") == "timeline"]) == len(tale.ACTS)
    if browser() is not None:
        rendered = render(drawn, directory)
        assert (rendered.problems, rendered.console) == ([], [])
        assert min(rendered.smallest.values()) > 8


# By demo: an act in which all should be well, and the act whose functions it is played with.
BROKEN = {
    "examples.gc_pause": ("3a", "1"),
    "examples.object_upload": ("3a", "1"),
    "examples.dataset": ("2a", "1"),
    "examples.http_service": ("2", "1"),
    "examples.failover": ("2", "1"),
    "examples.stories.wrong_locks": ("8", "4"),
    "examples.stories.redlock": ("1b", "1a"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("module", find_demos())
def test_a_demo_fails_if_the_outcome_is_another(
    module: str, any_redis: RedisServer, postgres_server: PostgresServer, s3_server: S3Server, tmp_path: Path
) -> None:
    """What should protect the data is taken away, and all else is played as always."""
    require_tools(module)
    safe, harmful = BROKEN.get(module, ("2", "1"))
    played = run_demo("tests.support.broken_demo", tmp_path, BROKEN_DEMO=f"{module} {safe} {harmful}")
    assert played.status == 1, played.output
    assert f"Act {safe} did NOT have the expected result" in played.output
    assert played.environment.processes() == []


@pytest.mark.thorough
def test_all_demos_and_their_index(any_redis: RedisServer, postgres_server: PostgresServer, tmp_path: Path) -> None:
    """One of them, for the time it takes: the others are played above."""
    command = [sys.executable, "-m", "examples", "--only", "hot_standby", "--html", str(tmp_path), "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    made = (tmp_path / "index.html").read_text("utf-8")
    assert 'href="hot-standby.html"' in made
    assert (tmp_path / "hot-standby.html").exists()
    assert "✗ Order 2 was shipped twice." in made
    assert "✓ 4 orders, each shipped once." in made
    if browser() is not None:
        rendered = render(made.replace("smallest, problems", "smallest: 0, problems"), tmp_path)
        assert (rendered.problems, rendered.console) == ([], [])


def test_a_coordinator_that_a_demo_does_not_take(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        perform(story("wrong_locks"), ["--coordinator", "sqlite"])
    assert "argument --coordinator: invalid choice: 'sqlite'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["network_delay", "slow_work"])
def test_a_lock_that_is_always_renewed_does_not_expire_in_a_demo(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        perform(story(name), ["--coordinator", "zookeeper"])
    assert "argument --coordinator: invalid choice: 'zookeeper'" in capsys.readouterr().err


def test_a_coordinator_whose_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)  # as if it were missing
    with ExitStack() as stack, pytest.raises(MissingTool, match="locks in SQLite need the Python package sqlalchemy"):
        CHOICES["sqlite"].start(stack)


def test_an_act_without_its_tool_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Director:
        def play(self, act: Act) -> Result:
            if act.key == "2":
                raise MissingTool("no sextant here: harbours have it")
            return Result(act, not act.harms, "It is so.", ["1", "2"])

    demo = Demo("examples.none", "", story("hot_standby"), lambda *_: cast("Any", Director()), ())
    assert run(demo, ["--html", str(tmp_path / "page.html")]) == 1
    assert "Act 2 was left out: no sextant here: harbours have it." in capsys.readouterr().out
    assert run(demo, ["--html", str(tmp_path / "page.html"), "--act", "1"]) == 0
    assert "It is so." in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "coordinator"),
    [
        *(("examples.gc_pause", coordinator) for coordinator in CHOICES if coordinator != "redis"),
        *(("examples.stories.network_delay", coordinator) for coordinator in ("cluster", "postgresql")),
        *(("examples.stories.hot_standby", coordinator) for coordinator in ("redlock", "sqlite", "zookeeper")),
        ("examples.stories.slow_work", "sentinel"),
        *(("examples.object_upload", coordinator) for coordinator in ("sqlite", "zookeeper")),
        *(("examples.http_service", coordinator) for coordinator in ("sqlite", "zookeeper")),
    ],
)
def test_on_another_coordinator(
    module: str, coordinator: str, any_redis: RedisServer, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    only = ("--act", "3") if module == "examples.gc_pause" else ()
    played = run_demo(module, tmp_path, "--ttl", "0.8", "--coordinator", coordinator, "--seed", "7", *only)
    assert played.status == 0, played.output
    assert played.environment.processes() == []


class OnlyPauses(director.Director):
    STORAGE = "row"

    def play(self, act: Act) -> None:
        raise NotImplementedError

    def _record(self, name: str, report: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.thorough
def test_a_worker_is_not_paused_while_it_keeps_the_locks_of_all(tmp_path: Path) -> None:
    """A file of SQLite has one writer: paused in the middle of a renewal, it would keep the lock from everybody."""
    with ExitStack() as stack:
        address = CHOICES["sqlite"].start(stack)
        worker = WorkerProcess("A", "tests.support.busy_worker", urlsplit(address).path)
        stack.callback(worker.close)
        coordinator = stack.enter_context(CHOICES["sqlite"].open(address))
        play = OnlyPauses({"A": worker}, coordinator, MemoryGuard(), Recorder(), Screen(), ttl=0.8, prefix="")
        play._begin(story("hot_standby").ACTS[0], "paused")
        for _ in range(8):
            assert worker.report()["kind"] == "writes"
            pause = play._freeze("A")
            coordinator.acquire("another", timeout=5).release()
            play._thaw("A", pause)


def test_each_story_has_its_target_and_its_line_in_the_readme() -> None:
    makefile, readme = (ROOT / "Makefile").read_text("utf-8"), (ROOT / "examples" / "README.md").read_text("utf-8")
    for name in STORIES:
        target = f"demo-{name.replace('_', '-')}"
        assert re.search(rf"^(demo-.* )?{target}( .*)?:", makefile, re.MULTILINE)
        assert f"`make {target}`" in readme
        assert story(name).NAME.replace("-", "_") == name
    assert set(HARMS) == set(STORIES)


@pytest.mark.parametrize("name", STORIES)
def test_figures_come_from_the_seed(name: str) -> None:
    def figures(seed: int) -> dict[str, object]:
        tale = type(story(name))()
        tale.prepare(random.Random(seed))
        return vars(tale)

    assert figures(1) == figures(1)
    if type(story(name)).prepare is not Tale.prepare:
        assert len({str(figures(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("harms", "good", "complete", "as_expected"),
    [
        (True, False, True, True),
        (True, True, True, False),
        (False, True, True, True),
        (False, False, True, False),
        (True, False, False, False),
        (False, True, False, False),
    ],
)
def test_the_expected_result_is_compared_with_the_measured_one(
    harms: bool, good: bool, complete: bool, as_expected: bool
) -> None:
    act = Act("1", "an act", "how", fenced=not harms, resumes_early=False, harms=harms)
    assert Result(act, good, "It is so.", ["1"], complete=complete).as_expected is as_expected


def test_a_demo_that_fails_is_named_in_the_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = play("examples.drawing.no_demo", tmp_path, [])
    assert not entry.as_expected
    assert "✗ no-demo" in capsys.readouterr().out
    assert "did not come out as it should" in index("All", "It begins.", [entry])


@pytest.mark.thorough
def test_the_index_fits_on_all_widths(tmp_path: Path) -> None:
    require_browser()
    entries = [
        Entry("A title &amp; more", "a.html", ["x" * 300, "It went wrong. " * 20], ["All is well."], True),
        Entry("Another", "b.html", [], ["<script>alert(1)</script>"], False),
    ]
    page = index("All stories", "They begin.", entries)
    assert "<script>" not in page
    assert "A title &amp; more" in page
    assert ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>")).tag == "html"
    rendered = render(page.replace("smallest, problems", "smallest: 0, problems"), tmp_path)
    assert (rendered.problems, rendered.console) == ([], [])

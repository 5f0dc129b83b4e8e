"""The demo, run as a user would run it, and the drawing of timelines."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.drawing.events import Event, Lane
from examples.drawing.terminal import Look, draw
from examples.gc_pause.director import Outcome
from examples.gc_pause.story import STORY
from examples.servers import PostgresServer, RedisServer
from tests.support import wait_until
from tests.support.browser import browser, render
from tests.support.demos import ROOT, Environment, Run, run_demo

DEMO = "examples.gc_pause"


@pytest.mark.thorough
def test_the_three_acts(any_redis: RedisServer, postgres_server: PostgresServer, tmp_path: Path) -> None:
    # The fixtures only say that there are servers: it starts its own.
    run = run_demo(DEMO, tmp_path, "--svg", str(tmp_path))
    assert run.status == 0, run.output
    assert run.seconds < 240
    assert run.environment.processes() == []

    measured = [event for event in run.events if event["kind"] == "measured"]
    assert [(event["act"], event["data"]["final"], event["data"]["lost"]) for event in measured] == [
        ("1", 110, 5),
        ("2", 105, 10),
        ("3a", 115, 0),
        ("3b", 115, 0),
    ]
    assert "110 instead of 115: B's deposit was accepted, then overwritten by A." in run.output
    assert "105 instead of 115: A's deposit was accepted, then overwritten by B." in run.output
    assert run.output.count("115, and nothing is lost: the database refused the late write.") == 2
    assert run.output.count("REFUSED: B #2 claimed") == 2
    assert run.output.count("PAUSED (SIGSTOP)") == 4
    assert "\x1b" not in run.output  # not a terminal

    for act in ("1", "2", "3a", "3b"):  # in each of them the fencing numbers grew
        numbers = [
            event["data"]["number"] for event in run.events if (event["act"], event["kind"]) == (act, "acquired")
        ]
        assert numbers == sorted(set(numbers))
        assert len(numbers) >= 2

    assert run.output.endswith(f"\nPictures, for a browser: {run.drawn}\n")
    check_page(run, tmp_path)
    for act in ("1", "2", "3a", "3b"):
        assert (
            ElementTree.parse(tmp_path / f"act-{act}.svg").getroot().findtext("{*}title", "").startswith(f"Act {act}: ")
        )


def check_page(run: Run, directory: Path) -> None:
    """The pictures: from the recorded events and nothing else, and legible."""
    events = [Event(**{key: value for key, value in event.items() if key != "wall"}) for event in run.events]
    drawn = run.drawn.read_text(encoding="utf-8")
    assert drawn == STORY.report(" ".join(STORY.introduction(1.5)), events)
    root = ElementTree.fromstring(drawn.removeprefix("<!DOCTYPE html>"))
    pictures = [
        picture for picture in root.iter("{http://www.w3.org/2000/svg}svg") if picture.get("class") == "timeline"
    ]
    assert len(pictures) == 4
    refused_and_lost = [
        (
            [arrow.get("data-target") for arrow in picture.iter() if arrow.get("class") == "arrow tone-bad"],
            ["".join(flag.itertext()) for flag in picture.iter() if flag.get("class") == "flag"],
        )
        for picture in pictures
    ]
    assert refused_and_lost == [
        ([], ["LOST UPDATE: 5"]),
        ([], ["LOST UPDATE: 10"]),
        (["row"], []),
        (["row"], []),
    ]
    labels = ["".join(label.itertext()) for label in pictures[3].iter() if label.get("class") == "label"]
    assert labels == ["#1", "#1", "#2", "#2", "#1", "#2", "#3", "#3", "#3"]  # granted, claimed; refused; written
    if browser() is not None:
        rendered = render(drawn, directory)
        assert (rendered.problems, rendered.console) == ([], [])
        assert min(rendered.smallest.values()) > 8


@pytest.mark.thorough
def test_nothing_is_left_on_servers_of_others(
    any_redis: RedisServer, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    def databases() -> set[object]:
        with postgres_server.connect() as connection:
            return {row[0] for row in connection.execute("SELECT datname FROM pg_database")}

    before = databases()
    servers = {"FENCING_TEST_REDIS_URL": any_redis.url, "FENCING_TEST_POSTGRES_URL": postgres_server.dsn}
    run = run_demo(DEMO, tmp_path, "--act", "3", "--ttl", "0.6", **servers, PYTHONIOENCODING="ascii")
    assert run.status == 0, run.output
    assert run.output.isascii()
    assert databases() == before
    with any_redis.client() as client:
        left: list[bytes] = list(client.scan_iter())
    assert [key for key in left if not key.endswith(b":counter")] == []
    assert len(left) == 1


@pytest.mark.thorough
def test_interrupted_while_a_worker_is_paused(any_redis: RedisServer, postgres_server: PostgresServer) -> None:
    environment = Environment()
    with subprocess.Popen(
        [sys.executable, "-m", DEMO, "--ttl", "30"],
        cwd=ROOT,
        env=environment.variables,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    ) as demo:
        assert demo.stdout is not None
        assert any("SIGSTOP to process" in line for line in demo.stdout)
        assert len(environment.processes()) >= 3
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=300)
    assert demo.returncode == 130
    wait_until(lambda: environment.processes() == [])


@pytest.mark.parametrize(
    ("key", "acknowledged", "refused", "final", "as_expected"),
    [
        ("1", {"A": 10, "B": 5}, [], 110, True),
        ("1", {"A": 10, "B": 5}, [], 115, False),  # nothing was lost
        ("2", {"A": 10, "B": 5}, ["stale"], 115, False),
        ("3b", {"A": 10, "B": 5}, ["stale"], 115, True),
        ("3b", {"A": 10, "B": 5}, [], 115, False),  # nothing was refused
        ("3b", {"A": 10, "B": 5}, ["stale"], 110, False),
        ("3b", {"B": 5}, ["stale"], 105, False),  # A has given up
    ],
)
def test_the_expected_result_is_compared_with_the_measured_one(
    key: str, acknowledged: dict[str, int], refused: list[str], final: int, as_expected: bool
) -> None:
    act = next(act for act in STORY.ACTS if act.key == key)
    assert Outcome(act, acknowledged, refused, final).as_expected is as_expected


def test_the_drawing_goes_to_a_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    paths = [STORY.write_report(None, "", []) for _ in range(2)]
    assert len(set(paths)) == 2
    for path in paths:
        assert path.name == "gc-pause.html"
        assert path.is_relative_to(tmp_path)
        assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


LANES = [Lane("p", "PROCESS"), Lane("lock", "LOCK"), Lane("row", "ROW")]
EVENTS = [
    Event("lock", "held", "p #1", 10.0, 11.0, "expires", lasting=True),
    Event("p", "acquired", "takes it", 10.0),
    Event("row", "claimed", "claimed", 10.004, because=10.0),
    Event("p", "paused", "PAUSED", 10.5, 12.0, "wakes", lasting=True),
    Event("row", "refused", "REFUSED, somebody else came first", 12.5),
    Event("elsewhere", "noted", "not in these lanes", 12.6),
]


def test_timeline() -> None:
    assert draw(EVENTS, LANES, width=44) == [
        "         PROCESS   LOCK       ROW",
        "─" * 44,
        " 0.000 s takes it  ┃ p #1     claimed",
        "      ·            ┃",
        " 0.500 s ░ PAUSED  ┃",
        "      ·  ░         ┃",
        " 1.000 s ░         ╹ expires",
        "      ·  ░",
        "      ·  ░",
        "      ·  ░",
        " 2.000 s wakes",
        "      ·",
        " 2.500 s                      REFUSED,",
        "                              somebody else",
        "                              came first",
    ]


def test_timeline_for_any_terminal() -> None:
    plain = draw(EVENTS, LANES, width=44, look=Look(unicode=False))
    assert all(line.isascii() for line in plain)
    assert plain[4] == " 0.500 s # PAUSED  |"
    painted = "\n".join(draw(EVENTS, LANES, width=100, look=Look(colour=True)))
    assert "\x1b[1;31mREFUSED, somebody else came first\x1b[0m" in painted
    assert draw([], LANES) == []

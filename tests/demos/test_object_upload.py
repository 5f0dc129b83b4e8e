"""The demo of the object store, run as a user would run it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.drawing.events import Event
from examples.object_upload.director import Outcome
from examples.object_upload.story import STORY
from examples.object_upload.uploads import Seen
from examples.servers import RedisServer, S3Server
from tests.support import wait_until
from tests.support.browser import browser, render
from tests.support.demos import ROOT, Environment, Run, run_demo

DEMO = "examples.object_upload"
SUNDAY, TUESDAY = "10 + 20 = 30", "70 + 80 = 150"


@pytest.mark.thorough
def test_the_acts(any_redis: RedisServer, s3_server: S3Server, tmp_path: Path) -> None:
    run = run_demo(DEMO, tmp_path)  # the fixtures only say that there are servers: it starts its own
    assert run.status == 0, run.output
    assert run.seconds < 240
    assert run.environment.processes() == []

    measured = [event["data"] for event in run.events if event["kind"] == "measured"]
    assert [(act["final"], act["torn"] > 0, act["days"]) for act in measured] == [
        ("70 + 60 ≠ 100", True, [SUNDAY, TUESDAY]),
        ("70 + 60 ≠ 150", True, [SUNDAY, TUESDAY]),
        (TUESDAY, False, [SUNDAY, TUESDAY]),
        (TUESDAY, False, [SUNDAY, TUESDAY]),
    ]
    assert all(act["reads"] >= 15 for act in measured)  # before the pause, in it, after it
    refused = [(event["act"], event["text"]) for event in run.events if event["kind"] == "refused"]
    assert refused == [("3a", "REFUSED: B #2 claimed"), ("3b", "REFUSED: B #2 claimed")]
    assert run.output.count("A is paused: SIGSTOP") == 4
    assert "TORN: #2,#1,#2." in run.output
    assert "\x1b" not in run.output  # not a terminal

    for act in STORY.ACTS:  # in each of them the fencing numbers grew
        granted = [event for event in run.events if (event["act"], event["kind"]) == (act.key, "acquired")]
        numbers = [event["data"]["number"] for event in granted]
        assert len(numbers) == 2
        assert numbers == sorted(set(numbers))
    for act_key, woken_after in (("3a", "wrote"), ("3b", "claimed")):
        events = [event for event in run.events if event["act"] == act_key]
        [pause] = [event for event in events if event["kind"] == "paused"]
        last = max(event["start"] for event in events if event["kind"] == woken_after)
        [published] = [event["start"] for event in events if event["kind"] == "wrote"]
        assert last < pause["end"]
        assert (published < pause["end"]) == (act_key == "3a")

    assert run.output.endswith(f"\nPictures, for a browser: {run.drawn}\n")
    check_page(run, tmp_path)


def check_page(run: Run, directory: Path) -> None:
    """The pictures: from the recorded events and nothing else, and legible."""
    events = [Event(**{key: value for key, value in event.items() if key != "wall"}) for event in run.events]
    drawn = run.drawn.read_text(encoding="utf-8")
    assert drawn == STORY.report(" ".join(STORY.introduction(1.5)), events)
    root = ElementTree.fromstring(drawn.removeprefix("<!DOCTYPE html>"))
    pictures = [
        picture for picture in root.iter("{http://www.w3.org/2000/svg}svg") if picture.get("class") == "timeline"
    ]
    shown = [
        (
            sum(element.get("class") == "cross" for element in picture.iter()),
            ["".join(flag.itertext()) for flag in picture.iter() if flag.get("class") == "flag"],
        )
        for picture in pictures
    ]
    assert shown == [
        (0, ["TORN", "TORN", "TORN", "TORN"]),
        (0, ["TORN: #1,0,0", "TORN", "TORN: #2,#1,#2", "TORN"]),
        (1, []),
        (1, []),
    ]
    if browser() is not None:
        rendered = render(drawn, directory)
        assert (rendered.problems, rendered.console) == ([], [])
        assert min(rendered.smallest.values()) > 8


@pytest.mark.thorough
def test_nothing_is_left_on_a_redis_of_others(any_redis: RedisServer, s3_server: S3Server, tmp_path: Path) -> None:
    more = {"FENCING_TEST_REDIS_URL": any_redis.url, "PYTHONIOENCODING": "ascii"}
    run = run_demo(DEMO, tmp_path, "--act", "3", "--ttl", "0.6", **more)
    assert run.status == 0, run.output
    assert run.output.isascii()
    with any_redis.client() as client:
        left: list[bytes] = list(client.scan_iter())
    assert [key for key in left if not key.endswith(b":counter")] == []
    assert len(left) == 1


@pytest.mark.thorough
def test_interrupted_while_a_worker_is_paused(any_redis: RedisServer, s3_server: S3Server) -> None:
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
        assert len(environment.processes()) >= 5
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=300)
    assert demo.returncode == 130
    wait_until(lambda: environment.processes() == [])


WHOLE, TORN = Seen(70, 80, 150), Seen(70, 60, 100)
DAYS = [SUNDAY, TUESDAY]


@pytest.mark.parametrize(
    ("key", "acknowledged", "refused", "torn", "days", "final", "as_expected"),
    [
        ("1", ["B", "A"], [], 9, DAYS, TORN, True),
        ("1", ["B", "A"], [], 0, DAYS, TORN, False),  # nobody noticed
        ("1", ["B", "A"], [], 9, DAYS, WHOLE, False),
        ("2", ["B"], ["stale"], 9, DAYS, TORN, False),
        ("2", [], [], 9, DAYS, TORN, False),  # B has given up
        ("3a", ["B"], ["stale"], 0, DAYS, WHOLE, True),
        ("3a", ["B"], [], 0, DAYS, WHOLE, False),  # nothing was refused
        ("3a", ["B", "A"], ["stale"], 0, DAYS, WHOLE, False),
        ("3a", ["B"], ["stale"], 1, DAYS, WHOLE, False),
        ("3a", ["B"], ["stale"], 0, [*DAYS, "40 + 60 = 100"], WHOLE, False),  # Monday's were current once
        ("3a", ["B"], ["stale"], 0, DAYS[:1], WHOLE, False),
        ("3a", ["B"], ["stale"], 0, DAYS, Seen(40, 60, 100), False),
    ],
)
def test_the_expected_result_is_compared_with_the_measured_one(
    key: str, acknowledged: list[str], refused: list[str], torn: int, days: list[str], final: Seen, as_expected: bool
) -> None:
    act = next(act for act in STORY.ACTS if act.key == key)
    assert Outcome(act, acknowledged, refused, 20, torn, days, final).as_expected is as_expected

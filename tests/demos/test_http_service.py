"""The demo of the HTTP service, run as a user would run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.servers import RedisServer
from tests.support.browser import browser, render
from tests.support.demos import run_demo

DEMO = "examples.http_service"


@pytest.mark.thorough
def test_the_acts(any_redis: RedisServer, tmp_path: Path) -> None:
    run = run_demo(DEMO, tmp_path, "--ttl", "0.8")  # the fixture only says that there is a Redis: it starts its own
    assert run.status == 0, run.output
    assert run.seconds < 240
    assert run.environment.processes() == []
    measured = [event["data"] for event in run.events if event["kind"] == "measured"]
    assert [(act["expected"], act["final"], act["loser"]) for act in measured] == [(115, 110, "B"), (115, 115, None)]
    refused = [(event["act"], event["text"]) for event in run.events if event["kind"] == "refused"]
    assert refused == [("2", "REFUSED: B #2 claimed")]

    for act in ("1", "2"):  # the eight steps, in both
        events = [event for event in run.events if event["act"] == act]
        [pause] = [event for event in events if event["kind"] == "paused"]
        passed = [event for event in events if event["kind"] == "passed"]
        assert passed[0]["start"] < pause["start"], "A had passed before it was paused"
        of_b = [event["kind"] for event in events if event["lane"] == "B" and pause["start"] < event["start"]]
        assert of_b[:4] == ["acquired", "read", "sending", "wrote"]
        [b_wrote] = [event for event in events if (event["lane"], event["kind"]) == ("B", "wrote")]
        assert b_wrote["start"] < pause["end"]
    drawn = run.drawn.read_text("utf-8")
    assert "A late write to a service" in drawn
    if browser() is not None:
        rendered = render(drawn, tmp_path)
        assert (rendered.problems, rendered.console) == ([], [])
    assert run.output.endswith(f"\nPictures, for a browser: {run.drawn}\n")

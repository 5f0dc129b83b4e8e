"""The demo of a failover, run as a user would run it, and its page."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.drawing.events import Event
from examples.failover.story import STORY
from examples.servers import PostgresServer, RedisServer
from tests.support.browser import browser, render
from tests.support.demos import run_demo

SVG = "{http://www.w3.org/2000/svg}svg"


@pytest.mark.thorough
def test_the_two_acts(any_redis: RedisServer, postgres_server: PostgresServer, tmp_path: Path) -> None:
    # The fixtures only say that there are servers: it starts its own.
    run = run_demo("examples.failover", tmp_path)
    assert run.status == 0, run.output
    assert run.environment.processes() == []
    measured = [event for event in run.events if event["kind"] == "measured"]
    assert [(event["act"], event["data"]["final"], event["data"]["lost"]) for event in measured] == [
        ("1", 110, 5),
        ("2", 115, 0),
    ]
    assert "110 instead of 115: B's deposit was accepted, then overwritten by A." in run.output
    assert [event["text"] for event in run.events if event["kind"] == "refused"] == ["REFUSED: B #2 claimed"]
    for act in ("1", "2"):
        [down] = [event for event in run.events if (event["act"], event["kind"]) == (act, "down")]
        first, second = [event for event in run.events if (event["act"], event["kind"]) == (act, "acquired")][:2]
        assert (first["lane"], second["lane"]) == ("A", "B")
        assert second["data"]["number"] > first["data"]["number"], "the clock of the new primary is a floor"
        assert first["start"] < down["start"] < down["end"] < second["start"] < first["start"] + 15, "A's ttl is 20 s"

    recorded = [Event(**{key: value for key, value in event.items() if key != "wall"}) for event in run.events]
    drawn = run.drawn.read_text(encoding="utf-8")
    assert drawn == STORY.report(" ".join(STORY.introduction(1.5)), recorded)
    root = ElementTree.fromstring(drawn.removeprefix("<!DOCTYPE html>"))
    pictures = [picture for picture in root.iter(SVG) if picture.get("class") == "timeline"]
    assert len(pictures) == 2
    texts = ["".join(picture.itertext()) for picture in pictures]
    assert all("NO PRIMARY" in text and "a replica takes over" in text for text in texts)
    assert ["LOST UPDATE: 5" in text for text in texts] == [True, False]
    if browser() is not None:
        rendered = render(drawn, tmp_path)
        assert (rendered.problems, rendered.console) == ([], [])
        assert min(rendered.smallest.values()) > 8

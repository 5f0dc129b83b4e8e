"""docs/internals/architecture.md names paths, and names in them, that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "internals" / "architecture.md").read_text("utf-8")
ANSWERS = re.findall(r"(?m)^\| [^|]+\? \| (.+) \|$", PAGE)


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_leads_to_code(answer: str) -> None:
    path, *names = re.findall(r"`([^`]+)`", answer)
    text = (ROOT / path).read_text("utf-8")
    for name in names:
        assert re.search(rf"\b(def|class|function) {name}\b|(?m:^{name}\b.*=)", text), f"{path} defines no {name}"


def test_there_are_twenty_questions_and_more() -> None:
    assert len(ANSWERS) >= 20


def test_the_rooms_are_there() -> None:
    rooms = re.findall(r"(?m)^\| ((?:`[a-z_/.]+`(?:, )?)+) \| ", PAGE.partition("## Sync and async")[0])
    assert len(rooms) >= 8
    for path in re.findall(r"`([^`]+)`", " ".join(rooms)):
        assert (ROOT / path).exists(), path

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


ROOMS = [
    path.relative_to(ROOT).as_posix()
    for package in ("fencing", "storage_guards")
    for path in sorted((ROOT / package).iterdir())
    if path.is_dir() and (path / "__init__.py").is_file()
]


@pytest.mark.parametrize("room", ROOMS)
def test_the_drawing_and_the_table_of_folders_show_each_room(room: str) -> None:
    drawing, _, rest = PAGE.partition("## Folders and walls")[2].partition("| folder |")
    assert re.search(rf"{room}\b", drawing), "the drawing"
    assert f"`{room}`" in rest.partition("## Sync and async")[0], "the table"


ONE_SIDED = ("/testing", "/kernel", "guards/sql", "/cli", "/contrib")


@pytest.mark.parametrize("room", [room for room in ROOMS if not room.endswith(ONE_SIDED)])
def test_the_table_of_sync_and_async_shows_each_room_that_has_both(room: str) -> None:
    table = PAGE.partition("## Sync and async")[2].partition("## Where to find what")[0]
    assert f"`{room}`" in table


def test_each_folder_of_tests_is_in_the_table_of_contributing() -> None:
    folders = {
        f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"
    }
    table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| folder | contents |")[2].partition("\n\n")[0]
    assert folders == set(re.findall(r"`(tests/\w+)`", table))

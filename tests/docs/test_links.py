"""Each link of the README, the docs and the other pages leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "examples" / "README.md"]


def without_code(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", page.read_text("utf-8"))


def links(page: Path) -> list[str]:
    text = without_code(page)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:href|src|srcset)="([^"]+)"', text)
    return [link for link in found if not link.startswith(("https://", "http://"))]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"(?m)^#+ (.+)$", without_code(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{page.name} links to {link}: no such file"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


def test_each_page_is_reached_from_the_reading_order() -> None:
    start = ROOT / "docs" / "README.md"
    reached = {(start.parent / link.partition("#")[0]).resolve() for link in links(start)}
    missing = [
        str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md")) if page not in reached | {start}
    ]
    assert not missing


@pytest.mark.parametrize("folder", ["fencing", "storage_guards", "examples", "tests"])
def test_each_page_that_code_names_is_there(folder: str) -> None:
    missing = {
        f"{file.relative_to(ROOT)}: {page}"
        for pattern in ("*.py", "*.lua")
        for file in sorted((ROOT / folder).rglob(pattern))
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", file.read_text("utf-8"))
        if not (ROOT / page).exists()
    }
    assert not missing


def test_each_heading_that_the_doctor_names_is_there() -> None:
    named = {
        link
        for file in sorted((ROOT / "fencing" / "cli" / "doctor").rglob("*.py"))
        for link in re.findall(r'"(docs/[^"]+)"', file.read_text("utf-8"))
    }
    assert len(named) > 10
    pages = [link.partition("#") for link in sorted(named)]
    assert not [f"{page}#{anchor}" for page, _, anchor in pages if anchor not in anchors(ROOT / page)]


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Lost replies: `landed`\n\n## MariaDB, MySQL\n```\n# no heading\n```\n")
    assert anchors(page) == {"lost-replies-landed", "mariadb-mysql"}

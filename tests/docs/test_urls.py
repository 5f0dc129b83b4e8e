"""The page of URLs: its example runs, and its URLs are ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fencing

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "urls.md").read_text("utf-8")
URLS = [url for url in re.findall(r"(?m)^\| `([a-z+]+://[^`]+)`", PAGE) if "…" not in url]


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKS_URL", f"sqlite:///{tmp_path}/locks.db")
    [example] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "urls.md", "exec"), {})


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("connect", [fencing.connect, fencing.connect_async])
def test_each_url_of_the_table(connect: object, url: str) -> None:
    assert callable(connect)
    if url.startswith("redis+cluster") and connect is fencing.connect:
        with pytest.raises(fencing.CoordinatorUnavailable):
            connect("redis+cluster://127.0.0.1:1")
    elif url.startswith("etcds"):
        with pytest.raises(ValueError, match=r"ca\.pem"):
            connect(url)
    else:
        connect(url)


def test_they_are_all_there() -> None:
    assert len(URLS) >= 9

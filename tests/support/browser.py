"""How a page comes out in a real browser, where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

_COMMAND = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--window-size=1280,900",
    "--dump-dom",
]

# Pairs of texts that touch, texts that an arrow runs through, texts outside their picture, and the width of the page.
_MEASURE = """
const problems = [];
for (const picture of document.querySelectorAll("svg")) {
  const frame = picture.getBoundingClientRect();
  const boxes = [...picture.querySelectorAll("text")].map(text => ({text, box: text.getBoundingClientRect()}));
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom - 1 <= b.top || b.bottom - 1 <= a.top;
  boxes.forEach(({text, box}, number) => {
    if (box.left < frame.left || box.right > frame.right || box.bottom > frame.bottom)
      problems.push(["outside", text.textContent]);
    for (const other of boxes.slice(number + 1))
      if (!apart(box, other.box)) problems.push(["overlap", text.textContent, other.text.textContent]);
    for (const arrow of picture.querySelectorAll(".arrow"))
      if (!arrow.contains(text) && !apart(box, arrow.querySelector("line").getBoundingClientRect()))
        problems.push(["crossed", text.textContent, arrow.dataset.kind]);
  });
  for (const box of picture.querySelectorAll(".chip, .flag-box, .tag"))
    for (const {text, box: inner} of boxes.filter(({text}) => text.parentNode === box.parentNode))
      if (!apart(inner, box.getBoundingClientRect()) && inner.right > box.getBoundingClientRect().right)
        problems.push(["too long for its box", text.textContent]);
}
if (document.documentElement.scrollWidth > window.innerWidth) problems.push(["the page is too wide"]);
document.title = JSON.stringify({problems, texts: document.querySelectorAll("svg text").length});
"""


class Rendered(NamedTuple):
    texts: int
    """How many texts there are in pictures."""
    problems: list[Any]
    """What covers what, what does not fit."""
    console: list[str]


def browser() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def render(page: str, directory: Path) -> Rendered:
    """The page with a script that measures it, which its policy is told to allow."""
    script = f"<script>{_MEASURE}</script></body>"
    measured = page.replace("style-src", "script-src 'unsafe-inline'; style-src", 1).replace("</body>", script)
    file = directory / "measured.html"
    file.write_text(measured, encoding="utf-8")
    profile = f"--user-data-dir={directory / 'profile'}"
    done = subprocess.run(
        [str(browser()), *_COMMAND, profile, file.as_uri()], capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    title = re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title, done.stdout
    found = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return Rendered(found["texts"], found["problems"], [line for line in done.stderr.splitlines() if "CONSOLE" in line])

"""How a page comes out in a real browser, where there is one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_COMMAND = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
    "--window-size=1280,900",
    "--virtual-time-budget=5000",
    "--dump-dom",
]

WIDTHS = {"wide": 1280, "tablet": 700, "phone": 500, "small phone": 360, "paper": 703, "dark": 1280, "dark phone": 360}
"""Pixels. Paper: A4 without its margins, with the rules for print."""

FAINTEST = 4.5
"""The least contrast of a text with what is behind it, as WCAG 2 demands and measures it (level AA)."""

# In pictures: pairs of texts that touch, texts that an arrow runs through, texts outside. In the page: what is wider
# than the page, what scrolls, whether one of the two pictures of each section is shown. In both: texts that are hard to
# tell from what is behind them, and everything that was asked of a network.
_MEASURE = """
const problems = [];
let texts = 0, smallest = 1000;
const shown = element => element.getClientRects().length > 0;
for (const picture of [...document.querySelectorAll("svg")].filter(shown)) {
  const frame = picture.getBoundingClientRect();
  const boxes = [...picture.querySelectorAll("text")].map(text => ({text, box: text.getBoundingClientRect()}));
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom - 1 <= b.top || b.bottom - 1 <= a.top;
  texts += boxes.length;
  smallest = Math.min(smallest, ...boxes.map(({box}) => box.height));
  boxes.forEach(({text, box}, number) => {
    if (box.left < frame.left || box.right > frame.right || box.bottom > frame.bottom)
      problems.push(["outside", text.textContent]);
    for (const other of boxes.slice(number + 1))
      if (!apart(box, other.box)) problems.push(["overlap", text.textContent, other.text.textContent]);
    for (const bar of picture.querySelectorAll(".bar"))
      if (!apart(box, bar.getBoundingClientRect())) problems.push(["covered by a bar", text.textContent]);
    for (const arrow of picture.querySelectorAll(".arrow"))
      if (!arrow.contains(text) && !apart(box, arrow.querySelector("line").getBoundingClientRect()))
        problems.push(["crossed", text.textContent, arrow.dataset.kind]);
  });
  for (const box of picture.querySelectorAll(".chip, .flag-box, .tag"))
    for (const {text, box: inner} of boxes.filter(({text}) => text.parentNode === box.parentNode))
      if (!apart(inner, box.getBoundingClientRect()) && inner.right > box.getBoundingClientRect().right)
        problems.push(["too long for its box", text.textContent]);
}
for (const element of document.querySelectorAll("body *")) {
  if (element.getBoundingClientRect().right > window.innerWidth)
    problems.push(["wider than the page", element.tagName, element.textContent.slice(0, 40)]);
  if (element.scrollWidth > element.clientWidth && getComputedStyle(element).overflowX != "visible")
    problems.push(["scrolls", element.tagName]);
}
for (const section of document.querySelectorAll("section"))
  if ([...section.querySelectorAll("svg")].filter(shown).length != 1) problems.push(["not one picture", section.id]);
const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
const light = colour => numbers(colour).slice(0, 3).map(part => part / 255)
  .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
const opaque = colour => colour.startsWith("rgb") && numbers(colour)[3] !== 0;
const behind = element => {
  const box = element.tagName == "text"
    && element.parentNode.querySelector(":scope > .chip, :scope > .flag-box, :scope > .tag");
  if (box) return getComputedStyle(box).fill;
  const ground = getComputedStyle(element).backgroundColor;
  return opaque(ground) || !element.parentElement ? ground : behind(element.parentElement);
};
const own = element => [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
for (const element of [...document.querySelectorAll("body *:not(script, title, desc)")].filter(own).filter(shown)) {
  const style = getComputedStyle(element);
  const ink = element.tagName == "text" ? style.fill : style.color;
  const [dim, bright] = [light(ink), light(behind(element))].sort((a, b) => a - b);
  const contrast = (bright + 0.05) / (dim + 0.05);
  if (contrast < FAINTEST) problems.push(["faint", element.textContent, contrast]);
}
for (const request of performance.getEntriesByType("resource")) problems.push(["request", request.name]);
parent.postMessage([NAME, {texts, smallest, problems}], "*");
"""

_DARK = "(prefers-color-scheme: dark)"

_COLLECT = """
const found = {};
onmessage = message => {
  found[message.data[0]] = message.data[1];
  document.title = JSON.stringify(found);
};
"""


class Rendered(NamedTuple):
    texts: dict[str, int]
    """By name of a width: how many texts there are in the pictures that are shown."""
    smallest: dict[str, float]
    """Pixels: the lowest of these texts."""
    problems: list[Any]
    """Texts that cover others, elements that do not fit; each with the name of the width."""
    console: list[str]


def browser() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def require_browser() -> None:
    """Skip the test where there is no browser, or fail it when one was required."""
    if browser() is None:
        if "chromium" in os.environ.get("FENCING_REQUIRE_SERVERS", "").split(","):
            pytest.fail("chromium is required, and not on PATH", pytrace=False)
        pytest.skip("chromium: not on PATH")


def render(page: str, directory: Path) -> Rendered:
    """Show the page in frames of all widths, with a script that measures it and that its policy is told to allow."""
    frames = []
    for number, (name, width) in enumerate(WIDTHS.items()):
        script = (
            f"<script>{_MEASURE.replace('NAME', json.dumps(name)).replace('FAINTEST', str(FAINTEST))}</script></body>"
        )
        measured = page.replace("style-src", "script-src 'unsafe-inline'; style-src", 1).replace("</body>", script)
        if name == "paper":
            measured = measured.replace("@media screen", "@media speech").replace("@media print", "@media all")
        if name.startswith("dark"):
            assert measured.count(_DARK) == 1
            measured = measured.replace(_DARK, "(min-width: 0)")
        (directory / f"{number}.html").write_text(measured, encoding="utf-8")
        frames.append(f'<iframe src="{number}.html" width="{width}" height="900"></iframe>')
    file = directory / "frames.html"
    head = f'<!DOCTYPE html><meta charset="utf-8"><title></title><script>{_COLLECT}</script>'
    file.write_text(head + "".join(frames), encoding="utf-8")
    profile = f"--user-data-dir={directory / 'profile'}"
    done = subprocess.run(
        [str(browser()), *_COMMAND, profile, file.as_uri()], capture_output=True, encoding="utf-8", timeout=300
    )
    assert done.returncode == 0, done.stderr
    title = re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title, done.stdout
    found = json.loads(title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert set(found) == set(WIDTHS), found
    return Rendered(
        {name: one["texts"] for name, one in found.items()},
        {name: one["smallest"] for name, one in found.items()},
        [[name, *problem] for name, one in found.items() for problem in one["problems"]],
        [line for line in done.stderr.splitlines() if "CONSOLE" in line],
    )

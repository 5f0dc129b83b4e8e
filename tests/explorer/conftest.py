"""The end of a run says what was explored: how many states, what was found, and what only ``make explore`` visits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from tests.explorer import clients
from tests.explorer.scenarios import LARGE, explored

_PROPERTY = "explored"


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[object], None]:
    """Return a function that adds a line to the end of the run, from any process."""
    return lambda line: record_property(_PROPERTY, str(line))


@pytest.fixture(scope="module", autouse=True)
def _forget_explored() -> Iterator[None]:
    """Free what was explored: its errors hold thousands of frames, and so each collection takes a second."""
    gc.disable()  # so none is made while they are needed
    yield
    gc.enable()
    explored.cache_clear()
    clients.forget()
    gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in report.user_properties
        if name == _PROPERTY and report.when == "call"
    ]
    if lines:
        terminalreporter.section("explored")
        for line in sorted(lines):
            terminalreporter.write_line(str(line))
        terminalreporter.write_line(f"`make explore` visits more: {'; '.join(LARGE)}.")

"""What was explored is said at the end of the run: how many states, and that there was nothing in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_LINES: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[object], None]:
    """Keeps a line for the end of the run."""
    lines = request.config.stash.setdefault(_LINES, [])
    return lambda line: lines.append(str(line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("explored")
        for line in lines:
            terminalreporter.write_line(line)

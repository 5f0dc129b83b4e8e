"""The command line, as a process, or in this one where that is enough: a process costs a fifth of a second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from fencing.cli.app import run

LIMIT = 90.0
"""Seconds for a command that should be done at once."""


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without the services that it may name, and with these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FENCING_")}
    return {**kept, **variables}


def fencing(*arguments: str, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        arguments: of the command ``fencing``.
        given: its standard input.
        variables: of its environment; no others name services.
    """
    return subprocess.run(
        [sys.executable, "-m", "fencing", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        env=environment(**variables),
    )


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in this process, like ``fencing``."""

    def run_here(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            for name in os.environ:
                if name not in environment():
                    patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            capfd.readouterr()
            returned = run(list(arguments))
        said = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, returned, said.out, said.err)

    return run_here

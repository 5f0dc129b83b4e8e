"""The command line, as a process, or in this one where that is enough: a process costs a fifth of a second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest
from sqlalchemy import create_engine

from fencing.cli.app import run
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[2]
END = pexpect.EOF
"""What a terminal is expected to come to at its end."""

COMMAND = [sys.executable, "-m", "fencing"]


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which no variable names a service, but for those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FENCING_")}
    return kept | {"PYTHONPATH": str(ROOT)} | more


@contextmanager
def guard_on(url: str) -> Iterator[SQLAlchemyGuard]:
    """A guard of the test's own, on a database."""
    engine = create_engine(url)
    yield SQLAlchemyGuard(engine)
    engine.dispose()


def fencing(*arguments: object, stdin: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal."""
    given: dict[str, Any] = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=environment(**variables),
        text=True,
        capture_output=True,
        timeout=120,
        **given,
    )


def in_terminal(*arguments: object, **variables: str) -> Any:
    """Start a command in a pseudo-terminal of 80 columns."""
    command, *more = [*COMMAND, *map(str, arguments)]
    env = environment(**{"TERM": "xterm"} | variables)
    return pexpect.spawn(command, more, env=env, dimensions=(24, 80), encoding="utf-8", timeout=60)


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in this process, like ``fencing``."""

    def run_here(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                if name.startswith("FENCING_"):
                    patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            capfd.readouterr()
            returned = run(list(arguments))
        said = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, returned, said.out, said.err)

    return run_here

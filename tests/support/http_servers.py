"""HTTP services in processes of their own, for tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import create_engine, text

from fencing import Mark
from storage_guards import SQLAlchemyGuard

ROOT = Path(__file__).resolve().parents[2]


class Service:
    """A running guarded service, and its SQLite file."""

    def __init__(self, kind: str, path: Path, process: subprocess.Popen[str], port: int) -> None:
        self.kind = kind
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.claims_url = f"{self.url}/fencing/claims"
        self.port = port
        self.engine = create_engine(f"sqlite:///{path}")
        self.guard = SQLAlchemyGuard(self.engine)

    def line(self) -> str:
        """Wait for the next line that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def value(self, name: str) -> int:
        """Return the committed number of that name."""
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT value FROM data WHERE name = :n"), {"n": name}).scalar() or 0)

    def put(self, name: str, value: int) -> None:
        """Store a number past the guard."""
        with self.engine.begin() as connection:
            statement = text("INSERT INTO data VALUES (:n, :v) ON CONFLICT (name) DO UPDATE SET value = :v")
            connection.execute(statement, {"n": name, "v": value})

    def mark(self, name: str) -> Mark | None:
        """Return the mark, with its token."""
        return self.guard.mark(name)


@contextmanager
def running_python(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a service in a process that ends with its standard input; its first line is its port."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def running(kind: str, path: Path) -> Iterator[Service]:
    """Run ``tests.support.http_service`` with a server of this kind."""
    with running_python(["-m", "tests.support.http_service", kind, str(path)]) as (process, port):
        service = Service(kind, path, process, port)
        try:
            yield service
        finally:
            service.engine.dispose()


class RawAnswer(NamedTuple):
    """An answer as it came: its status, and all of its text."""

    status: int
    text: str
    json: Any

"""A folder with a program of a page, and the processes that run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the code of a recipe, block by block."""
    text = (ROOT / "docs" / "recipes" / f"{page}.md").read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Programs:
    """Starts processes in a folder, and ends them with the stack. What each says goes to a file."""

    def __init__(self, stack: ExitStack, folder: Path, **environment: str) -> None:
        self.stack, self.folder = stack, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FENCING_")}
        self.environment = {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTHONUNBUFFERED": "1", **environment}
        self.logs: list[Path] = []

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    def start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"log-{len(self.logs)}"
        self.logs.append(log)
        process = subprocess.Popen(
            command,
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=self.stack.enter_context(log.open("wb")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.stack.callback(self.end, process)
        return process

    @staticmethod
    def end(process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def run(self, *command: str, **environment: str) -> str:
        """Run a program that must succeed, and return what it said."""
        status = self.start(*command, **environment).wait(120)
        said = self.said(-1)
        assert status == 0, said
        return said

    def said(self, log: int | None = None) -> str:
        """Return what the processes have said so far, or one of them."""
        logs = self.logs if log is None else [self.logs[log]]
        return "\n".join(each.read_text("utf-8", errors="replace") for each in logs)

    def wait_for(self, pattern: str, count: int = 1, *, log: int | None = None) -> None:
        """Wait until the processes have said it so often."""
        wait_until(lambda: len(re.findall(pattern, self.said(log))) >= count, interval=0.02)

    def touch(self, name: str) -> None:
        """Make a file that a process waits for."""
        (self.folder / name).touch()

    def made(self, pattern: str) -> int:
        """Return how many files there are that processes have made."""
        return len(list(self.folder.glob(pattern)))

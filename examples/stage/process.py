"""A worker process, as the director sees it: commands in, reports out, signals that pause and resume it."""

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from examples.servers import freeze

PATIENCE = 20.0
"""Seconds after which the demo gives up on a worker that does not report."""


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


class WorkerProcess:
    """A real process: ``python -m MODULE NAME ARGUMENTS``. Each report has a kind; one that failed reports `failed`."""

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self._reports: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            # Ctrl-C reaches the director alone. But in its session: if the director dies while the worker is stopped,
            # the kernel sends SIGHUP and SIGCONT to the worker's group.
            process_group=0,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._reports.put(json.loads(line))
        self._reports.put(None)

    def send(self, **command: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoError(f"worker {self.name} has ended (exit status {self._process.wait(5)})") from None

    def report(self, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Return the next report; call `meanwhile` every tenth of a second until it comes."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                report = self._reports.get(timeout=0.1)
            except queue.Empty:
                if time.monotonic() > deadline:
                    raise DemoError(f"worker {self.name} has reported nothing for {PATIENCE:.0f} s") from None
                meanwhile()
                continue
            if report is None:
                raise DemoError(f"worker {self.name} has ended (exit status {self._process.wait(5)})")
            if report["kind"] == "failed":
                raise DemoError(f"worker {self.name} failed: {report['error']}\n{report['trace']}")
            return report

    def freeze(self) -> None:
        """Send SIGSTOP, and return when no thread of the process runs any more."""
        freeze(self._process)

    def thaw(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, paused or not."""
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # a command it has not read

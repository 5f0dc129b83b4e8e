"""The processes that a run has started: stopped, killed, started again, and ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from examples.servers import freeze
from tests.torture.history import Event, merge, read_lines
from tests.torture.term import LED

__all__ = ["Process", "Processes"]

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60.0
REST_SECONDS = 60.0
LEAVE_SECONDS = 30.0
TERM_SECONDS = 20.0
"""Of which the library takes 7 at most: docs/operations/ending.md."""
DUMP_SECONDS = 1.0


class Process:
    """A worker."""

    def __init__(self, number: int, setup: dict[str, Any], folder: Path) -> None:
        self.number = number
        self.log = folder / f"{number}.jsonl"
        self._errors = folder / f"{number}.stderr"
        given = json.dumps({**setup, "process": number, "log": str(self.log)})
        with self._errors.open("wb") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.worker", given],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                text=True,
            )
        self._said = {"ready": threading.Event(), "rested": threading.Event()}
        self.led: dict[str, float] = {}
        """When it wrote last as the leader of an election."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.stopped_at: float | None = None

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if (event := self._said.get(line.strip())) is not None:
                event.set()
            elif line.startswith(LED):
                self.led[line.removeprefix(LED).strip()] = time.monotonic()

    def is_ready(self) -> bool:
        return self._said["ready"].is_set()

    def says(self, word: str, seconds: float) -> bool:
        """Whether it has written the word within so many seconds. False at once where it has ended."""
        deadline = time.monotonic() + seconds
        while not self._said[word].wait(0.05):
            if self.popen.poll() is not None or time.monotonic() > deadline:
                return self._said[word].is_set()
        return True

    def send(self, line: str) -> None:
        assert self.popen.stdin is not None
        try:
            self.popen.stdin.write(line + "\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which is noticed elsewhere

    def ends(self, seconds: float) -> bool:
        try:
            return self.popen.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False

    def why(self) -> str:
        """Return what it was doing, for people."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGUSR2)
            time.sleep(DUMP_SECONDS)
        return f"ended with {self.popen.poll()}\n{self._errors.read_text('utf-8', 'replace')[-6000:]}"

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self._reader.join()
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


class Processes:
    """All workers, those that were killed included, and the events that they did not see themselves."""

    def __init__(self, setup: dict[str, Any], folder: Path, count: int) -> None:
        self._setup, self._folder = setup, folder
        self._all: list[Process] = []
        self.events: list[Event] = []
        self.alive = [self._start(slot) for slot in range(count)]

    def _start(self, slot: int) -> Process:
        # Every other one has tasks, so that what a seed does with a slot stays what it is.
        mode = "threads" if slot % 2 == 0 or self._setup["with"] else "tasks"
        process = Process(len(self._all) + 1, {**self._setup, "mode": mode}, self._folder)
        self._all.append(process)
        return process

    def are_ready(self) -> bool:
        return all(process.says("ready", READY_SECONDS) for process in self.alive)

    def stop(self, slot: int) -> None:
        process = self.alive[slot]
        if process.stopped_at is None and process.popen.poll() is None:
            process.stopped_at = time.monotonic()
            freeze(process.popen)

    def resume(self, process: Process) -> None:
        if process.stopped_at is not None:
            process.popen.send_signal(signal.SIGCONT)
            self._note_stop(process)

    def _note_stop(self, process: Process) -> None:
        if process.stopped_at is not None:
            now = time.monotonic()
            self.events.append(Event("stopped", process.stopped_at, now, process=process.number))
            process.stopped_at = None

    def restart(self, slot: int) -> None:
        """SIGKILL, and another one in its place."""
        process = self.alive[slot]
        process.kill()
        self._note_stop(process)
        self.alive[slot] = self._start(slot)

    def terminate(self, slot: int) -> Process:
        """SIGTERM, and another one in its place. Return the one that ends."""
        process = self.alive[slot]
        self.resume(process)
        process.popen.terminate()
        self.alive[slot] = self._start(slot)
        return process

    def wait_until_ended(self, process: Process) -> None:
        """Note it where a process goes on after SIGTERM."""
        try:
            process.popen.wait(TERM_SECONDS)
        except subprocess.TimeoutExpired:
            self._hung(process, "it does not end after SIGTERM")

    def led(self, counter: str) -> float:
        """Return when a leader wrote last."""
        return max(process.led.get(counter, 0.0) for process in self._all)

    def interrupt(self, slot: int) -> None:
        process = self.alive[slot]
        if process.is_ready() and process.popen.poll() is None:
            process.popen.send_signal(signal.SIGUSR1)

    def rest(self) -> None:
        """Have all of them end what they have begun."""
        for process in self.alive:
            self.resume(process)
            process.says("ready", READY_SECONDS)
            process.send("rest")
        deadline = time.monotonic() + REST_SECONDS
        for process in self.alive:
            if not process.says("rested", max(0.0, deadline - time.monotonic())):
                self._hung(process, "it does not rest")

    def leave(self) -> None:
        """Have all of them end."""
        for process in self.alive:
            process.send("leave")
        for process in self.alive:
            if not process.ends(LEAVE_SECONDS):
                self._hung(process, "it does not end")

    def _hung(self, process: Process, text: str) -> None:
        self.events.append(Event("hung", time.monotonic(), process=process.number, text=f"{text}: {process.why()}"))

    def close(self) -> None:
        for process in self._all:
            process.kill()

    def history(self) -> list[Event]:
        """Return what all of them have noted."""
        return [
            *self.events,
            *(event for process in self._all if process.log.exists() for event in merge(read_lines(process.log))),
        ]

"""Measurements in processes of their own: pinned from the start, with or without hiredis, and of bounded time.

The server, the threads and the processes that a child starts inherit its processors. So client and server are pinned
together.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.benchmarks.duel import serve

_MARK = "result of the measurement: "
_ROOT = Path(__file__).parents[2]


class ChildFailed(RuntimeError):
    """A measurement without a result: it raised, died, or took too long and was killed."""


class Child:
    """A process that calls ``function`` ("module.name" of this package) with ``arguments``. All of it is JSON.

    Its answer is the result. If that is a context manager, it has contenders, and takes orders: see ``duel.serve``.

    Args:
        function: the function.
        seconds: the time after which it is killed, with its own children.
        code: the folder of the library's packages; None: those of this checkout.
        one_core: on one processor (the last one); else on all.
        hiredis: whether redis-py finds hiredis.
        arguments: those of the function.
    """

    def __init__(
        self,
        function: str,
        *,
        seconds: float,
        code: Path | None = None,
        one_core: bool = True,
        hiredis: bool = True,
        **arguments: Any,
    ) -> None:
        self._seconds, self._is_late = seconds, False
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe that nobody reads fills up
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
        if code is not None:  # the folder in which Python starts comes first
            pipes |= {"cwd": code, "env": {**os.environ, "PYTHONPATH": f"{code}{os.pathsep}{_ROOT}"}}
        command = [sys.executable, "-m", "tests.benchmarks.children"]
        # A session of its own, so that it can be killed with its children.
        self._process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
        self._timer = threading.Timer(seconds, self._end)
        self._timer.start()
        self.ask({"function": function, "one_core": one_core, "hiredis": hiredis, "arguments": arguments})

    def ask(self, order: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the next answer says why
            self._process.stdin.write(f"{json.dumps(order)}\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the next answer.

        Raises:
            ChildFailed: there is none. The text is the last line of the child's errors.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return json.loads(line.removeprefix(_MARK))
        if self._is_late:
            raise ChildFailed(f"did not end within {self._seconds:.0f} s, and was killed")
        self._errors.seek(0)
        words = [line.strip() for line in self._errors if line.strip()]
        raise ChildFailed(words[-1] if words else f"ended with {self._process.wait()} without a word")

    def _end(self) -> None:
        self._is_late = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._end()
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()


def in_child(function: str, /, **options: Any) -> Any:
    """Return the result of a function in a ``Child`` with these options.

    Raises:
        ChildFailed: there is none.
    """
    with Child(function, **options) as child:
        return child.answer()


def all_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(cores: Iterable[int]) -> None:
    """Move this thread, and what it starts from now on, to these processors. Other threads stay where they are."""
    if hasattr(os, "sched_setaffinity"):  # macOS has no such thing
        os.sched_setaffinity(0, cores)


def leave_cores() -> None:
    """Move this thread to the other processors. What it has started stays where it is."""
    pin(set(range(os.cpu_count() or 1)).difference(all_cores()))


def unpin() -> None:
    """Return to all processors, for work that is not measured."""
    pin(range(os.cpu_count() or 1))


def _say(answer: Any) -> None:
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)


def main() -> None:
    order = json.loads(sys.stdin.readline())
    if order["one_core"]:
        pin(all_cores()[-1:])
    if not order["hiredis"]:
        sys.modules["hiredis"] = None  # type: ignore[assignment]  # an import of it fails now
    module, _, name = order["function"].rpartition(".")
    function = getattr(importlib.import_module(f"tests.benchmarks.{module}"), name)
    from redis.utils import HIREDIS_AVAILABLE  # after the line above: decided at import

    if HIREDIS_AVAILABLE is not order["hiredis"]:
        raise RuntimeError(f"redis-py {'has' if HIREDIS_AVAILABLE else 'does not have'} hiredis here")
    result = function(**order["arguments"])
    if hasattr(result, "__enter__"):
        with result as contenders:
            serve(contenders, map(json.loads, sys.stdin), _say)
    else:
        _say(result)
    os._exit(0)  # threads may still wait for a lock


if __name__ == "__main__":
    main()

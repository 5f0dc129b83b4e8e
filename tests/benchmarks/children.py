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
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

_MARK = "result of the measurement: "


class ChildFailed(RuntimeError):
    """A measurement without a result: it raised, died, or took too long and was killed."""


def all_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def in_child(function: str, *, seconds: float, one_core: bool = True, hiredis: bool = True, **arguments: Any) -> Any:
    """Return the result of ``function`` ("module.name" of this package) for ``arguments``. All of it is JSON.

    Args:
        seconds: the time after which it is killed, with its own children.
        one_core: on one processor (the last one); else on all.
        hiredis: whether redis-py finds hiredis.

    Raises:
        ChildFailed: there is no result. The text is the last line of the child's errors.
    """
    order = {"function": function, "one_core": one_core, "hiredis": hiredis, "arguments": arguments}
    command = [sys.executable, "-m", "tests.benchmarks.children"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # A session of its own, so that it can be killed with its children.
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as child:
        try:
            said, errors = child.communicate(json.dumps(order), timeout=seconds)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"did not end within {seconds:.0f} s, and was killed") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    for line in reversed(said.splitlines()):
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    raise ChildFailed(_last_words(errors) or f"ended with {child.returncode} without a word")


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


def _last_words(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def main() -> None:
    order = json.loads(sys.stdin.read())
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
    print(f"\n{_MARK}{json.dumps(result)}", flush=True)
    os._exit(0)  # threads may still wait for a lock


if __name__ == "__main__":
    main()

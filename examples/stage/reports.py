"""A worker process's side of the pipes: commands in, reports out, one JSON object a line."""

import json
import select
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


def report(kind: str, **data: Any) -> None:
    print(json.dumps({"kind": kind, "at": time.monotonic(), **data}), flush=True)


def command() -> dict[str, Any]:
    """Return the next command; exit at the end of the pipe, because the director has ended."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit
    message: dict[str, Any] = json.loads(line)
    return message


def commanded(seconds: float) -> bool:
    """Return whether a command comes within that time. The director must send one at a time."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def serve(set_up: Callable[..., Callable[..., None]]) -> None:
    """Set up with the first command, and carry out the others with the result."""
    try:
        carry_out = set_up(**command())
        report("ready")
        while True:
            carry_out(**command())
    except Exception as error:  # noqa: BLE001 - the director must get every error
        report("failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise SystemExit(1) from None

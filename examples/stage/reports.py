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
    """The next one; the end of the pipe means that the director is gone."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit
    message: dict[str, Any] = json.loads(line)
    return message


def commanded(seconds: float) -> bool:
    """Whether there is one, or will be within that time; only where the director awaits the end of one first."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def serve(set_up: Callable[..., Callable[..., None]]) -> None:
    """The first command sets up what carries out the others."""
    try:
        carry_out = set_up(**command())
        report("ready")
        while True:
            carry_out(**command())
    except Exception as error:  # noqa: BLE001 - whatever it is, the director has to hear of it
        report("failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise SystemExit(1) from None

"""Bodies of blocks, written once for sync and async guards.

A body is a generator that calls a guard or a driver and yields the result. Where that is a value, it is sent back.
Where it is an awaitable, it is awaited first. Contexts are not entered here: a ``with`` of Python's own closes what it
has entered also when a signal's handler raises.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator
from typing import Any, TypeVar

__all__ = ["Steps", "run", "run_async"]

T = TypeVar("T")
Steps = Generator[Any, Any, T]


def run(steps: Steps[T]) -> T:
    """Run a body over a sync guard."""
    answer = None
    while True:
        try:
            answer = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result


async def run_async(steps: Steps[T]) -> T:
    """Run a body over an async guard."""
    answer, error = None, None
    while True:
        try:
            asked = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, error = None, None
        try:
            answer = await asked if inspect.isawaitable(asked) else asked
        except BaseException as raised:  # noqa: BLE001 - the body has it
            error = raised

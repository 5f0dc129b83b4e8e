"""Contenders that take turns, batch by batch: on the side of the child that has them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

WARM_UP = 30
BATCH_LIMIT = 20.0
"""The seconds after which a contender is taken for hanging in a batch."""


class Batch(NamedTuple):
    """A contender that does several operations. ``run`` returns the wall and the processor time of one, in seconds."""

    run: Callable[[], tuple[float, float]]


class Contenders(NamedTuple):
    """What takes turns, in a child, on the servers and connections of a context manager.

    Attributes:
        functions: one operation of each contender, or a batch of operations.
        batch: the operations of one turn.
        failures: what could not be opened, with the error.
    """

    functions: Mapping[str, Callable[[], object] | Batch]
    batch: int = 1
    failures: Mapping[str, str] = {}


def serve(contenders: Contenders, orders: Iterable[list[str]], say: Callable[[Any], None]) -> None:
    """Warm all contenders up, and say their names and failures. Then give an order's names a turn, and say their times.

    A time is that of one operation, in µs: wall and processor. In place of the times of what failed stands its error.
    """
    functions, batch = contenders.functions, contenders.batch
    signal.signal(signal.SIGALRM, _too_long)
    for _ in range(-(-WARM_UP // batch)):
        for function in functions.values():
            _turn(function, batch)
    say([list(functions), contenders.failures])
    for names in orders:
        say({name: _turn(functions[name], batch) for name in names})


def _turn(function: Callable[[], object] | Batch, batch: int) -> list[float] | str:
    try:
        with _bounded():
            if isinstance(function, Batch):
                wall, cpu = function.run()
            else:
                started, busy = time.perf_counter(), time.process_time()
                for _ in range(batch):
                    function()
                cpu, wall = (time.process_time() - busy) / batch, (time.perf_counter() - started) / batch
        return [wall * 1e6, cpu * 1e6]
    except Exception as error:  # noqa: BLE001 - it is reported, and the others go on
        return f"{type(error).__name__}: {error}"


@contextmanager
def _bounded() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, BATCH_LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"a batch took more than {BATCH_LIMIT:.0f} s")

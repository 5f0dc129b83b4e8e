"""The marks, the data and the rule of both memory guards. Read it to learn how a guard works."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from fencing.kernel import process
from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import GuardUnavailable
from fencing.kernel.fence import Fence, HasFence, Mark
from fencing.kernel.process import OfThisProcess
from storage_guards.bounds import check_timeout
from storage_guards.once import already_done


class MemoryBase(OfThisProcess, ABC):
    """The marks, the data and the rule of both memory guards. The caller holds the guard's lock."""

    def __init__(self, *, timeout: float = 10.0) -> None:
        self._timeout = check_timeout(timeout)
        self._marks: dict[str, Mark] = {}
        self._data: dict[Any, Any] = {}
        self._done: dict[tuple[str, str], tuple[int, float]] = {}  # by the resource and the key: the number, and when
        self._reset()
        process.after_fork(self._reset)

    @abstractmethod
    def _reset(self) -> None: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, timeout {self._timeout:g} s>"

    @property
    def data(self) -> Mapping[Any, Any]:
        """The committed data, read-only.

        A holder reads inside :meth:`begin`, or here after its claim. Each access gives a snapshot, which later commits
        do not change.
        """
        return MappingProxyType(self._data)

    def _claim(self, fences: list[Fence]) -> None:
        self._marks.update({fence.resource: admit_claim(self._marks.get(fence.resource), fence) for fence in fences})

    @contextmanager
    def _transaction(
        self, holders: Sequence[Fence | HasFence], fences: list[Fence], claim: bool, once: str | None
    ) -> Iterator[dict[Any, Any]]:
        marks, data = dict(self._marks), dict(self._data)
        done = self._done
        for fence in fences:
            if claim:
                marks[fence.resource] = admit_claim(marks.get(fence.resource), fence)
            marks[fence.resource] = admit_write(marks.get(fence.resource), fence)
        if once is not None:
            key = fences[0].resource, once
            if key in done:
                raise already_done(holders[0], once, *done[key])
            done = {**done, key: (fences[0].number, time.time())}
        yield data
        self._marks, self._data, self._done = marks, dict(data), done

    def _unavailable(self, fences: list[Fence], seconds: float) -> GuardUnavailable:
        resource = fences[0].resource
        return GuardUnavailable(
            f"another transaction kept the memory guard locked for {seconds:.3g} s, so the mark of {resource!r} "
            f"was not reached; retry",
            resource=resource,
        )

"""The storage side of the exploration: one mark and one value, kept by a real guard.

The value is the set of updates it contains, so that a lost one can be named. Guards are not simulated: each distinct
operation on each distinct state is run once on the guard itself, and remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import StaleFence, UnclaimedFence
from fencing.kernel.fence import Fence, Mark
from storage_guards import MemoryGuard
from storage_guards.memory import base as memory

__all__ = [
    "OTHER",
    "RESOURCE",
    "Accepted",
    "Backend",
    "ClaimOperation",
    "Conflict",
    "MemoryBackend",
    "Operation",
    "Refused",
    "Storage",
    "Value",
    "WriteOperation",
]

RESOURCE = "r"
OTHER = "s"  # a lock that only those take who hold both

Value = frozenset[tuple[int, int]]
"""The updates that were made: of which client, its which one."""


class Storage(NamedTuple):
    """What is stored: hashable, so that a guard can be put back into any state."""

    mark: Mark | None = None
    value: Value = frozenset()
    floor: int = 0
    backup: Mark | None = None


@dataclass(frozen=True)
class ClaimOperation:
    fence: Fence


class WriteOperation(NamedTuple):
    """A write as one request.

    ``form``: "guarded", the rule; "unguarded", past the guard; "claiming", claims at once; "check", the check alone.
    ``seq``: the mark's, as last seen, where the write is on condition that it has not moved; None: no condition.
    """

    fence: Fence
    update: tuple[int, int]
    base: Value
    seq: int | None = None
    form: Literal["guarded", "unguarded", "claiming", "check"] = "guarded"


Operation = ClaimOperation | WriteOperation


@dataclass(frozen=True)
class Accepted:
    """It was done."""


@dataclass(frozen=True)
class Refused:
    """The rule refused it."""

    mark: Mark | None
    floor: int | None = None


@dataclass(frozen=True)
class Conflict:
    """The mark is the fence's, but its seq has moved: another write of the same grant came between."""


Answer = Accepted | Refused | Conflict


class Backend(Protocol):
    """A guard, with its storage put into a state before each operation."""

    def run(self, storage: Storage, operation: Operation) -> tuple[Storage, Answer]:
        """Do one operation, alone."""


class _SeqMoved(Exception):
    pass


class MemoryBackend:
    """The real MemoryGuard. A rule is switched off by putting another function in the place of the kernel's."""

    def __init__(
        self,
        admit_claim: Callable[..., Mark] = admit_claim,
        admit_write: Callable[[Mark | None, Fence], Mark] = admit_write,
    ) -> None:
        self._rules: dict[str, Callable[..., Mark]] = {"admit_claim": admit_claim, "admit_write": admit_write}
        self._guard = MemoryGuard()

    def run(self, storage: Storage, operation: Operation) -> tuple[Storage, Answer]:
        guard = self._guard
        guard._marks = {} if storage.mark is None else {RESOURCE: storage.mark}
        guard._data = {RESOURCE: storage.value}
        try:
            with self._ruled(storage.floor):
                if isinstance(operation, ClaimOperation):
                    guard.claim(operation.fence)
                else:
                    self._write(operation)
        except (StaleFence, UnclaimedFence) as refusal:
            return storage, Refused(refusal.mark, getattr(refusal, "floor", None))
        except _SeqMoved:
            return storage, Conflict()
        return storage._replace(mark=guard.mark(RESOURCE), value=guard.data[RESOURCE]), Accepted()

    def _write(self, write: WriteOperation) -> None:
        after = write.base | {write.update}
        if write.form == "unguarded":
            self._guard._data[RESOURCE] = after
            return
        with self._guard.begin(write.fence, claim=write.form == "claiming") as data:
            mark = self._guard.mark(RESOURCE)
            if write.seq is not None and mark is not None and mark.seq != write.seq:
                raise _SeqMoved
            if write.form != "check":
                data[RESOURCE] = after

    @contextmanager
    def _ruled(self, floor: int) -> Iterator[None]:
        """The memory guard never prunes marks, so the floor of the rule is brought in here."""
        replaced: dict[str, Any] = {name: getattr(memory, name) for name in self._rules}
        for name, rule in self._rules.items():
            setattr(memory, name, partial(rule, floor=floor) if name == "admit_claim" else rule)
        try:
            yield
        finally:
            for name, function in replaced.items():
                setattr(memory, name, function)

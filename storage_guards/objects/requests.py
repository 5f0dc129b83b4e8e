"""What the plans of the object-store guard ask for, as data, and what they are answered.

A plan (``fencing.kernel.effects``) yields a request, is sent the reply or thrown the error, and goes on from there. So
both colours, and tests that script a store, run the very same logic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

__all__ = [
    "CREATE",
    "Await",
    "Clock",
    "Close",
    "Conflict",
    "Deadline",
    "Delete",
    "Found",
    "Get",
    "List",
    "Listed",
    "Lost",
    "Next",
    "Open",
    "Put",
    "Together",
    "Version",
]

Clock = Callable[[], float]

LEAST_SECONDS = 0.001

PAGE = 1000
"""Objects of one page of a listing."""


class Conflict(Exception):
    """The store refused a conditional put. Or it did what was asked and refused its own client's second attempt."""


class Lost(Exception):
    """No answer, or none that says what happened: the request may have been done, or be done later."""


@dataclass(frozen=True, slots=True)
class Version:
    """Which state of an object a store has given, as far as it says so."""

    e_tag: str | None
    version: str | None


CREATE: Literal["create"] = "create"
"""The condition that there is no object yet."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object, or its head."""

    data: bytes
    version: Version
    size: int
    modified: datetime
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing."""

    key: str
    size: int
    modified: datetime


@dataclass(frozen=True, slots=True)
class Get:
    """Read an object of at most ``limit`` bytes: its :class:`Found`, or None. Of a bigger one no bytes."""

    key: str
    limit: int
    seconds: float
    head: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Store an object: its new :class:`Version`. :class:`Conflict` where the condition is refused."""

    key: str
    data: bytes
    condition: Version | Literal["create"] | None
    seconds: float
    attributes: Mapping[str, str] = field(default_factory=dict)
    form: str | None = None
    """How to write the ETag of the condition; None: as the probe found out."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete objects. That one is gone already is fine."""

    keys: Sequence[str]
    seconds: float


@dataclass(frozen=True, slots=True)
class List:
    """The first ``limit`` objects below a directory, as a list of :class:`Listed`."""

    directory: str
    limit: int
    page_seconds: float

    @property
    def seconds(self) -> float:
        return self.page_seconds * (self.limit // PAGE + 1)


@dataclass(frozen=True, slots=True)
class Open:
    """Begin to read an object: a stream of its bytes, or None where there is none."""

    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Await:
    """Await something else at the store, which bounds itself."""

    do: Callable[[Any], Coroutine[Any, Any, Any]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Next:
    """The next piece of a body, or None. In the caller's own thread or task, for the body is the caller's code."""

    pieces: Any


@dataclass(frozen=True, slots=True)
class Close:
    """No more pieces of this body are wanted."""

    pieces: Any


@dataclass(frozen=True, slots=True)
class Together:
    """Do all at the same time: a list of replies and errors."""

    requests: Sequence[Any]


class Deadline:
    """How long the requests of one plan may take together."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds, at or below 0 when they are over."""
        return self._end - self._clock()

    @property
    def over(self) -> bool:
        return self.left <= 0

    def part(self, share: float = 1.0) -> float:
        """What one request may take of what is left: never nothing, so that even a late one is asked once."""
        return max(self.left * share, LEAST_SECONDS)

"""Requests of the object-store guard's plans, as data, and the replies to them.

A plan (``fencing.kernel.effects``) yields a request, is sent the reply or thrown the error, and continues. A request
holds values, never code. So threads, asyncio, and tests that script a store run the very same plans.

Four replies stand for an open thing that a plan only hands back: the pieces of a body, an upload, a batch, and the
stream of an object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.retry import LEAST_SECONDS

Clock = Callable[[], float]

PAGE = 1000
"""Objects of one page of a listing."""

MOST_BEFORE = 32
"""How many requests of other threads may have to end before there is room for one in a batch. It is for a backstop
only, because the batch itself raises where none of them ends."""


class Conflict(Exception):
    """The store refused a conditional put. Or it did the put and refused the repetition of its own client."""


class Lost(Exception):
    """No answer, or none that says whether the request was done: it may have been done, or be done later.

    Attributes:
        refusal: the last of several attempts was refused for good. An earlier one may have been done all the same.
    """

    def __init__(self, text: str, refusal: GuardNotEnforceable | None = None) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an object, as far as the store gives one."""

    e_tag: str | None
    version: str | None


CREATE: Literal["create"] = "create"
"""The condition that there is no object yet."""

Condition = Version | Literal["create"]
"""The condition of a put: the object has this version, or there is none."""


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
    """Read an object of at most ``limit`` bytes: its :class:`Found`, or None. A bigger one gives no bytes."""

    key: str
    limit: int
    seconds: float
    head: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Store an object: its new :class:`Version`. :class:`Conflict` where the store refuses the condition."""

    key: str
    data: bytes
    condition: Condition | None
    seconds: float
    attributes: Mapping[str, str] = field(default_factory=dict)
    form: str | None = None
    """The form of the ETag in the condition. None: the form that the probe found."""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete objects. One of them may be gone already."""

    keys: Sequence[str]
    seconds: float


@dataclass(frozen=True, slots=True)
class List:
    """The first ``limit`` objects below a directory, as a list of :class:`Listed`.

    Args:
        after: a key: only those behind it. Empty: all.
    """

    directory: str
    limit: int
    page_seconds: float
    after: str = ""

    @property
    def seconds(self) -> float:
        return self.page_seconds * (self.limit // PAGE + 1)


@dataclass(frozen=True, slots=True)
class Open:
    """Begin to read an object: a stream of its bytes, or None where there is no object.

    Args:
        size: of the object; :class:`GuardNotEnforceable` where it has another. None: any.
        part: its first byte, and the one behind its last. None: all of it.
    """

    key: str
    seconds: float
    size: int | None = None
    part: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Read the next bytes of a stream, or None at its end."""

    stream: object
    key: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Sign:
    """Make URLs that anyone may get for ``valid`` seconds, as a list. It asks for credentials at most."""

    keys: Sequence[str]
    valid: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin an upload in parts. Nothing is sent yet.

    Args:
        seconds: how long the store may make no progress with it.
    """

    key: str
    part_size: int
    seconds: float
    attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a piece over to an upload, when there is room for it."""

    upload: object
    piece: bytes | memoryview
    seconds: float


@dataclass(frozen=True, slots=True)
class BeginBatch:
    """Begin to do requests at the same time. Nothing is sent yet.

    Args:
        seconds: the bound of each of them.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Add:
    """Begin a request of a batch, when there is room for it. It raises the first failure of the batch."""

    batch: object
    request: Put | Get

    @property
    def seconds(self) -> float:
        return MOST_BEFORE * self.request.seconds


@dataclass(frozen=True, slots=True)
class Finish:
    """End an upload, and wait until the store has all of it. Or wait for a batch: its replies in order."""

    upload: object
    seconds: float


@dataclass(frozen=True, slots=True)
class Abort:
    """Give up an upload, or a batch. obstore lets the store drop the parts of an upload, if there is time."""

    upload: object
    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Do all requests at the same time: a list of replies and errors."""

    requests: Sequence[Put | Get]

    @property
    def seconds(self) -> float:
        return max(request.seconds for request in self.requests)


@dataclass(frozen=True, slots=True)
class Unrepeated:
    """Do a request by a client that repeats nothing, so that a status which obstore repeats for minutes is seen.

    The reply of a put is a :class:`Found`: the object as the store itself shows it. :class:`Lost` where there is no
    such client, and for every error except a refusal for good: then the store itself must do the request.
    """

    request: Put | List | Delete

    @property
    def seconds(self) -> float:
        return 2 * self.request.seconds


# These run in the caller's own thread or task, because bodies and progress are the caller's code.


@dataclass(frozen=True, slots=True)
class OpenBody:
    """Begin to read a body: its pieces, and its size where that is known beforehand."""

    body: object


@dataclass(frozen=True, slots=True)
class Next:
    """Read the next piece of a body, or None at its end."""

    pieces: object


@dataclass(frozen=True, slots=True)
class Close:
    """Close a body: its other pieces are not needed."""

    pieces: object


@dataclass(frozen=True, slots=True)
class Progressed:
    """Report to the caller of ``publish`` how much of a body was handed over."""

    name: str
    sent: int
    total: int | None


class Deadline:
    """The time that the requests of one plan may take together."""

    def __init__(self, seconds: float, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """The seconds left, at or below 0 when the time is over."""
        return self._end - self._clock()

    @property
    def over(self) -> bool:
        return self.left <= 0

    def part(self, share: float = 1.0) -> float:
        """Return the seconds that one request may take of the time left: never 0, so that even a late one is sent
        once."""
        return max(self.left * share, LEAST_SECONDS)

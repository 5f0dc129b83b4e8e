"""The values of the protocol and its admission rule. No I/O, no dependency.

A storage keeps one :class:`Mark` per resource: the newest fence it has admitted. Two pure functions decide everything:
:func:`admit_claim` before a holder reads, :func:`admit_write` when it writes. Every guard, whatever its storage, does
what they say; the SQL and the scripts are the same rule in another language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from urllib.parse import quote, unquote

from fencing.kernel.errors import LeaseLost, StaleFence, UnclaimedFence

__all__ = [
    "MAX_NUMBER",
    "MAX_RESOURCE_BYTES",
    "Fence",
    "HasFence",
    "Mark",
    "admit_claim",
    "admit_write",
    "as_fence",
    "check_number",
    "check_resource",
    "check_token",
    "sorted_fences",
]

MAX_NUMBER = 2**53 - 1
"""The highest fencing number: the largest integer that a double, and so Redis' Lua, still tells from its neighbours."""

MAX_RESOURCE_BYTES = 512
"""The longest resource name, in bytes of UTF-8: it fits the key of every database's index, and a header when quoted."""

MAX_SEQ = 2**63 - 1

_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,128}")  # 22 characters of base64 hold the 128 random bits a token must have
_SAFE_IN_TEXT = "!$&'()*+,/:;=@"  # left readable in str(fence): neither '"' nor '\' nor '%'; '.' separates only twice


def check_number(number: object, what: str = "a fencing number") -> int:
    """Return ``number`` if it is an int in 1 … 2^53-1; TypeError or ValueError otherwise."""
    if type(number) is not int:
        raise TypeError(f"{what} is an int, not {type(number).__name__} ({number!r})")
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"{what} lies between 1 and 2^53-1 ({MAX_NUMBER}), not {number}")
    return number


def check_resource(resource: object) -> str:
    """Return ``resource`` if it can name what is protected; TypeError or ValueError otherwise."""
    if not isinstance(resource, str):
        hint = "; decode it first" if isinstance(resource, bytes) else "; name what is protected, such as 'orders:42'"
        raise TypeError(f"a resource name is a str, not {type(resource).__name__}{hint}")
    if not resource:
        raise ValueError("a resource name is not empty; name what is protected, such as 'orders:42'")
    if resource.startswith("fencing:"):
        raise ValueError(
            f"resource names that begin with 'fencing:' are the library's own keys; rename {_shown(resource)}"
        )
    if "\0" in resource:
        raise ValueError("a resource name holds no NUL character: PostgreSQL text cannot store one")
    try:
        size = len(resource.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"the resource name {_shown(resource)} is not valid Unicode text: {error.reason}") from None
    if size > MAX_RESOURCE_BYTES:
        raise ValueError(
            f"a resource name has at most {MAX_RESOURCE_BYTES} bytes of UTF-8, not {size}; hash longer ones"
        )
    return resource


def check_token(token: object) -> str:
    """Return ``token`` if it has the form of one; TypeError or ValueError otherwise."""
    if not isinstance(token, str):
        raise TypeError(f"a token is a str, not {type(token).__name__}")
    if not _TOKEN.fullmatch(token):
        raise ValueError(
            f"a token is 22 to 128 characters of A-Z a-z 0-9 _ -, at least 128 bits of chance, not {_shown(token)}"
        )
    return token


def _shown(text: str) -> str:
    """The text for an error message, which hostile input must not make long."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


@dataclass(frozen=True, slots=True)
class Fence:
    """One grant's identity: whoever carries it may write as long as no newer fence was claimed at the storage.

    ``str(fence)`` is printable ASCII without quotes, blanks or backslashes, so it travels in headers, job payloads and
    environment variables; :meth:`parse` reads it back. A fence is not a secret of cryptographic strength: it keeps out
    late writers, not attackers who can make up fences.

    Args:
        resource: what is protected; 1 to 512 bytes of UTF-8, not beginning with ``fencing:``.
        number: the fencing number, 1 … 2^53-1. Of one resource, a later grant has a higher one.
        token: the unique random string of this grant, 22 to 128 characters of ``A-Z a-z 0-9 _ -``.

    Raises:
        TypeError, ValueError: a part is malformed; the message says which and what it must be.
    """

    resource: str
    number: int
    token: str

    def __post_init__(self) -> None:
        check_resource(self.resource)
        check_number(self.number)
        check_token(self.token)

    def __str__(self) -> str:
        return f"{self.number}.{self.token}.{quote(self.resource, safe=_SAFE_IN_TEXT)}"

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Read back what ``str(fence)`` wrote, and nothing else.

        Raises:
            TypeError: ``text`` is not a str.
            ValueError: it is not the text of a fence. Refuse the request that brought it.
        """
        if not isinstance(text, str):
            raise TypeError(f"the text of a fence is a str, not {type(text).__name__}")
        number, _, rest = text.partition(".")
        token, _, resource = rest.partition(".")
        if not re.fullmatch(r"[1-9][0-9]{0,15}", number):
            raise ValueError(f"not the text of a fence (number.token.resource): {_shown(text)}")
        try:
            fence = cls(unquote(resource, errors="strict"), int(number), token)
        except ValueError as error:
            raise ValueError(f"not the text of a fence: {_shown(text)}: {error}") from None
        if str(fence) != text:
            raise ValueError(f"not the text of a fence as str(fence) writes it: {_shown(text)}")
        return fence


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest fence a storage has admitted for a resource.

    Args:
        number: of that fence, 1 … 2^53-1.
        token: of that fence.
        seq: how many checks and writes the storage has admitted under it; orders the writes of one grant.
    """

    number: int
    token: str
    seq: int = 0

    def __post_init__(self) -> None:
        check_number(self.number, "a mark's number")
        check_token(self.token)
        if type(self.seq) is not int:
            raise TypeError(f"a mark's seq is an int, not {type(self.seq).__name__}")
        if not 0 <= self.seq <= MAX_SEQ:
            raise ValueError(f"a mark's seq lies between 0 and 2^63-1, not {self.seq}")

    def is_of(self, fence: Fence) -> bool:
        """Whether this very fence was the last one admitted."""
        return (self.number, self.token) == (fence.number, fence.token)


def admit_claim(mark: Mark | None, fence: Fence, floor: int = 0) -> Mark:
    """The rule for a claim: admitted iff the fence is newer than the mark, or is the mark's own (so a lost reply can
    be retried).

    Args:
        mark: what the storage holds for the resource; None: nothing yet.
        fence: who claims.
        floor: the highest number among marks that were pruned; a claim on an absent mark must exceed it.

    Returns:
        The mark to store. The claimant may read once it is stored, not before.

    Raises:
        StaleFence: a newer fence, or one of equal number and another token, was admitted. Nothing is to be stored.
    """
    if mark is None:
        if fence.number <= floor:
            raise StaleFence(fence=fence, mark=None, floor=floor)
        return Mark(fence.number, fence.token)
    if mark.is_of(fence):
        return mark
    if fence.number > mark.number:
        return Mark(fence.number, fence.token)
    raise StaleFence(fence=fence, mark=mark)


def admit_write(mark: Mark | None, fence: Fence) -> Mark:
    """The rule for a write: admitted iff the mark is this very fence's. Check and write must be atomic through commit.

    Returns:
        The mark to store with the write: ``seq`` one higher.

    Raises:
        StaleFence: a newer fence, or one of equal number and another token, was claimed. The holder must stop.
        UnclaimedFence: this fence is newer than the mark and was never claimed here.
    """
    if mark is not None and mark.is_of(fence):
        return Mark(mark.number, mark.token, mark.seq + 1)
    if mark is None or mark.number < fence.number:
        raise UnclaimedFence(fence=fence, mark=mark)
    raise StaleFence(fence=fence, mark=mark)


@runtime_checkable
class HasFence(Protocol):
    """Whatever carries a fence: a lease, or an object of the caller's own."""

    @property
    def fence(self) -> Fence: ...


def as_fence(holder: Fence | HasFence) -> Fence:
    """The fence of a lease, or the fence itself. Guards call it on whatever they are given.

    Raises:
        TypeError: there is no fence in it.
        LeaseLost: it is a lease that was released or detached here; its fence must not be used any more.
    """
    if isinstance(holder, Fence):
        return holder
    fence = getattr(holder, "fence", None)
    if not isinstance(fence, Fence):
        hint = ""
        if isinstance(holder, str):
            hint = "; read its text with Fence.parse first"
        elif isinstance(holder, Iterable):
            hint = "; give several as arguments of their own, one by one"
        elif hasattr(holder, "try_acquire"):
            hint = "; acquire it, and give the lease"
        raise TypeError(f"a guard takes a lease or a Fence, not {type(holder).__name__}{hint}")
    ended = getattr(holder, "ended", None)
    if ended is not None:
        raise LeaseLost(fence=fence, reason=ended)
    return fence


def sorted_fences(holders: Iterable[Fence | HasFence]) -> list[Fence]:
    """The fences of ``holders``, ordered by resource so that two callers lock the marks in the same order.

    Raises:
        TypeError: there is none, or one of them is no fence.
        ValueError: two different fences name the same resource. The same fence twice counts once.
    """
    by_resource: dict[str, Fence] = {}
    for holder in holders:
        fence = as_fence(holder)
        if by_resource.setdefault(fence.resource, fence) != fence:
            raise ValueError(
                f"two different fences were given for the resource {fence.resource!r}; give the newest one"
            )
    if not by_resource:
        raise TypeError("at least one lease or Fence is needed")
    return [by_resource[resource] for resource in sorted(by_resource)]

"""The values of the protocol, and what makes them well-formed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from urllib.parse import quote, unquote

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


@runtime_checkable
class HasFence(Protocol):
    """Whatever carries a fence: a lease, or an object of the caller's own."""

    @property
    def fence(self) -> Fence: ...

"""Fences and marks, and the checks that they are well-formed."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from urllib.parse import quote, unquote

from fencing.kernel import process

MAX_NUMBER = 2**53 - 1
"""The highest fencing number: the largest integer that a double, and so Redis' Lua, distinguishes from its
neighbours."""

MAX_RESOURCE_BYTES = 512
"""The longest resource name, in bytes of UTF-8. It fits the index key of every database, and, quoted, a header."""

MAX_SEQ = 2**63 - 1

MAX_TEXT = 16 + 1 + 128 + 1 + 3 * MAX_RESOURCE_BYTES
"""The longest ``str(fence)``: number, token and resource, each byte of which may be quoted."""

FENCE_VARIABLE = "FENCING_TOKEN"
"""The variable of the environment in which ``fencing run`` gives a command the text of its fence."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,128}")  # 22 characters of base64 hold the 128 random bits a token must have
_SAFE_IN_TEXT = (
    "!$&'()*+,/:;=@"  # not quoted in str(fence). Quoted are '"', '\' and '%'. Only the first two '.' separate
)
_is_safe = re.compile(f"[A-Za-z0-9_.~{re.escape(_SAFE_IN_TEXT)}-]*").fullmatch  # quote() is slower


def check_number(number: object, name: str = "a fencing number") -> int:
    """Return ``number`` if it is an int in 1 … 2^53-1; raise TypeError or ValueError otherwise.

    Args:
        number: the value to check.
        name: its name in the error message.
    """
    if type(number) is not int:
        raise TypeError(f"{name} must be an int, not {type(number).__name__}")
    if not 1 <= number <= MAX_NUMBER:
        raise ValueError(f"{name} must be between 1 and 2^53-1 ({MAX_NUMBER}), not {number}")
    return number


def check_resource(resource: object, prefix: str = "") -> str:
    """Return ``resource`` if it is a valid resource name; raise TypeError or ValueError otherwise.

    Args:
        resource: the value to check.
        prefix: what the name must begin with. It is put in front of a name that does not, and the whole is checked. So
            the resource of a fence, of a listing or of an error is a name, too.
    """
    if not isinstance(resource, str):
        hint = "; decode it first" if isinstance(resource, bytes) else "; name what is protected, such as 'orders:42'"
        raise TypeError(f"a resource name must be a str, not {type(resource).__name__}{hint}")
    if not resource:
        raise ValueError("a resource name must not be empty; name what is protected, such as 'orders:42'")
    if resource.startswith("fencing:"):
        raise ValueError(
            f"resource names that begin with 'fencing:' are reserved for the library; rename {_shown(resource)}"
        )
    if "\0" in resource:
        raise ValueError("a resource name must not contain a NUL character: PostgreSQL text cannot store one")
    try:
        size = len(resource.encode()) if len(resource) <= MAX_RESOURCE_BYTES else len(resource)
    except UnicodeEncodeError as error:
        raise ValueError(f"the resource name {_shown(resource)} is not valid Unicode text: {error.reason}") from None
    if size > MAX_RESOURCE_BYTES:
        raise ValueError(
            f"a resource name must have at most {MAX_RESOURCE_BYTES} bytes of UTF-8, not {size}; hash longer names"
        )
    if not resource.startswith(prefix):
        return check_resource(prefix + resource)
    return resource


def check_token(token: object) -> str:
    """Return ``token`` if it has the form of a token; raise TypeError or ValueError otherwise."""
    if not isinstance(token, str):
        raise TypeError(f"a token must be a str, not {type(token).__name__}")
    if not _TOKEN.fullmatch(token):
        raise ValueError(
            f"a token must be 22 to 128 characters of A-Z a-z 0-9 _ - with at least 128 random bits, "
            f"not {_shown(token)}"
        )
    return token


_TOKEN_CHARACTERS = 22
"""Of base64, with 6 random bits each: 132, and a token needs 128."""

_tokens: list[str] = []  # made in advance


def new_token() -> str:
    """Return a unique token: 132 random bits, 22 characters."""
    try:
        return _tokens.pop()
    except IndexError:
        text = base64.urlsafe_b64encode(os.urandom(66 * 16)).decode()  # 66 bytes are 88 characters, four tokens
        starts = range(0, len(text), _TOKEN_CHARACTERS)
        first, *others = [text[start : start + _TOKEN_CHARACTERS] for start in starts]
        _tokens.extend(others)
        return first


process.after_fork(lambda: _tokens.clear())  # the parent uses those


def digest_of(token: str) -> str:
    """Return 16 hexadecimal digits that stand for a token. Redis' scripts make the same ones."""
    return hashlib.sha1(token.encode(), usedforsecurity=False).hexdigest()[:16]


def _shown(text: str) -> str:
    """Return the text for an error message, shortened: hostile input must not make the message long."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _hinted(token: str) -> str:
    """Return a token for a log, whose reader must not be able to use it: its beginning, to tell two apart."""
    return f"'{token[:4]}...'"


@dataclass(frozen=True, slots=True, repr=False)
class Fence:
    """The identity of one grant. Its holder may write until a newer fence is claimed at the storage.

    ``str(fence)`` is printable ASCII without quotes, spaces or backslashes. It fits headers, job payloads and
    environment variables, and :meth:`parse` reads it back. It is for handing the fence over: whoever has it can adopt
    the lock. ``repr(fence)`` is for logs, and shows the token's beginning alone. A fence stops late writers, not
    attackers that make up fences.

    Args:
        resource: the name of what is protected; 1 to 512 bytes of UTF-8, not beginning with ``fencing:``.
        number: the fencing number, 1 … 2^53-1. A later grant of the same resource has a higher one.
        token: the unique random string of this grant, 22 to 128 characters of ``A-Z a-z 0-9 _ -``.

    Raises:
        TypeError, ValueError: a part is malformed. Correct it as the message says.
    """

    __module__ = "fencing"

    resource: str
    number: int
    token: str

    def __post_init__(self) -> None:
        check_resource(self.resource)
        check_number(self.number)
        check_token(self.token)

    def __repr__(self) -> str:
        return f"Fence(resource={self.resource!r}, number={self.number}, token={_hinted(self.token)})"

    def __str__(self) -> str:
        resource = self.resource if _is_safe(self.resource) else quote(self.resource, safe=_SAFE_IN_TEXT)
        return f"{self.number}.{self.token}.{resource}"

    @classmethod
    def parse(cls, text: str) -> Fence:
        """Return the fence whose ``str()`` is exactly ``text``.

        Raises:
            TypeError: ``text`` is not a str.
            ValueError: ``text`` is not the text of a fence. Refuse the request that contained it.
        """
        if not isinstance(text, str):
            raise TypeError(f"the text of a fence must be a str, not {type(text).__name__}")
        if len(text) > MAX_TEXT:
            raise ValueError(f"not the text of a fence: it has {len(text)} characters, more than {MAX_TEXT}")
        number, _, rest = text.partition(".")
        token, _, resource = rest.partition(".")
        if re.fullmatch(r"[1-9][0-9]{0,15}s", number):
            raise ValueError(f"a fence of a reader; this version knows none: {_shown(text)}; upgrade, or refuse it")
        if not re.fullmatch(r"[1-9][0-9]{0,15}", number):
            raise ValueError(f"not the text of a fence (number.token.resource): {_shown(text)}")
        try:
            fence = cls(unquote(resource, errors="strict"), int(number), token)
        except ValueError as error:
            raise ValueError(f"not the text of a fence: {_shown(text)}: {error}") from None
        if str(fence) != text:
            raise ValueError(f"not the text of a fence as str(fence) writes it: {_shown(text)}")
        return fence

    @classmethod
    def from_environment(cls) -> Fence:
        """Return the fence that ``fencing run`` has given this program, in the variable ``FENCING_TOKEN``.

        Pass it to a guard. It does not say whether the lock is still held: the guard refuses it if a newer fence was
        claimed. ``fencing run`` renews and releases the lock, so do not adopt it.

        Raises:
            ValueError: the variable is not set, or is not the text of a fence. Start the program by ``fencing run``.
        """
        text = os.environ.get(FENCE_VARIABLE)
        if not text:
            raise ValueError(f"{FENCE_VARIABLE} is not set: start this program by `fencing run NAME -- command`")
        try:
            return cls.parse(text)
        except ValueError as error:
            raise ValueError(f"{FENCE_VARIABLE} is wrong: {error}") from None


_new_object = object.__new__
_set_resource, _set_number, _set_token = (
    getattr(Fence, name).__set__ for name in ("resource", "number", "token")
)  # the descriptors of the slots


def granted_fence(resource: str, number: int, token: str) -> Fence:
    """Return the fence of a grant. Only the number is checked: a server minted it, the rest is the lock's own."""
    if not 1 <= number <= MAX_NUMBER:
        check_number(number)
    fence = _new_object(Fence)
    _set_resource(fence, resource)
    _set_number(fence, number)
    _set_token(fence, token)
    return fence


@dataclass(frozen=True, slots=True, repr=False)
class Mark:
    """The newest fence that a storage has admitted for a resource.

    Args:
        number: the fence's number, 1 … 2^53-1.
        token: the fence's token.
        seq: how many checks and writes the storage has admitted under it. It orders the writes of one grant.
        readers: the highest number of a reader that the storage has admitted; 0: none. No coordinator of this version
            makes readers, but a mark keeps their number, and refuses what is not newer.
    """

    __module__ = "fencing"

    number: int
    token: str
    seq: int = 0
    readers: int = 0

    def __post_init__(self) -> None:
        check_number(self.number, "a mark's number")
        check_token(self.token)
        if type(self.seq) is not int:
            raise TypeError(f"a mark's seq must be an int, not {type(self.seq).__name__}")
        if not 0 <= self.seq <= MAX_SEQ:
            raise ValueError(f"a mark's seq must be between 0 and 2^63-1, not {self.seq}")
        if type(self.readers) is not int or self.readers:
            check_number(self.readers, "a mark's readers")

    def __repr__(self) -> str:
        readers = f", readers={self.readers}" if self.readers else ""
        return f"Mark(number={self.number}, token={_hinted(self.token)}, seq={self.seq}{readers})"

    @property
    def newest(self) -> int:
        """The highest number that the storage has admitted, of a holder or of a reader. A new fence must exceed it."""
        return max(self.number, self.readers)

    def is_of(self, fence: Fence) -> bool:
        """Return whether this fence was the last one admitted: same number, same token."""
        return (self.number, self.token) == (fence.number, fence.token)


@runtime_checkable
class HasFence(Protocol):
    """An object with a fence: a lease, or an object of the caller's own."""

    @property
    def fence(self) -> Fence:
        """The fence."""

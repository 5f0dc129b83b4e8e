"""The layout of a store: one directory of keys per resource. No two names share a key, and none leaves its directory.

::

    <prefix><resource>/pointer.json                                     the mark, and what is current
    <prefix><resource>/data/<number>.<token>/<upload>/~/<name>          immutable data
    <prefix><resource>/data/<number>.<token>/<upload>/manifest.jsonl    what its publication has
    <prefix>=probe/<random>                                             of the probe, deleted afterwards

Of a resource ``A-Z a-z 0-9 _ -`` stay, and a ``.`` inside. Any other byte of its UTF-8 becomes ``=XX``. A name that
grows too long is cut, and ends in ``=~`` and its SHA-256.

The name of an object has parts between slashes. It is its own key if each part has only ``A-Z a-z 0-9 _ -``, ``= %``,
the other characters that S3 calls safe (``! * ' ( )``), and a ``.`` inside. So partitions keep their names:
``year=2026/month=11/part-0.parquet``. Any other name is behind ``!escaped/``. There any other byte becomes ``%XX``, as
in the partitions of Hive, and an empty part ``%``. If the name itself has a ``%``, that stays, and ``~`` and the name's
SHA-256 come first. A name that is too long is cut, and ends in ``~`` and its SHA-256. It has no ``=``: a value that was
cut must not be read as that of a partition.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from urllib.parse import unquote

from fencing.kernel.fence import Fence

MAX_NAME_BYTES = 1024
"""The longest name of an object in a publication, in bytes of UTF-8. Stores allow the same length for a key."""

MAX_PREFIX = 200
MAX_ESCAPED = 200
"""Stores take keys of 1,024 bytes. Prefix, resource, fence, upload and name fit in, and a prefix of the store too."""

ESCAPED = "!escaped/"
"""The beginning of the keys of names that are escaped. No name begins with it."""

_PLAIN = re.compile(r"[A-Za-z0-9_!*'()=%-]+(\.+[A-Za-z0-9_!*'()=%-]+)*")
"""A part of a name that is its own key."""

_HASHED = 2 + 64  # "=~" and a SHA-256
_STAYS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_STAYS_ESCAPED = _STAYS | frozenset(b"!*'()=%")
_DATA_KEY = re.compile(
    r"data/(?P<number>[0-9]{16})\.(?P<token>[A-Za-z0-9_-]{22,128})/(?P<upload>[A-Za-z0-9_-]{16})/"
    r"(~/(?P<name>[A-Za-z0-9_!*'()=%.~/-]{1,200})|manifest\.jsonl)"
)
_DOTS = re.compile(r"(^|/)(\.|/|$)|\.(/|$)")  # parts that are empty, or begin or end with a dot


def new_id() -> str:
    """Return a random id: 96 bits, 16 characters."""
    return secrets.token_urlsafe(12)


def escape(name: str) -> str:
    """Return ``name`` as one part of a key."""
    escaped = _escape_part(name.encode(), _STAYS, "=")
    if len(escaped) <= MAX_ESCAPED:
        return escaped
    head = re.sub(r"(=[0-9A-F]?|[./])$", "", escaped[: MAX_ESCAPED - _HASHED])
    return f"{head}=~{hashlib.sha256(name.encode()).hexdigest()}"


def name_to_key(name: str) -> str:
    """Return the name of an object as parts of a key, one for each part of it between slashes."""
    if len(name) <= MAX_ESCAPED and all(map(_PLAIN.fullmatch, name.split("/"))):
        return name
    escaped = "/".join(_escape_part(part, _STAYS_ESCAPED, "%") for part in name.encode().split(b"/"))
    digest = hashlib.sha256(name.encode()).hexdigest()
    if "%" in name:  # perhaps it is escaped already; so readers must see it, and nobody else can tell it from ours
        escaped = f"~{digest}/{escaped}"
    if len(escaped) <= MAX_ESCAPED - len(ESCAPED):
        return ESCAPED + escaped
    head = escaped.replace("=", "%3D")[: MAX_ESCAPED - len(ESCAPED) - _HASHED]
    return f"{ESCAPED}{re.sub('%[0-9A-F]?$', '', head)}~{digest}"


def key_to_name(key: str) -> str:
    """Return the name of an object again. Of a name that has its hash in the key, return what is behind the prefix."""
    if not key.startswith(ESCAPED):
        return key
    escaped = key.removeprefix(ESCAPED)
    if "~" in escaped:
        return escaped
    return unquote("/".join("" if part == "%" else part for part in escaped.split("/")))


def _escape_part(part: bytes, stays: frozenset[int], sign: str) -> str:
    last = len(part) - 1
    return (
        "".join(
            chr(byte) if byte in stays or (byte == 0x2E and 0 < index < last) else f"{sign}{byte:02X}"
            for index, byte in enumerate(part)
        )
        or sign
    )


def check_name(name: object, label: str = "the name of an object") -> str:
    """Return ``name`` if it can name an object of a publication; TypeError or ValueError otherwise."""
    if not isinstance(name, str):
        raise TypeError(f"{label} is a str, not {type(name).__name__}")
    if not name:
        raise ValueError(f"{label} is empty; use another")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{label} is not valid Unicode text: {error.reason}") from None
    if size > MAX_NAME_BYTES:
        raise ValueError(f"{label} has {size} bytes of UTF-8; use at most {MAX_NAME_BYTES}")
    return name


def check_new_name(name: object) -> str:
    """Return ``name`` if it can name an object that is uploaded; TypeError or ValueError otherwise."""
    checked = check_name(name)
    if checked.startswith(ESCAPED):
        raise ValueError(f"the name of an object begins with {ESCAPED!r}, which is reserved for keys; use another")
    return checked


def check_key(key: object, prefix: str) -> str:
    """Return ``key`` if it is a key of the caller's own; TypeError or ValueError otherwise."""
    check_name(key, "a key")
    assert isinstance(key, str)
    if any(part == "" or part.endswith(".") for part in key.split("/")):
        raise ValueError(
            f"the key {key!r} has a part that is empty or ends with a dot, which stores treat differently; use another"
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in key):
        raise ValueError(f"the key {key!r} has control characters; use another")
    if "\\" in key:
        raise ValueError(f"the key {key!r} has a backslash, which Azure treats as a slash; use another")
    if (key + "/").startswith(prefix):
        raise ValueError(
            f"the key {key!r} is below {prefix!r}, the guard's directory; write elsewhere, or use publish()"
        )
    return key


@dataclass(frozen=True, slots=True)
class DataKey:
    """The parts of a data object's key.

    Args:
        name: of the object, not escaped. None: it is the manifest of a publication.
    """

    key: str
    number: int
    token: str
    upload: str
    name: str | None

    @classmethod
    def parse(cls, key: str) -> DataKey | None:
        """Read a key relative to its resource's directory. None: it is no data key."""
        match = _DATA_KEY.fullmatch(key)
        if match is None or int(match["number"]) < 1:
            return None
        name = match["name"]
        if name is not None:
            if _DOTS.search(name):
                return None
            name = key_to_name(name)
        return cls(key, int(match["number"]), match["token"], match["upload"], name)


@dataclass(frozen=True, slots=True)
class Directory:
    """The keys of one resource."""

    path: str

    @property
    def pointer(self) -> str:
        return f"{self.path}pointer.json"

    @property
    def data(self) -> str:
        return f"{self.path}data/"

    def full(self, key: str) -> str:
        """Return the store's key for a key that is relative to this directory."""
        return self.path + key

    def relative(self, key: str) -> str:
        return key.removeprefix(self.path)

    @staticmethod
    def data_key(fence: Fence, upload: str, name: str) -> str:
        """Return the key for ``name`` in an upload of ``fence``, relative to this directory. No other upload writes
        there."""
        return f"data/{fence.number:016d}.{fence.token}/{upload}/~/{name_to_key(name)}"

    @staticmethod
    def manifest_key(number: int, token: str, upload: str) -> str:
        """Return the key for the manifest of a publication, relative to this directory. No object has it."""
        return f"data/{number:016d}.{token}/{upload}/manifest.jsonl"


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of one guard.

    Raises:
        TypeError, ValueError: ``prefix`` is no plain directory.
    """

    prefix: str

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str):
            raise TypeError(f"prefix is a str, not {type(self.prefix).__name__}")
        parts = self.prefix.split("/")
        if parts.pop() or not parts or any(escape(part) != part or part == "=" for part in parts):
            raise ValueError(
                f"prefix is a directory such as 'fencing/': parts of A-Z a-z 0-9 _ - and inner dots, each ended by a "
                f"slash, not {self.prefix!r}"
            )
        if len(self.prefix) > MAX_PREFIX:
            raise ValueError(f"prefix has at most {MAX_PREFIX} characters, not {len(self.prefix)}")

    def directory(self, resource: str) -> Directory:
        return Directory(f"{self.prefix}{escape(resource)}/")

    @property
    def probe(self) -> str:
        return f"{self.prefix}=probe/"  # no escaped resource has this name

"""A body with what the store keeps beside its bytes: the headers of its answers, metadata, and tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

NO_TEXTS: Mapping[str, str] = MappingProxyType({})

MOST_METADATA_BYTES = 2048
"""Names and values together. S3 takes as many; the others take more."""

MOST_TAGS = 10
MOST_TAG_NAME, MOST_TAG_VALUE = 128, 256

_METADATA_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_HEADER = re.compile(r"[!-~]([ -~]*[!-~])?")
_TAG = re.compile(r"[A-Za-z0-9 +=./:_-]*")


@dataclass(frozen=True, slots=True)
class Upload:
    """A body, with what the store keeps beside its bytes. Pass it to ``publish`` in the place of the body.

    A publication does **not** show these again: they are for whoever gets the object from the store itself. Nothing is
    guessed from the name. An object with any of them is always uploaded, also where its bytes have not changed.

    Args:
        body: as ``publish`` takes it, but no entry: an entry keeps what it was stored with.
        content_type: such as ``"text/csv"``. Empty: what the store takes by default.
        cache_control: such as ``"max-age=3600"``. Empty: none.
        metadata: texts by names of a-z, 0-9 and ``_``, which all stores take. 2,048 bytes together at most.
        tags: texts by names, for rules and bills: 10 at most. Google Cloud Storage has none, so they are refused there.

    Raises:
        TypeError, ValueError: one of them is malformed. The text says which.
    """

    __module__ = "storage_guards"

    body: Any
    content_type: str = ""
    cache_control: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.body, Upload):
            raise TypeError("the body of an Upload is itself an Upload; pass one of them")
        for label, value in (("content_type", self.content_type), ("cache_control", self.cache_control)):
            if value:
                _check_header(label, value)
        for name, value in _items("metadata", self.metadata):
            if not _METADATA_NAME.fullmatch(name):
                raise ValueError(f"the metadata's name {name!r} has more than a-z, 0-9 and _, which all stores take")
            _check_header(f"the metadata's {name!r}", value)
        size = sum(len(name) + len(value) for name, value in self.metadata.items())
        if size > MOST_METADATA_BYTES:
            raise ValueError(f"the metadata have {size} bytes; use at most {MOST_METADATA_BYTES}")
        for name, value in _items("tags", self.tags):
            if not (name and len(name) <= MOST_TAG_NAME and len(value) <= MOST_TAG_VALUE):
                raise ValueError(f"the tag {name!r} is empty or too long: {MOST_TAG_NAME} and {MOST_TAG_VALUE} at most")
            if not (_TAG.fullmatch(name) and _TAG.fullmatch(value)):
                raise ValueError(f"the tag {name!r} has more than letters, digits, spaces and + - = . _ : /")
        if len(self.tags) > MOST_TAGS:
            raise ValueError(f"there are {len(self.tags)} tags; use at most {MOST_TAGS}")

    @property
    def attributes(self) -> dict[str, str]:
        """The headers and metadata, as obstore takes them."""
        headers = {"Content-Type": self.content_type, "Cache-Control": self.cache_control}
        return {name: value for name, value in headers.items() if value} | dict(self.metadata)


def _items(label: str, given: Any) -> list[tuple[str, str]]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{label} is a mapping of names to texts, not {type(given).__name__}")
    for name, value in given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"{label} has texts by names, not {name!r}: {value!r}")
    return list(given.items())


def _check_header(label: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{label} is a str, not {type(value).__name__}")
    if not _HEADER.fullmatch(value):
        raise ValueError(f"{label} is {value!r}: use visible ASCII characters, and spaces inside; encode other texts")

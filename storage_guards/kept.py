"""What a pointer keeps beside the mark of a holder: a reader without a holder, and keys that are done.

The pointers of objects and of files have places for both. Publications of objects fill the keys. No version fills the
rest yet. It is read strictly, and carried forward unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from fencing.kernel.admission import admit_claim
from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import Fence, Mark, check_number
from storage_guards.once import MOST_KEY_BYTES

MOST_DONE = 100
"""How many keys of a resource a pointer keeps."""


@dataclass(frozen=True, slots=True)
class NoHolder:
    """Stands in the place of a mark where a reader was admitted, and no holder yet. A write is never its own.

    It has the parts of a mark: its token is empty, and its seq is 0.

    Args:
        number: the highest number among pruned marks at that time; 0: none.
        readers: the highest number of a reader.
    """

    number: int
    readers: int

    token = ""
    seq = 0

    def __post_init__(self) -> None:
        for value, label in (self.number, "a number without a holder"), (self.readers, "a mark's readers"):
            if type(value) is not int or value:
                check_number(value, label)

    @property
    def newest(self) -> int:
        """The highest number that the storage has admitted. A new fence must exceed it."""
        return max(self.number, self.readers)


Kept = Mark | NoHolder


def kept_mark(number: Any, token: Any, seq: Any, readers: Any) -> Kept:
    """Return the mark of these parts, or what stands in its place. Raise TypeError or ValueError if it is neither."""
    if token != "":
        return Mark(number, token, seq, readers)
    if type(seq) is not int or seq:
        raise ValueError("without a token it has a seq")
    return NoHolder(number, readers)


def mark_of(kept: Kept | None) -> Mark | None:
    """Return the mark that is kept. None: there is none, or no holder's yet."""
    return kept if isinstance(kept, Mark) else None


def admit_claim_at(kept: Kept | None, fence: Fence) -> Mark:
    """Apply the rule for a claim, as :func:`fencing.kernel.admission.admit_claim`, to what is kept."""
    if isinstance(kept, NoHolder):
        return replace(admit_claim(None, fence, kept.newest), readers=kept.readers)
    return admit_claim(kept, fence)


class Done(NamedTuple):
    """When a key was done, and under the fence of which number."""

    number: int
    at: datetime


@dataclass(frozen=True, slots=True)
class DoneKeys:
    """The keys of a resource that are done.

    Args:
        floor: an absent key that is not above it, byte by byte, is refused. Empty: none is.
        keys: at most 100, of 255 bytes of UTF-8 each.
    """

    floor: str = ""
    keys: Mapping[str, Done] = field(default_factory=dict)

    @classmethod
    def read(cls, shown: Any) -> DoneKeys:
        """Return the keys in a value of JSON. Raise KeyError, TypeError or ValueError where it is malformed."""
        floor, keys = members(shown, "floor", "keys")
        if not isinstance(floor, str) or not isinstance(keys, dict) or len(keys) > MOST_DONE:
            raise ValueError("its keys that are done are malformed, or too many")
        if any(len(key.encode()) > MOST_KEY_BYTES for key in (floor, *keys)) or "" in keys:
            raise ValueError("a key that is done is empty or too long")
        return cls(floor, {key: _done(each) for key, each in keys.items()})

    def with_key(self, key: str, done: Done) -> DoneKeys:
        """Return the keys with one more, which must be new. The lowest of too many goes, and becomes the floor."""
        keys, floor = {**self.keys, key: done}, self.floor
        if len(keys) > MOST_DONE:
            floor = min(keys, key=str.encode)
            del keys[floor]
        return DoneKeys(floor, keys)

    def is_too_old(self, key: str) -> bool:
        """Return whether a key that is not there is at or below the floor, byte by byte."""
        return bool(self.floor) and key.encode() <= self.floor.encode()

    def shown(self) -> dict[str, Any]:
        """Return the value of JSON."""
        keys = {key: {"number": done.number, "at": done.at.isoformat()} for key, done in self.keys.items()}
        return {"floor": self.floor, "keys": keys}


NOTHING_DONE = DoneKeys()


def _done(shown: Any) -> Done:
    number, at = members(shown, "number", "at")
    return Done(check_number(number), read_time(at))


def read_json(data: bytes) -> Any:
    """Return the value of JSON in UTF-8. Raise ValueError where it is none, or where an object has a member twice."""
    return _decoder.decode(data.decode("utf-8"))


def _members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a member is there twice")
    return found


_decoder = json.JSONDecoder(object_pairs_hook=_members_once)


def members(shown: Any, *names: str, **defaults: Any) -> list[Any]:
    """Return the members of an object of JSON, with defaults for those that may be absent.

    Raises:
        KeyError, TypeError, ValueError: it is no such object, or has other members. They would be lost in a change.
    """
    if not isinstance(shown, dict):
        raise TypeError(f"an object is needed, not {type(shown).__name__}")
    found = [shown[name] for name in names]
    if len(shown) > len(names) + sum(name in shown for name in defaults):
        raise ValueError(f"unknown members: {sorted(shown.keys() - {*names, *defaults})!r:.60}")
    return found + [shown.get(name, default) for name, default in defaults.items()]


def read_time(text: Any) -> datetime:
    """Return a time of ISO 8601 that has a zone. Raise TypeError or ValueError otherwise."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time in it has no zone")
    return time


def newer_version(what: str, found: str) -> GuardNotEnforceable:
    """Return the error for something kept whose format is of a newer version."""
    return GuardNotEnforceable(
        f"{what} was written by a newer version of this library (its format is {found!r}); upgrade this one, in all "
        f"programs that write there"
    )

"""Which nodes are in ZooKeeper, and what they hold. No I/O.

The layout is that of kazoo's own recipe of a lock. Each waiter and the holder have an ephemeral node below the name of
the lock. The one with the lowest sequence number is the holder's. So ``client.Lock("/fencing/1/lock/NAME")`` excludes
these locks, and is excluded by them: https://kazoo.readthedocs.io/en/latest/api/recipe/lock.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import MAX_NUMBER

ROOT = "/fencing/1"
"""Where all nodes are; 1 is the version of the layout."""

LOCKS = f"{ROOT}/lock"
BASES = f"{ROOT}/base"
"""Has one child, whose name is the number that is added to the position of a grant. All locks share it.

A name, and not the data: after a data loss another base could have the version of the one that was read."""

PARENTS = ("/fencing", ROOT, LOCKS, BASES)

MOST_BYTES = 10_000
"""What is longer is no record."""

_MARK = "__lock__"
_NODE = re.compile(rf"(?P<token>[^~]*)(~.*)?{_MARK}(?P<order>-\d{{9,10}}|\d{{10}})", re.DOTALL)
_MOST_DIGITS = len(str(MAX_NUMBER))


class Record(NamedTuple):
    """The data of a node of ours. That of another program is its own.

    Args:
        base: the number of a grant is this and the position of the node's last write; None: it waits.
        owner: the label of the waiter, or the holder.
    """

    base: int | None
    owner: str

    @property
    def data(self) -> bytes:
        """The record as it is stored."""
        return json.dumps(["fencing", *self], ensure_ascii=False).encode()


def record_of(data: bytes) -> Record | None:
    """Return the record of a node; None: it is of another program."""
    if not data.startswith(b'["fencing", ') or len(data) > MOST_BYTES:
        return None
    try:
        _, base, owner, *_ = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return None
    is_base = base is None or (type(base) is int and 0 <= base <= MAX_NUMBER)
    return Record(base, owner) if is_base and type(owner) is str and owner.isprintable() else None


def number_of(record: Record | None, position: int) -> int | None:
    """Return the number of the grant whose node was written last at this position; None: it has none."""
    return None if record is None or record.base is None else record.base + position


class Node(NamedTuple):
    """A node of the queue of a lock."""

    order: int
    name: str
    token: str


def nodes_of(names: Iterable[str]) -> list[Node]:
    """Return the queue, the holder first, from the names of the children of a lock."""
    found = ((_NODE.fullmatch(name), name) for name in names)
    return sorted(Node(int(match["order"]), name, match["token"]) for match, name in found if match)


def queue_of(resource: str) -> str:
    """Return the path of a lock, whose children are its queue."""
    return f"{LOCKS}/{quoted(resource)}"


def place_of(resource: str, token: str) -> str:
    """Return the path of a node that is about to be created. ZooKeeper appends the sequence number."""
    return f"{queue_of(resource)}/{token}{_MARK}"


def taken_over(path: str, token: str, by: str) -> str:
    """Return the path of the node that replaces another one, at the same place of the queue.

    It is another path even if the token is the same. Then another client has repeated the request of the first one,
    whose renewal must not find its node.

    Args:
        by: stands for the client.
    """
    parent, _, name = path.rpartition("/")
    new = f"{token}{_MARK}{name.rpartition(_MARK)[2]}"
    return f"{parent}/{new if new != name else new.replace(_MARK, f'~{by}{_MARK}')}"


def quoted(resource: str) -> str:
    """Return the name of a resource as that of a node, which may have neither ``/`` nor NUL, nor be ``.`` or ``..``."""
    name = quote(resource, safe=" :@=+,")
    return name.replace(".", "%2E") if not name.strip(".") else name


def resource_of(name: str) -> str:
    """Return the resource of a node's name."""
    return unquote(name)


def base_in(names: Iterable[str], address: str) -> int | None:
    """Return the stored base; None: there is none.

    Raises:
        CoordinatorUnavailable: it is no number, or a newer version has written it.
    """
    bases = []
    for name in names:
        if not (len(name) <= _MOST_DIGITS and name.isascii() and name.isdigit() and str(int(name)) == name):
            raise CoordinatorUnavailable(
                f"{BASES} at ZooKeeper ({address}) has {name!r:.40}, which is no number of this version. If a newer "
                f"version of this library has written it, upgrade this program; if not, delete it",
                refused=True,
            )
        bases.append(int(name))
    return max(bases, default=None)

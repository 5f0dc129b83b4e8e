"""Which keys are in etcd, and what they hold. No I/O.

The layout is that of etcd's own recipe of a lock. Each waiter and the holder have a key below the name of the lock,
with a lease of its own. The key that was created first is the holder's. So ``etcdctl lock`` and Go's
``concurrency.Mutex`` exclude these locks, and are excluded by them:
https://pkg.go.dev/go.etcd.io/etcd/client/v3/concurrency#Mutex
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from fencing.etcd.calls import Key
from fencing.kernel.fence import Fence

PREFIX = "fencing/1/"
"""What all keys begin with; 1 is the version of the layout."""

LOCKS = PREFIX + "lock/"

BASE = PREFIX + "base"
"""The key of the number that is added to the revision of a grant. All locks of an installation share it.

It also tells the version. Each grant compares its value, so a version that writes another form stops this one."""

WAITING = "waiting"
"""The value of a waiter's key. A holder's is a record; that of etcd's own recipe is empty."""


_as_json = json.JSONEncoder(ensure_ascii=False).encode


class Record(NamedTuple):
    """The value of a holder's key.

    Args:
        token: of the grant.
        base: is kept with the grant. Read anew, a repeated request would get another number.
        owner: its label.
        granted_us: when, by the clock of the client, in microseconds since 1970. etcd tells no time.
        former: the lease of the grant that this one has replaced; 0: none.
        released_us: when the holder has released a lock that stays taken until its lease ends; 0: it has not. No
            coordinator of this version writes it.
    """

    token: str
    base: int
    owner: str
    granted_us: int
    former: int = 0
    released_us: int = 0

    @property
    def text(self) -> str:
        """The record as it is stored."""
        return _as_json(self)


def record_of(key: Key | None) -> Record | None:
    """Return the record of a holder; None: it is a waiter's key, or of another program."""
    if key is None or not key.value.startswith("["):
        return None
    try:
        token, base, owner, granted_us, former, released_us, *_ = json.loads(key.value)
        found = Record(str(token), int(base), str(owner), int(granted_us), int(former), int(released_us))
        Fence("a", number_of(key, found), found.token)  # its form
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return found


def number_of(key: Key, record: Record) -> int:
    """Return the number of a grant: by the write that made it, never by the one that queued its holder."""
    return record.base + key.modified


@lru_cache(maxsize=256)
def queue_of(resource: str) -> str:
    """Return what the keys of a lock begin with. The name is quoted: ``a/b`` must not lie in the queue of ``a``."""
    return f"{LOCKS}{quote(resource, safe=':')}/"


def own_key(resource: str, lease: int) -> str:
    """Return the key of a waiter, which is the holder's later."""
    return f"{queue_of(resource)}{lease:x}"


def resource_of(name: str) -> str:
    """Return the lock that a key belongs to; empty: to none. Another program's name may have any form."""
    resource = unquote(name.removeprefix(LOCKS).partition("/")[0])
    return resource if name.startswith(queue_of(resource)) else ""


def forced_key(token: str) -> str:
    """Return the key that tells who has forced a grant out. It does not contain the token."""
    return f"{PREFIX}forced/{hashlib.sha256(token.encode()).hexdigest()[:32]}"

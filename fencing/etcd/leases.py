"""The leases of a coordinator at etcd: which one a request uses, and when it serves another lock. No I/O.

A lease belongs to one key. When its lock was released, it may serve the next one, so that a lock takes two requests
and not three. That is right only for its maker, and only if no request of the lease is unanswered. A late acquire would
take the lock of before, and nobody would know. So whatever is in doubt is revoked: a late request then finds no lease.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import NamedTuple

from fencing.kernel import process

MOST_SPARE = 8
"""How many leases are kept for the next lock, of each ttl. Each ends by itself if nothing uses it."""

FRESH_SHARE = 0.1
"""For which share of its ttl a lease is used as it is. After that it is kept alive first."""

RENEWED_FRESH_SHARE = 1 / 3
"""The same for a lock that renews itself, as that comes soon then. A waiter's lease is never older: ``ALIVE_SHARE``."""

USABLE_SHARE = 0.6
"""After which share of its ttl a spare lease is left to end."""

OLD_AFTER = 10
"""How many times its ttl after it was made a lease serves no other lock. If a snapshot is restored, a key of before
may come back with the lease. It stays as long as that is used for other locks."""

MOST_IN_USE = 100_000


class Lease:
    """A lease that this process has made.

    Attributes:
        id: its number at etcd.
        ttl: whole seconds; of a lease that another call has made, no more than etcd tells.
        alive_at: the moment before the last request that gave it its full ttl, and was answered.
        made_at: the moment before it was made; 0: it is not.
        is_clean: no request of it is unanswered.
        serves: the key of its lock, and the revision of the grant; None: it serves no lock.
    """

    __slots__ = ("alive_at", "id", "is_clean", "made_at", "serves", "ttl")

    def __init__(self, ttl: int) -> None:
        self.id = secrets.randbits(62) + 1
        self.ttl = ttl
        self.alive_at = self.made_at = 0.0
        self.is_clean = True
        self.serves: tuple[str, int] | None = None


class Kept(NamedTuple):
    """What a grant keeps for the backend.

    Args:
        lease: of its key; of a lease that another process has made, ``is_clean`` is False.
        key: its name.
        modified: the revision of the write that made the grant.
        release: has one item, until a release takes it. That one decides what becomes of the lease. Another one at the
            same time must not revoke it: it may serve the next lock by then.
    """

    lease: Lease
    key: str
    modified: int
    release: list[None]

    @property
    def is_served(self) -> bool:
        """Whether the lease still serves this grant. After a release it may serve another one."""
        return self.lease.serves == (self.key, self.modified)


class Leases:
    """The leases of one coordinator. A forked child has none of its parent's."""

    def __init__(self) -> None:
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._spare: dict[int, deque[Lease]] = {}
        self._asked: dict[str, Lease] = {}

    def lend(self, token: str, ttl: int, now: float) -> Lease:
        """Return a lease for the request of a token: a spare one, or one that must be made (``alive_at`` is 0).

        While no answer has come, :meth:`of` tells it.
        """
        spare, found = self._spare.get(ttl), None
        while spare and found is None:
            try:
                found = spare.pop()
            except IndexError:  # another thread has taken it
                break
            if now - found.alive_at > USABLE_SHARE * ttl or now - found.made_at > OLD_AFTER * ttl:
                found = None
        lease = Lease(ttl) if found is None else found
        if len(self._asked) >= MOST_IN_USE:  # each is of a release that has failed for an hour
            self._asked.pop(next(iter(self._asked)), None)
        self._asked[token] = lease
        return lease

    def of(self, token: str) -> Lease | None:
        """Return the lease of a token whose request is under way, or was not answered."""
        return self._asked.get(token)

    def forget(self, token: str) -> None:
        """Note that the request of a token was answered."""
        self._asked.pop(token, None)

    def has_room(self, lease: Lease) -> bool:
        """Return whether the lease may serve another lock."""
        return lease.is_clean and len(self._spare.get(lease.ttl, ())) < MOST_SPARE

    def give_back(self, lease: Lease) -> bool:
        """Keep a lease that serves no lock any more, for the next one. Return False if it must be revoked instead.

        A renewal that runs at this moment first says that the lease is not clean, and then looks whom it serves.
        """
        lease.serves = None
        if not self.has_room(lease):
            return False
        self._spare.setdefault(lease.ttl, deque(maxlen=2 * MOST_SPARE)).append(lease)
        return True


def is_fresh(lease: Lease, now: float, *, renews: bool) -> bool:
    """Return whether a lease may be used as it is, for a lock that renews itself or not."""
    return now - lease.alive_at <= (RENEWED_FRESH_SHARE if renews else FRESH_SHARE) * lease.ttl

"""What each plan of an etcd coordinator uses: a request that is repeated, the log-in, the base of numbers. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fencing.etcd.calls import (
    AUTHENTICATE,
    Call,
    Key,
    Step,
    body_of,
    compare,
    encode,
    of_leases,
    put,
    read,
    transaction,
)
from fencing.etcd.layout import BASE
from fencing.etcd.leases import Lease
from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import MAX_NUMBER
from fencing.kernel.retry import LEAST_SECONDS, Answer, NoReply
from fencing.locks.backend import Backend
from fencing.locks.numbers import LogBase, log_base
from fencing.locks.settings import Settings

MOST_DIGITS = len(str(MAX_NUMBER))

MOST_TERMS = 5
"""How often leases are kept alive again because the leader has changed meanwhile."""

SAFE_BASE = MAX_NUMBER - 2**50
"""Below it, no position of the log makes a number that is too high: etcd would need 35 years at a million a second."""

NO_USERS = "authentication is not enabled"
"""What a server says that has none. They may come, and go, while a coordinator works."""

LEAST_SHARE_SECONDS = 0.25
"""The least time for one member of several, however little a call has left."""


def unchanged(numbers: LogBase) -> Step:
    """Return the condition that the stored base is still the one that was read."""
    stored = numbers.stored
    return compare(BASE, "CREATE", 0) if stored is None else compare(BASE, "VALUE", encode(str(stored)))


def base_in(found: Key | None) -> int | None:
    """Return the stored base, where its key was read; None: there is none.

    Raises:
        CoordinatorUnavailable: the key holds no number, or a newer version has written it.
    """
    if found is None:
        return None
    text = found.value
    if not (len(text) <= MOST_DIGITS and text.isascii() and text.isdigit() and str(min(int(text), MAX_NUMBER)) == text):
        raise CoordinatorUnavailable(
            f"the key {BASE} at etcd holds no number of this version, but {text!r:.40}. If a newer version of this "
            f"library has written it, upgrade this program; if it is damaged, delete it, and numbers begin at the "
            f"clock",
            refused=True,
        )
    return int(text)


def lifted(numbers: LogBase) -> list[Step]:
    """Return the step that stores the base of the grant."""
    return [put(BASE, str(numbers.base))] if numbers.is_new else []


class EtcdRequests(Backend):
    """The requests of all plans.

    Attributes:
        base: the one that was stored when it was last read; None: it was not read, or there is none.
    """

    service = "etcd"
    clock_floor: bool = True
    user: tuple[str, str] | None = None
    """Name and password."""
    members: int = 1
    """How many may be asked."""

    base: int | None = None
    _credentials: str | None = None
    """The token of the user who has logged in; empty: the server has no users; None: nobody has tried."""

    def plan_base(self, resource: str, settings: Settings, floor: int, deadline: float) -> Plan[LogBase]:
        """Return a base with which the next number exceeds the floor."""
        if self.base is not None and self.base < SAFE_BASE and not floor:
            return LogBase(self.base, self.base)
        answer = yield from self.plan_request(
            "kv/txn", body_of(transaction([], [read(BASE)], [])), resource, settings, deadline
        )
        self.base = base_in(answer.value.first_key(0))
        return log_base(
            resource,
            stored=self.base,
            position=answer.value.revision,
            floor=floor,
            clock_us=time.time_ns() // 1000,
            clock_floor=self.clock_floor,
        )

    def plan_keep_alive(self, lease: Lease, resource: str, settings: Settings, deadline: float) -> Plan[float | None]:
        """Give a lease its full ttl, and return the moment before; None: it is over."""
        was_clean, lease.is_clean = lease.is_clean, False
        answer, _ = yield from self.plan_alive([lease.id], [], resource, settings, deadline)
        lease.is_clean = was_clean and not answer.repeated
        ttl = answer.value.message.get("TTL")
        if ttl is None:
            return None
        lease.ttl, lease.alive_at = min(lease.ttl, int(ttl)), answer.sent_at
        return lease.alive_at

    def plan_alive(
        self, leases: Sequence[int], own: list[Step], about: str, settings: Settings, deadline: float
    ) -> Plan[tuple[Answer, bool]]:
        """Give leases their full ttl. Return the answer, with a message for each, and whether all conditions held.

        A leader that was frozen keeps leases alive before it learns that another one leads, where they end earlier:
        https://github.com/etcd-io/etcd/issues/15247. Its messages have the term of before. A majority stands behind a
        read that is linearizable. If that has the same term, the one that renewed the leases was still the leader.

        Args:
            own: conditions of the read.
        """
        alive, check = of_leases(leases), body_of(transaction(own, [read(BASE)], []))  # without a read it is local
        repeated = False
        for _ in range(MOST_TERMS):
            answer = yield from self.plan_request("lease/keepalive", alive, about, settings, deadline)
            repeated = repeated or answer.repeated
            behind = yield from self.plan_request("kv/txn", check, about, settings, deadline)
            if len(answer.value.messages) == len(leases) and answer.value.terms == behind.value.terms:
                return Answer(answer.value, answer.sent_at, repeated), behind.value.succeeded
        text = f"etcd at {self.address} has changed its leader {MOST_TERMS} times during a renewal; retry"
        raise CoordinatorUnavailable(text, resource=about, address=self.address)

    def plan_of_lease(
        self,
        lease: Lease,
        path: str,
        body: bytes,
        resource: str,
        settings: Settings,
        deadline: float,
        may_take: str | None = None,
    ) -> Plan[Answer]:
        """Make a request of a lease, which is clean afterwards only if each attempt was answered."""
        was_clean, lease.is_clean = lease.is_clean, False
        answer = yield from self.plan_request(path, body, resource, settings, deadline, may_take=may_take)
        lease.is_clean = was_clean and not answer.repeated
        return answer

    def plan_transaction(
        self,
        resource: str,
        steps: Step,
        settings: Settings,
        deadline: float,
        lease: Lease,
        may_take: str | None,
    ) -> Plan[Answer]:
        return self.plan_of_lease(lease, "kv/txn", body_of(steps), resource, settings, deadline, may_take)

    def plan_request(
        self,
        path: str,
        body: bytes,
        about: str,
        settings: Settings,
        deadline: float,
        *,
        may_take: str | None = None,
        is_release: bool = False,
    ) -> Plan[Answer]:
        """Make a request, and repeat it until it is answered. Log in where the credentials are missing or expired."""

        def attempt(timeout: float, last: bool) -> Call:
            if self.members > 1:  # one that is silent leaves half of the time for the next one
                timeout = min(timeout, max((deadline - self.clock()) / 2, LEAST_SHARE_SECONDS))
            return Call(path, body, timeout, is_release, self.credentials())

        if self.user is not None and self._credentials is None:
            yield from self._plan_log_in(about, settings, deadline, is_release=is_release)
        repeated = False
        while True:
            used, sent_at = self._credentials, self.clock()
            try:  # nearly always it is answered at once
                value = yield attempt(max(min(settings.attempt_seconds, deadline - sent_at), LEAST_SECONDS), False)
            except NoReply as failure:
                answer = yield from self.plan_until_answered(
                    attempt, about, settings, deadline, may_take=may_take, failure=failure
                )
                value, sent_at, repeated = answer.value, answer.sent_at, repeated or answer.repeated
            refused = value.refused
            if refused is None or not refused.is_unauthenticated:
                return Answer(value, sent_at, repeated)
            if self.user is None or self.clock() >= deadline:
                raise CoordinatorUnavailable(
                    f"etcd at {self.address} refused the request: {refused.text}; pass user and password",
                    resource=about,
                    address=self.address,
                    refused=self.user is None,
                )
            if self._credentials == used:
                yield from self._plan_log_in(about, settings, deadline, is_release=is_release)

    def _plan_log_in(self, about: str, settings: Settings, deadline: float, *, is_release: bool) -> Plan[None]:
        assert self.user is not None
        name, password = self.user
        body = body_of({"name": name, "password": password})

        def attempt(timeout: float, last: bool) -> Call:
            return Call(AUTHENTICATE, body, timeout, is_release)

        answer = yield from self.plan_until_answered(attempt, about, settings, deadline)
        refused = answer.value.refused
        if refused and NO_USERS not in refused.text:
            raise CoordinatorUnavailable(
                f"etcd at {self.address} refused the user {name!r}: {refused.text}",
                resource=about,
                address=self.address,
                refused=True,
            )
        self._credentials = "" if refused else answer.value.message["token"]

    def credentials(self) -> str:
        """Return the token of the user who has logged in; empty: none has."""
        return self._credentials or ""

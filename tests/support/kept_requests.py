"""Calls of a coordinator whose requests are kept on their way, and arrive after the client went on without them.

A proxy keeps a request, and what the client sends behind it over the same connection. The attempt ends, by its time-out
or with its connection. The client goes on over a new connection. Later the kept bytes arrive: at a moment of the story.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeVar
from unittest.mock import patch

import pytest

from fencing import CoordinatorUnavailable, Fence, LeaseLost, NotAcquired
from fencing.locks import settings
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support import wait_until
from tests.support.servers import Loss, Proxy
from tests.support.sides import Side

TTL = 20.0
"""Far longer than a story, however busy the machine is: who believes and is not told of a loss does so rightly."""

MOST_HURRIED = 20
"""How often a story is begun that the machine was too busy for."""

MOST_REQUESTS = 30
PATIENCE = 10.0

T = TypeVar("T")

_names = itertools.count()


class Late(NamedTuple):
    """What is late.

    Args:
        first: which request of the call is kept first, from 1.
        requests: how many are kept, each with what its connection sends behind it.
        cut: behind how many pieces each connection breaks off; 0: when the client ends it.
        nodes: at how many of several nodes, each with a count of its own; 0: at any server.
    """

    first: int = 1
    requests: int = 1
    cut: int = 0
    nodes: int = 0


class Tale(NamedTuple):
    """How the story goes on after the call, and when the kept bytes arrive.

    Args:
        ending: how the leases end: they are released, or forced free while their holder believes in them.
        moment: when the bytes arrive.
    """

    ending: str
    moment: str


TALES = [
    *(Tale("released", moment) for moment in ("returned", "ended", "taken", "freed")),
    *(Tale("forced", moment) for moment in ("ended", "taken", "freed")),
]


class Bench(Protocol):
    """A backend behind proxies.

    Attributes:
        side: of its coordinators.
        proxies: one for each server.
        attempt_seconds: the time limit of one request of the tested coordinator.
        direct: a coordinator that uses no proxy.
        only_named: whether only those requests count that name the lock; the others are those of waiters.
    """

    side: Side
    proxies: list[Proxy]
    attempt_seconds: float
    direct: Any
    only_named: bool

    def through(self) -> Any:
        """A new coordinator that goes through the proxies."""

    def is_waiting(self, coordinator: Any, name: str) -> bool:
        """Whether its call waits for the lock, and asks nothing now."""


@contextmanager
def short_attempts(seconds: float) -> Iterator[None]:
    """Limit each request to so many seconds, and a call without a time-out to twice that."""
    with patch.object(settings, "LONGEST_ATTEMPT_SECONDS", seconds), patch.object(settings, "TRY_SECONDS", seconds):
        yield


def is_waited_for(side: Side, coordinator: Any, name: str) -> bool:
    """Whether a coordinator has waiters for a lock."""
    if not side.asynchronous:
        return bool(coordinator._backend.is_waited_for(name))

    async def ask() -> bool:  # on the loop of the waiters
        return bool(coordinator._backend.is_waited_for(name))

    return bool(side.call(ask))


class Kept:
    """The requests that the proxies keep. Only those count that have ``part`` in them."""

    def __init__(self, proxies: Sequence[Proxy], late: Late, part: bytes = b"") -> None:
        self._proxies, self._part = proxies, part
        self._losses: list[Loss] = []
        shared = itertools.count(1)
        for proxy in proxies[: late.nodes or None]:
            self._hold(proxy, late, itertools.count(1) if late.nodes else shared)

    def _hold(self, proxy: Proxy, late: Late, numbers: Iterator[int]) -> None:
        now = 0

        def number(request: bytes) -> bool:
            nonlocal now
            now = next(numbers) if self._part in request else 0
            return False

        def is_now(index: int) -> Callable[[bytes], bool]:
            return lambda _: now == index

        proxy.drop_request_when(number)  # it never matches, and is asked first
        for index in range(late.first, late.first + late.requests):
            self._losses.append(proxy.stall_connection_when(is_now(index), cut_when=_pieces(late.cut)))

    @property
    def any(self) -> bool:
        return any(loss.fired for loss in self._losses)

    def deliver(self) -> None:
        """Deliver what is kept, in the order in which it was sent, and wait until the server has worked it off."""
        for loss in self._losses:
            if loss.fired:
                loss.deliver()

    def forget(self) -> None:
        for proxy in self._proxies:
            proxy.restore()


def _pieces(count: int) -> Callable[[bytes], bool] | None:
    if count == 0:
        return None
    seen = itertools.count(1)
    return lambda _: next(seen) >= count


class Broken(AssertionError):
    """A promise is broken."""


class Hurried(Exception):
    """A call failed before any request was kept: the machine is too busy for its short time limits."""


class Story:
    """One call with late requests, and what comes after it.

    Args:
        call: makes the call.
    """

    def __init__(self, bench: Bench, call: type[Call], late: Late, tale: Tale) -> None:
        self.bench, self.side, self.late, self.tale = bench, bench.side, late, tale
        self.name = f"late {next(_names)}"
        self.delivered = False
        self.leases: list[Any] = []
        self.forced: list[Any] = []
        self.own: Any = None
        self._made: list[Any] = []
        with short_attempts(bench.attempt_seconds if call.attempt_seconds is None else call.attempt_seconds):
            self.tested = bench.through()
        for _ in range(2):  # the first use may also ask for a version
            self.ask(self.ask(self.tested.acquire, f"{self.name} before", timeout=PATIENCE).release)
        self.call = call(self)

    def ask(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function, and repeat it with the same objects while the error says so, for a ttl and a little more."""
        deadline = time.monotonic() + TTL + PATIENCE
        while True:
            try:
                return self.side.call(function, *args, **options)  # type: ignore[no-any-return]
            except (CoordinatorUnavailable, NotAcquired) as error:
                is_final = isinstance(error, NotAcquired) and error.reason != "unreplicated"
                if is_final or time.monotonic() > deadline:
                    raise

    def free(self, lease: Any, what: str) -> None:
        """Release a lease that is held. One that got no answer may have freed it, so its repetition cannot tell."""
        asked = itertools.count()

        def release() -> Any:
            next(asked)
            return lease.release()

        if self.ask(release) is not True and next(asked) == 1:
            raise Broken(f"{what} was not held when it was released")

    def play(self) -> bool:
        """Play it. Return False if the call sent fewer requests.

        Raises:
            Broken: two believe at once, a lease that lives is not held, or one that has ended is.
        """
        try:
            with short_attempts(self.call.attempt_seconds or self.bench.attempt_seconds):
                self.call.prepare()
                self.kept = Kept(self.bench.proxies, self.late, self.name.encode() if self.bench.only_named else b"")
                try:
                    self.leases = self.call.make()
                except (CoordinatorUnavailable, NotAcquired) as error:
                    if not self.kept.any:
                        raise Hurried from error
            self._made += self.leases
            if not self.kept.any:
                return False
            self._go_on()
            return True
        finally:
            if hasattr(self, "kept"):
                self.kept.forget()
            for lease in self._made:
                with suppress(CoordinatorUnavailable):
                    self.side.call(lease.release)
            self.side.call(self.tested.close)

    def _go_on(self) -> None:
        self.at("returned")
        if self.tale.ending == "forced":
            for lease in self.leases:
                self.ask(self.bench.direct.force_release, lease.fence.resource)
            self.forced += self.leases
            self.leases = []
        for lease in self.leases:
            self.free(lease, "a lease that lived")
        self.leases = []
        self.at("ended")
        self.own = self.take()
        self.at("taken")
        self.free(self.own, "the next holder's lease")
        self.own = None
        self.at("freed")
        self.ask(self.take().release)
        self.leases = [self.take(self.tested)]
        self.inspect()

    def at(self, moment: str) -> None:
        """Deliver the kept bytes, if this is the moment, and look whether the promises are kept."""
        if moment == self.tale.moment and self.kept.any:
            self.kept.deliver()
            self.delivered = True
        if self.delivered:
            self.inspect()

    def inspect(self) -> None:
        for lease in self.forced:
            try:
                self.ask(lease.renew)
            except LeaseLost:
                continue
            raise Broken("a lease that was forced free lives again")
        believing = [*self.leases, *filter(None, [self.own])]
        for lease in believing:
            left = lease.remaining()
            if lease.fence.resource == self.name and len(believing) > len(self.leases) > 0:
                raise Broken("two believe at once")
            try:
                self.ask(lease.renew)
            except LeaseLost as error:
                who = "the next holder" if lease is self.own else "the caller"
                raise Broken(f"{who} believed for {left:.1f} s more, and the lock was gone: {error}") from error
            holder = self.ask(self.bench.direct.holder, lease.fence.resource)
            if holder is None or holder.number != lease.fence.number:
                raise Broken(f"{holder} holds what is held under the number {lease.fence.number}")

    def take(self, coordinator: Any = None) -> Any:
        """Take the lock, as somebody else if nobody is named. What came late takes it for one ttl at most."""
        coordinator = coordinator or self.bench.direct
        deadline = time.monotonic() + TTL + PATIENCE
        while True:
            lease = self.ask(coordinator.try_acquire, self.name)
            if lease is not None:
                self._made.append(lease)
                return lease
            holder = self.ask(self.bench.direct.holder, self.name)
            if holder is not None:
                if holder.remaining is None or holder.remaining > TTL:
                    raise Broken(f"{holder} holds a lock that has ended")
                self.ask(self.bench.direct.force_release, self.name)
            if time.monotonic() > deadline:
                raise Broken("nobody holds the lock, and it cannot be taken")


class Call:
    """A call of the tested coordinator.

    Attributes:
        attempt_seconds: the time limit of its requests; None: that of the backend.
    """

    attempt_seconds: float | None = None

    def __init__(self, story: Story) -> None:
        self.story, self.side, self.name = story, story.side, story.name
        self.tested, self.direct = story.tested, story.bench.direct

    def prepare(self) -> None:
        """Do what comes before it."""

    def make(self) -> list[Any]:
        """Make it, and return the leases that it brought."""
        raise NotImplementedError


class TryAcquire(Call):
    def make(self) -> list[Any]:
        lease = self.side.call(self.tested.try_acquire, self.name)
        return [] if lease is None else [lease]


class Acquire(Call):
    """There is time for one attempt only, if it does not end earlier: so a release is sent behind it."""

    attempt_seconds = 1.0

    def make(self) -> list[Any]:
        return [self.side.call(self.tested.acquire, self.name, timeout=0.9)]


class AcquireForLong(Call):
    def make(self) -> list[Any]:
        return [self.side.call(self.tested.acquire, self.name, timeout=PATIENCE)]


class WaitForLong(Call):
    """Another one holds the lock until the call waits for it."""

    def prepare(self) -> None:
        self._first = self.story.take()

    def make(self) -> list[Any]:
        story, leases, errors = self.story, list[Any](), list[Exception]()

        def acquire() -> None:
            try:
                leases.append(self.side.call(self.tested.acquire, self.name, timeout=PATIENCE))
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)

        thread = threading.Thread(target=acquire)
        thread.start()
        wait_until(lambda: story.bench.is_waiting(self.tested, self.name) or not thread.is_alive())
        if story.tale == Tale("released", "returned"):
            story.own = self._first
            story.at("returned")
            story.own = None
        freed_at = time.monotonic()
        story.free(self._first, "the first holder's lease")
        thread.join()
        if story.delivered and not errors and (took := time.monotonic() - freed_at) > PATIENCE / 3:
            raise Broken(f"a waiter got the lock {took:.1f} s after it was freed")
        for error in errors:
            raise error if not story.delivered else Broken(f"a waiter did not get a lock that is free: {error!r}")
        return leases


class Remint(Call):
    """A guard has admitted a higher number, so the first claim is refused."""

    def prepare(self) -> None:
        kind: Any = AsyncMemoryGuard if self.side.asynchronous else MemoryGuard
        guard = kind()
        self.side.call(guard.claim, Fence(self.name, int(time.time() * 1e6) + 60_000_000, "x" * 22))
        self._lock = self.tested.lock(self.name, guards=[guard])

    def make(self) -> list[Any]:
        return [self.side.call(self._lock.acquire, timeout=PATIENCE)]


class Adopt(Call):
    def prepare(self) -> None:
        lease = self.story.take()
        self._fence = self.side.call(lease.detach)

    def make(self) -> list[Any]:
        try:
            return [self.story.ask(self.tested.adopt, self._fence)]
        except LeaseLost as error:
            raise Broken(f"a lock that is held was not adopted: {error}") from error


class ForceRelease(Call):
    def prepare(self) -> None:
        self._first = self.story.take()

    def make(self) -> list[Any]:
        self.story.ask(self.tested.force_release, self.name)
        self.story.forced.append(self._first)
        return []


class HoldAll(Call):
    def make(self) -> list[Any]:
        self._hold = hold = self.tested.hold_all([self.name, f"{self.name} b"], timeout=PATIENCE)  # kept: its end frees
        return list(self.side.call(hold.__aenter__ if self.side.asynchronous else hold.__enter__))


class Renew(Call):
    def prepare(self) -> None:
        self._lease = self.side.call(self.tested.acquire, self.name, timeout=PATIENCE)

    def make(self) -> list[Any]:
        try:
            self.side.call(self._lease.renew)
        except CoordinatorUnavailable:
            pass  # the lease keeps its deadline
        return [self._lease]


class Release(Call):
    def prepare(self) -> None:
        self._lease = self.side.call(self.tested.acquire, self.name, timeout=PATIENCE)

    def make(self) -> list[Any]:
        self.story.ask(self._lease.release)
        return []


class ReleaseLater(Release):
    """As at the end of a block with ``at_least``: the lock stays taken, and is forced free."""

    def make(self) -> list[Any]:
        free_at = self.tested._backend.clock() + TTL / 2
        self.story.ask(self._lease._release_until, None, free_at)
        return []


CALLS: list[type[Call]] = [
    TryAcquire,
    Acquire,
    AcquireForLong,
    WaitForLong,
    Remint,
    Adopt,
    ForceRelease,
    HoldAll,
    Renew,
    Release,
    ReleaseLater,
]

EACH_CALL = [pytest.param(each, marks=pytest.mark.deep if each is WaitForLong else ()) for each in CALLS]
"""The arguments of a test; one of them takes a minute."""


def play(bench: Bench, call: type[Call], late: Late, tales: Sequence[Tale] = TALES) -> None:
    """Play each story with each request of a call.

    Args:
        late: what is kept from a request on; ``first`` is counted up until the call sends no more.

    Raises:
        Broken: with one line for each story in which a promise was broken.
    """
    found: list[str] = []
    for tale in tales:
        for first in range(late.first, MOST_REQUESTS):
            try:
                if not _played(bench, call, late._replace(first=first), tale):
                    break
            except Broken as broken:
                found.append(f"{call.__name__}, request {first}, {tale.ending}, {tale.moment}: {broken}")
        else:
            found.append(f"{call.__name__}: more than {MOST_REQUESTS} requests")
    if found:
        raise Broken("\n".join(found))


def _played(bench: Bench, call: type[Call], late: Late, tale: Tale) -> bool:
    """Play one story; again, if the machine was too busy for it. Return False if the call sent fewer requests."""
    for tries_left in reversed(range(MOST_HURRIED)):
        try:
            return Story(bench, call, late, tale).play()
        except Hurried:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")

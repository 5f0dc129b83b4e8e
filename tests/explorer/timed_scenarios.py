"""One Redis and Redlock with time: how far clocks may err, and what each rule of exclusion prevents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from fencing.kernel.effects import Plan
from fencing.kernel.errors import CoordinatorUnavailable, FencingError
from fencing.locks.holding import Grant, TtlRequest
from fencing.locks.lease import LeaseBase
from fencing.locks.settings import Settings
from tests.explorer.redlock_scenarios import GoesOnAtOnce
from tests.explorer.redlock_storage import LOST
from tests.explorer.simulated_redis import SimulatedRedis
from tests.explorer.timed_locks import (
    ACCEPTED,
    BELIEF_US,
    BOTH,
    EARLIEST_US,
    LAST_CHECK,
    SETTINGS,
    TTL,
    TTL_US,
    Client,
    Errs,
    Timed,
)

# Programs


def takes(client: Client) -> None:
    """Take the lock, and never release it."""
    client.acquire()


def retries(client: Client) -> None:
    """Ask a second time, at any later time, if the first one was refused. Before that, admit who has waited."""
    try:
        client.acquire()
    except FencingError:
        client.pause("is to ask again")
        client.backend.ready.add(0)  # as the coordinator notes of a node that came back
        client.acquire()


def renews(client: Client) -> None:
    """Renew it once, at any time."""
    lease = client.acquire()
    client.pause("is to renew")
    lease.renew()


def releases(client: Client) -> None:
    """Release it, at any time."""
    lease = client.acquire()
    client.pause("is to release")
    lease.release()


def shortens(client: Client) -> None:
    """Give the lock half of its ttl."""
    client.acquire()
    client.pause("is to shorten its ttl")
    client.shorten(SHORT)


def shortens_and_renews(client: Client) -> None:
    """Renew, though the shorter ttl may have no answer."""
    lease = client.acquire()
    with suppress(CoordinatorUnavailable):
        client.shorten(SHORT)
    lease.renew()


def updates(client: Client) -> None:
    """Read, look at ``remaining()``, and write."""
    lease = client.acquire()
    read = client.read()
    if lease.remaining() > 0:
        client.pause("looks at remaining(), and holds the lock")
        client.write(read)


SHORT = Settings(ttl=TTL / 2, owner="explorer", renew=False)
GUARDED = replace(SETTINGS, guards=(object(),))  # type: ignore[arg-type] # the explorer claims in its place


# How far clocks err

MARGIN_US = EARLIEST_US - BELIEF_US
"""What the clocks of a believer and of a node may err together. With one microsecond more, both believe."""

HALF = MARGIN_US // 2
WITHIN = Errs(HALF, 1, MARGIN_US - HALF, 1)
IN_PARTS = Errs(HALF // 2, 2, HALF // 2, 2)
BEYOND = Errs(HALF, 1, MARGIN_US + 1 - HALF, 1)
LONG = BELIEF_US - 1
"""One step of time, at whose end a lease is still believed for a microsecond."""

ONE = Timed("one Redis", (takes, takes), times=2, step_us=LONG)
NODES = Timed("Redlock", (takes, takes), nodes=3, times=2, step_us=LONG, prompt=True)
IN_TURN = replace(NODES, in_turn=True)
RESTARTS = replace(IN_TURN, clients=(takes, retries), restarts=1, most=12)


def _named(scenarios: dict[str, Timed]) -> dict[str, Timed]:
    return {name: replace(scenario, name=name) for name, scenario in scenarios.items()}


SAFE = _named(
    {
        "one Redis, within the margin": replace(ONE, errs=WITHIN),
        "one Redis, 3 clients": replace(ONE, clients=(takes,) * 3),
        "one Redis, a shorter ttl": replace(ONE, clients=(shortens, takes)),
        "one Redis, restarts without data after a ttl": replace(
            ONE, restarts=1, down_us=TTL_US, times=4, step_us=LONG // 3
        ),
        "Redlock, in turn": IN_TURN,
    }
)
"""What ``make test`` visits."""

DEEP = _named(
    {
        "one Redis, within the margin, in thirds": replace(ONE, errs=WITHIN, times=4, step_us=LONG // 3),
        "one Redis, within the margin, in parts": replace(ONE, errs=IN_PARTS),
        "one Redis, within the margin, both clients err": replace(ONE, errs=replace(WITHIN, losers=(0, 1))),
        "one Redis, renews, within the margin": replace(ONE, clients=(renews, takes), errs=WITHIN),
        "one Redis, renews, in thirds": replace(ONE, clients=(renews, takes), times=5, step_us=LONG // 3),
        "one Redis, releases, within the margin": replace(ONE, clients=(releases, takes), errs=WITHIN),
        "one Redis, within the margin, 1 request without an answer": replace(ONE, errs=WITHIN, lost=1),
        "one Redis, renews, 1 request without an answer": replace(ONE, clients=(renews, takes), lost=1),
        "one Redis, a shorter ttl, 1 request without an answer": replace(
            ONE, clients=(shortens_and_renews, takes), lost=1
        ),
        "one Redis, restarts with its data, within the margin": replace(ONE, errs=WITHIN, restarts=1, persists=True),
        "one Redis, restarts with its data after a ttl": replace(
            ONE, restarts=1, persists=True, down_us=TTL_US, times=4, step_us=LONG // 3
        ),
        "Redlock, within the margin, in turn": replace(IN_TURN, errs=WITHIN),
        "Redlock, at once": NODES,
        "Redlock, renews, in turn": replace(IN_TURN, clients=(renews, takes)),
        "Redlock, releases, in turn": replace(IN_TURN, clients=(releases, takes)),
        "Redlock, 1 request without an answer, in turn": replace(IN_TURN, lost=1),
    }
)
LARGE = _named(
    {
        "Redlock, an answer may be heard late": replace(NODES, prompt=False),
        "Redlock, every node within the margin, in turn": replace(IN_TURN, errs=replace(WITHIN, gainers=(0, 1, 2))),
        "Redlock, a node restarts without its data, in turn": RESTARTS,
        "Redlock, a node restarts with its data, in turn": replace(RESTARTS, persists=True),
    }
)
ALL = SAFE | DEEP | LARGE
"""What `make explore ARGS=--exclusion` visits."""

BROKEN = {
    name: (replace(scenario, name=name), length)
    for name, (scenario, length) in {
        "one Redis, a microsecond beyond the margin": (replace(ONE, errs=BEYOND), 9),
        "one Redis, the clock of the server gains all": (replace(ONE, errs=Errs(MARGIN_US + 1, 1)), 8),
        "one Redis, the clock of the holder loses all": (replace(ONE, errs=Errs(0, 0, MARGIN_US + 1, 1)), 8),
        "one Redis, restarts without data at once": (replace(ONE, restarts=1), 7),
        "Redlock, a microsecond beyond the margin": (replace(IN_TURN, errs=BEYOND), 11),
        "Redlock, the clock of one node gains all": (replace(IN_TURN, errs=Errs(MARGIN_US + 1, 1)), 10),
    }.items()
}
"""Where two believe to hold the lock all the same, and after how many steps."""


# Rules, each switched off


class AcquiresFromTheReply:
    """A grant whose time counts from its answer."""

    def plan_acquire(self, resource: str, token: str, settings: Settings, **more: Any) -> Plan[Any]:
        outcome = yield from super().plan_acquire(resource, token, settings, **more)  # type: ignore[misc]
        if isinstance(outcome, Grant):
            outcome.deadline = settings.deadline(self.clock())  # type: ignore[attr-defined]
        return outcome


class RenewsFromTheReply:
    """A renewal whose time counts from its answer."""

    def plan_renew_each(self, grants: Any, settings: Sequence[Settings], *, deadline: float) -> Plan[Any]:
        renewed = yield from super().plan_renew_each(grants, settings, deadline=deadline)  # type: ignore[misc]
        now = self.clock()  # type: ignore[attr-defined]
        return [its.deadline(now) if each else each for its, each in zip(settings, renewed, strict=True)]


class RenewsForAnybody(SimulatedRedis):
    """A renewal that does not compare the token."""

    def _renew(self, keys: Sequence[str], args: Sequence[bytes]) -> bytes:
        self.pexpire(keys[0], args[0])
        self.pexpire(keys[1], args[0])
        return b"r"


def lowers_later(self: Grant, seconds: float, now: float) -> TtlRequest:
    """Do not believe a shorter ttl before its answer."""
    request = TtlRequest(seconds, now)
    self.ttl_requests = [request]
    return request


def forgets(self: Grant, seconds: float, now: float) -> TtlRequest:
    """Believe a shorter ttl at once, and do not remember that it has no answer."""
    self.deadline = min(self.deadline, now + seconds)
    return TtlRequest(seconds, now)


RULES: dict[str, tuple[Timed, int, Callable[[], Any] | None]] = {
    "the drift is subtracted": (
        replace(ONE, step_us=TTL_US - 1),
        7,
        lambda: mock.patch.multiple("fencing.locks.settings", DRIFT_FACTOR=0.0, DRIFT_SECONDS=0.0),
    ),
    "a grant counts from its sending": (replace(ONE, mixin=AcquiresFromTheReply), 8, None),
    "a renewal counts from its sending": (
        replace(ONE, clients=(renews, takes), mixin=RenewsFromTheReply, times=3),
        11,
        None,
    ),
    "a renewal compares the token": (replace(ONE, clients=(renews, takes), redis=RenewsForAnybody), 11, None),
    "belief ends before the release is sent": (
        replace(ONE, clients=(releases, takes)),
        8,
        lambda: mock.patch.object(LeaseBase, "_begin_release", lambda self: self._freed is None),
    ),
    "a shorter ttl is believed before it is sent": (
        replace(ONE, clients=(shortens, takes)),
        9,
        lambda: mock.patch.object(Grant, "expect_ttl", lowers_later),
    ),
    "a shorter ttl without an answer is remembered": (
        replace(ONE, clients=(shortens_and_renews, takes), lost=1),
        13,
        lambda: mock.patch.object(Grant, "expect_ttl", forgets),
    ),
    "a grant of Redlock counts from its sending": (replace(IN_TURN, mixin=AcquiresFromTheReply), 10, None),
    "a renewal of Redlock counts from its sending": (
        replace(IN_TURN, clients=(renews, takes), mixin=RenewsFromTheReply, times=3),
        12,
        None,
    ),
    "a node without its data waits": (replace(RESTARTS, redis=GoesOnAtOnce), 7, None),
    "the clock of a node that waits does not jump": (
        replace(RESTARTS, errs=Errs(TTL_US, 1, after_restart=True), times=0),
        20,
        None,
    ),
}
"""A scenario, after how many steps two believe, and what switches the rule off, if the scenario does not."""

PAUSED = {
    "one Redis, a pause after the last look": (replace(ONE, clients=(updates, updates), settings=GUARDED), 13),
    "Redlock, a pause after the last look": (replace(IN_TURN, clients=(updates, updates), settings=GUARDED), 13),
}
"""With clocks that agree. A holder goes on after its last look, another is granted; and the guard refuses the write."""

UNGUARDED = replace(ONE, clients=(updates, updates)), {LAST_CHECK: 11, ACCEPTED: 11, LOST: 14}
"""The same without a guard, and what is violated after how many steps."""

AFTER_A_PAUSE = {BOTH, ACCEPTED, LOST}
"""What ends a search; that a guard has refused a late write does not."""

ALL_BROKEN: dict[str, tuple[Timed, int, Callable[[], Any]]] = {
    **{name: (*each, nullcontext) for name, each in (BROKEN | PAUSED).items()},
    **{f"without '{rule}'": (scenario, length, off or nullcontext) for rule, (scenario, length, off) in RULES.items()},
}
"""What breaks exclusion: a scenario, the length of its trace, and what switches a rule off."""

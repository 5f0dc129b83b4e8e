"""Schedules: what two holders do, step by step, on real servers. Each would break one rule if it were not kept.

A run with a seed meets such an order of steps by chance. A schedule makes it happen, each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from tests.support import wait_until
from tests.torture.run import Outcome
from tests.torture.stage import SLACK, Stage

__all__ = ["SCHEDULES", "Schedule", "play"]

LOSS_SECONDS = 10.0
ROUNDS = 20
ONE_ATTEMPT = 0.3
"""Seconds. It is less than one request may take, so a release may be sent behind that. The time-out of the client ends
the request sooner, and there may be time for another one: on a busy machine not each time."""

LASTS_SECONDS = 0.5

DRIP_SECONDS = 0.1
"""After each byte. A row of a lock's table then takes twice as long as the wait for it may, and more."""


class Schedule(NamedTuple):
    """A schedule.

    Args:
        on: the service of the locks, and that of the counter.
        play: the steps.
        clock_floor, use: as of `Stage`.
    """

    on: tuple[str, str]
    play: Callable[[Stage], None]
    clock_floor: bool = True
    use: Literal["lock", "slots"] = "lock"


def late_writer(stage: Stage) -> None:
    """The first has read; the second holds the lock, too, and writes; then the first writes."""
    stage.first.begin("write")
    stage.first.until_it_thinks()
    stage.lose_the_locks()
    stage.second.take("write")
    stage.first.go_on()
    stage.first.end()


def both_have_read(stage: Stage) -> None:
    """Both hold the lock, and have read; then the first writes, and then the second."""
    stage.first.begin("write")
    stage.first.until_it_thinks()
    stage.lose_the_locks()
    stage.second.begin("write")
    stage.second.until_it_thinks()
    for holder in (stage.first, stage.second):
        holder.go_on()
        holder.end()


def forgetful_newer_holder(stage: Stage) -> None:
    """As a late writer, and the second has forgotten to claim."""
    stage.first.begin("write")
    stage.first.until_it_thinks()
    stage.lose_the_locks()
    stage.second.take("write", claims=False)
    stage.first.go_on()
    stage.first.end()


def write_between_check_and_write(stage: Stage) -> None:
    """The first has checked, and its write is under way; the second writes; then the first's write arrives."""
    [proxy] = stage.service.proxies
    stage.first.begin("publish")
    stage.first.until_it_thinks()
    held = proxy.hold_request_when(lambda request: b"PUT " in request and b"pointer.json" in request)
    stage.first.go_on()
    if not held.wait(LOSS_SECONDS):
        raise TimeoutError("the write did not come")
    stage.lose_the_locks()
    stage.second.take("publish")
    proxy.restore()
    stage.first.end()


def session_used_again(stage: Stage) -> None:
    """The first reads through a session; the second writes; the first writes through the same session."""
    stage.first.take("advance a session")
    stage.second.take("write")
    stage.first.take("advance a session")


def lost_reply_to_commit(stage: Stage) -> None:
    """The transaction is committed, and the reply is lost."""
    [proxy] = stage.service.proxies
    stage.first.begin("begin")
    stage.first.until_it_thinks()
    lost = proxy.drop_reply_when(lambda request: b"COMMIT" in request)
    stage.first.go_on()
    if not lost.wait(LOSS_SECONDS):
        raise TimeoutError("no COMMIT came")
    stage.first.end()


def commit_that_arrives_late(stage: Stage) -> None:
    """The COMMIT is kept while its connection breaks off; the first asks what became of it; then it arrives."""
    [proxy] = stage.service.proxies
    stage.first.begin("begin")
    stage.first.until_it_thinks()
    kept = proxy.stall_connection_when(lambda request: b"COMMIT" in request, cut_when=lambda _: True)
    stage.first.go_on()
    if not kept.wait(LOSS_SECONDS):
        raise TimeoutError("no COMMIT came")
    with stage.service.server.connect() as connection:
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        wait_until(lambda: stage.first.is_over or connection.execute(waiting).fetchone(), LOSS_SECONDS)
    kept.deliver()
    stage.first.end()


def acquire_that_arrives_late(stage: Stage) -> None:
    """The first's request is kept, and what it sends behind it; it gets the lock over a new connection; they arrive."""
    [proxy] = stage.services[stage.locks].proxies
    stage.first.take("write")
    for _ in range(ROUNDS):
        kept = proxy.stall_connection_when(lambda request: stage.place.name.encode() in request)
        stage.first.begin("write", timeout=ONE_ATTEMPT, options={"renew": False})
        has_lock = stage.first.thinks()
        kept.deliver()
        stage.second.begin("write", timeout=ONE_ATTEMPT)
        stage.second.thinks()
        for holder in (stage.first, stage.second):
            holder.go_on()
            holder.end()
        if has_lock:
            return


def dripping_reply(stage: Stage) -> None:
    """The database of the locks sends its replies byte by byte."""
    [proxy] = stage.services[stage.locks].proxies
    stage.first.take("write")
    proxy.drip(replies=DRIP_SECONDS)
    stage.first.begin("write")
    stage.first.may_end(stage.first.timeout + SLACK + 1)
    proxy.restore()
    stage.first.go_on()  # if it was granted after all
    stage.first.end()


def claim_without_answer(stage: Stage) -> None:
    """The lock is granted, and the storage does not answer the claim."""
    [proxy] = stage.service.proxies
    proxy.refuse()
    stage.first.begin("begin")
    stage.first.end()
    proxy.restore()


def prune_under_an_old_holder(stage: Stage) -> None:
    """The second has written, and its mark is pruned; then the first, which is older, claims and writes."""
    stage.first.begin("begin with a claim", claims=False, early=True)
    stage.first.until_it_thinks()
    stage.lose_the_locks()
    stage.second.take("write")
    guard = stage.service.guard
    guard.prune(below=guard.mark(stage.place.name).number + 1)
    stage.first.go_on()
    stage.first.end()


def restore_under_a_holder(stage: Stage) -> None:
    """The first has written, and has read that; a copy from before is restored; the first writes again."""
    stage.first.begin("write", rounds=2)
    stage.first.until_it_thinks()
    stage.strike("back up sqlite")
    stage.first.go_on()
    stage.first.until_it_thinks()
    stage.strike("restore sqlite")
    stage.first.go_on()
    stage.first.end()


def one_after_the_other(stage: Stage) -> None:
    """The first has the lock, then the second: without a claim, for a guard would have a lower number repaired."""
    for holder in (stage.first, stage.second):
        holder.offer("write to Redis", claims=False)


def one_key_for_both(way: str) -> Callable[[Stage], None]:
    """Return the steps of this way."""

    def play(stage: Stage) -> None:
        """The first does what has a key; the second would do it again."""
        for holder in (stage.first, stage.second):
            holder.offer(way, key="2026-11-23")

    return play


def keys_beside_the_floor(stage: Stage) -> None:
    """What has the key 2 is done, and pruned. Then the second would do that again, and what is older and newer."""
    stage.first.offer("begin", key="2")
    stage.prune_keys(below="3")
    for key in ("2", "1", "3"):
        stage.second.offer("begin", key=key)


def both_want_a_slot(stage: Stage) -> None:
    """Both have a slot at the same time; a few times, for which one it is depends on luck."""
    for _ in range(ROUNDS):
        holders = (stage.first, stage.second)
        for holder in holders:
            holder.begin("", timeout=0.0)
            holder.thinks()
        for holder in holders:
            holder.go_on()
            holder.end()


def lock_that_outlasts_its_block(stage: Stage) -> None:
    """The first releases a lock that stays taken; the second wants it."""
    stage.first.take("write to Redis", options={"at_least": LASTS_SECONDS})
    stage.second.take("write to Redis", timeout=LASTS_SECONDS + SLACK)


SCHEDULES = {
    "late writer": Schedule(("redis", "sqlite"), late_writer),
    "late writer with the same number": Schedule(("redis", "sqlite"), late_writer, clock_floor=False),
    "both have read": Schedule(("redis", "sqlite"), both_have_read),
    "forgetful newer holder": Schedule(("redis", "sqlite"), forgetful_newer_holder),
    "write between check and write": Schedule(("redis", "s3"), write_between_check_and_write),
    "session used again": Schedule(("redis", "sqlite"), session_used_again),
    "lost reply to COMMIT": Schedule(("redis", "postgresql"), lost_reply_to_commit),
    "COMMIT that arrives late": Schedule(("redis", "postgresql"), commit_that_arrives_late),
    "acquire that arrives late": Schedule(("redis", "sqlite"), acquire_that_arrives_late),
    "dripping reply": Schedule(("postgresql", "postgresql"), dripping_reply),
    "claim without an answer": Schedule(("redis", "postgresql"), claim_without_answer),
    "prune under an old holder": Schedule(("redis", "sqlite"), prune_under_an_old_holder),
    "restore under a holder": Schedule(("redis", "sqlite"), restore_under_a_holder),
    "one after the other": Schedule(("redis", "redis-data"), one_after_the_other, clock_floor=False),
    "one key for both": Schedule(("sqlite", "sqlite"), one_key_for_both("begin")),
    "one key for both, psycopg": Schedule(("redis", "postgresql"), one_key_for_both("write")),
    "one key for both, in Redis": Schedule(("redis", "redis-data"), one_key_for_both("write to Redis")),
    "one key for both, published": Schedule(("redis", "s3"), one_key_for_both("publish")),
    "keys beside the floor": Schedule(("sqlite", "sqlite"), keys_beside_the_floor),
    "both want a slot": Schedule(("redis", "redis-data"), both_want_a_slot, use="slots"),
    "both want a slot of a table": Schedule(("sqlite", "redis-data"), both_want_a_slot, use="slots"),
    "lock that outlasts its block": Schedule(("redis", "redis-data"), lock_that_outlasts_its_block),
}


def play(name: str, folder: Path, contender: str = "") -> Outcome:
    """Do the steps, and return what the checker says of it."""
    schedule = SCHEDULES[name]
    with Stage(schedule.on, folder, contender, clock_floor=schedule.clock_floor, use=schedule.use) as stage:
        schedule.play(stage)
        return stage.outcome()

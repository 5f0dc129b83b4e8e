"""Redlock by the book, and this library's. Compare yours.

`actor` belongs to the demo: it shows what happens, and waits where a pause can happen as well.
"""

import statistics
import time

import redis

from examples.stage.actor import Actor
from examples.stage.coordinators import CHOICES
from examples.stage.reports import report
from examples.stories.hand_made import Right
from fencing import CoordinatorUnavailable, StaleFence

NO_MAJORITY = "no majority answers"
ADD = "UPDATE result SET writer = writer || %s, number = %s WHERE act = %s"
WRITE = "UPDATE result SET writer = %s, number = %s WHERE act = %s AND number <= %s"


def by_the_book(
    actor: Actor, key: str, address: str, act: str, ttl: float, numbered: bool, waits: bool = False
) -> None:
    """Take the lock at a majority, as the description of Redlock says, work, and write.

    `numbered`: the highest count of the servers that granted it goes with the write, and the row refuses a lower one.
    `waits`: between the replies and the check of the time, too.
    """
    locks, counts, began = [], [], time.monotonic()
    for url in address.split(","):
        client = redis.Redis.from_url(url, socket_timeout=0.5, retry=None)
        lock = Right(client, key, ttl, step=lambda: None)
        try:
            if lock.acquire():
                counts.append(int(client.incr(f"{key}:number")))
                locks.append(lock)
        except redis.RedisError:
            pass  # a server that is down counts as a refusal
    granted = f"granted by {len(locks)} of 5"
    if waits:
        actor.show("asked", granted, source="nodes")
        actor.wait()
    in_time = time.monotonic() - began < ttl * 0.99 - 0.002  # the rest is for clocks that run at other rates
    if len(locks) < 3 or not in_time:
        for lock in locks:
            lock.release()
        if in_time:
            actor.show("missed", granted, source="nodes")
        else:
            actor.show("missed", "too late: gives up")
        return
    number = max(counts) if numbered else 0
    actor.show("got", f"gets number {number}" if numbered else granted, source="nodes", is_=number)
    actor.wait()
    if actor.connection.execute(WRITE, [actor.name, number, act, number]).rowcount:
        actor.show("wrote", "writes", target="data")
    else:
        report("refused", reason=f"the row has a higher number than {number}", newest=None)


def with_this_library(actor: Actor, key: str, address: str, act: str, ttl: float, numbered: bool) -> None:
    """Try once to take a lock of this library, which claims in the database; work, and write through the guard.

    `numbered`: the numbers come from the counts alone, and not from clocks as well. The claim comes afterwards.
    Within the acquire, it would replace a number that repeats, so one could not see whether the servers prevent it.
    """
    options = {
        "ttl": ttl,
        "owner": actor.name,
        "clock_floor": not numbered,
        "guards": [] if numbered else [actor.guard],
    }
    coordinator = CHOICES["redlock"].open(address, **options)
    try:
        lease = coordinator.lock(key).try_acquire()
        if lease and numbered:
            actor.guard.claim(lease.fence)
    except (CoordinatorUnavailable, StaleFence):  # its text says which servers wait; or: the number repeats
        lease = None
    if lease is None:
        actor.show("missed", "granted by no majority", source="nodes")
        return
    number = lease.fence.number
    actor.show("got", f"gets number {number}" if numbered else "granted by a majority", source="nodes", is_=number)
    actor.wait()
    try:
        actor.guard.write(lease, WRITE, [actor.name, number, act, number])
        actor.show("wrote", "writes", target="data")
    except StaleFence as late:
        report("refused", reason=str(late), newest=None)


def go_on(actor: Actor, key: str, address: str, act: str, ttl: float, patience: float | None) -> None:
    """Take a lock of this library, which claims in the database; work, add a letter through the guard, and free it.

    `patience`: the seconds that it waits for the lock; None: it tries once.
    """
    with CHOICES["redlock"].open(
        address, ttl=ttl, longest_ttl=ttl, owner=actor.name, guards=[actor.guard]
    ) as coordinator:
        lock = coordinator.lock(key)
        try:
            lease = lock.try_acquire() if patience is None else lock.acquire(timeout=patience)
        except CoordinatorUnavailable:
            actor.show("missed", NO_MAJORITY, source="nodes")
            return
        if lease is None:
            actor.show("missed", "another has the lock", source="nodes")
            return
        number = lease.fence.number
        actor.show("got", "granted by a majority", source="nodes", is_=number)
        actor.wait()
        try:
            actor.guard.write(lease, ADD, [actor.name, number, act])
            actor.show("wrote", "writes", target="data")
        except StaleFence as late:
            report("refused", reason=str(late), newest=None)
        try:
            lease.release()
        except CoordinatorUnavailable:  # then it expires
            pass


def time_acquires(actor: Actor, key: str, address: str, ttl: float, rounds: int, times: int) -> None:
    """Time the acquires of this library, as often as the director asks."""
    with CHOICES["redlock"].open(address, ttl=ttl, longest_ttl=ttl) as coordinator:
        for _ in range(times):
            actor.wait()
            taken = []
            for _ in range(rounds):
                started = time.perf_counter()
                lease = coordinator.acquire(key, timeout=15)
                taken.append((time.perf_counter() - started) * 1000)
                lease.release()
            median, longest = statistics.median(taken), max(taken)
            actor.show("timed", f"median {median:.2f} ms, longest {longest:.1f} ms", median=median, longest=longest)

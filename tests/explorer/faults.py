"""What goes wrong at Redis and at the storage, whoever is at work."""

from __future__ import annotations

from collections.abc import Iterator

from fencing.redis.keys import Keys
from tests.explorer.believing import held
from tests.explorer.simulated_redis import SimulatedRedis, Snapshot
from tests.explorer.state import KEYS, OTHER_KEYS, STUCK, Scenario, State, Step, allowed, counted

__all__ = ["mark_faults", "redis_faults", "time_passes"]


def redis_faults(scenario: Scenario, state: State) -> Iterator[Step]:
    """The lock runs out, or Redis loses all it has."""
    if allowed(scenario, state, "expiries") and SimulatedRedis(state.redis).get(KEYS.lock) is not None:
        yield _expiry(state)
    if allowed(scenario, state, "resets") and state.redis.entries:
        # A second passes, which is more than were minted meanwhile: the server's clock has not gone back.
        empty = Snapshot((), state.redis.clock_us + 1_000_000, state.redis.listening)
        after = state._replace(redis=empty, over=state.over | _tokens(state))
        yield Step("Redis loses its data", counted(after, "resets"))


def _expiry(state: State, keys: Keys = KEYS) -> Step:
    redis = SimulatedRedis(state.redis)
    token = (redis.get(keys.lock) or b"?").decode()
    redis.delete(keys.lock)
    if not (redis.get(keys.holder) or b"").startswith(b"offer "):  # that of an offer lasts longer
        redis.delete(keys.holder)
    after = state._replace(redis=redis.snapshot(), over=state.over | {token} & _tokens(state))
    return Step(f"{token[0]}'s lease expires", counted(after, "expiries"))


def _tokens(state: State) -> frozenset[str]:
    """Return the tokens under which clients believe to hold locks."""
    return frozenset(fence.token for local in state.clients for fence in held(local))


def mark_faults(scenario: Scenario, state: State) -> Iterator[Step]:
    """What a storage must not do to a mark; and pruning, which it may."""
    storage = state.storage
    mark = storage.mark
    if mark is None:
        return
    if allowed(scenario, state, "marks_lost"):
        lost = state._replace(storage=storage._replace(mark=None))
        yield Step("the mark is lost", counted(lost, "marks_lost"))
    if allowed(scenario, state, "marks_restored"):
        if storage.backup is None:
            yield Step("the mark is backed up", state._replace(storage=storage._replace(backup=mark)))
        elif storage.backup != mark:
            restored = state._replace(storage=storage._replace(mark=storage.backup))
            yield Step("the mark is restored without its data", counted(restored, "marks_restored"))
    if allowed(scenario, state, "marks_pruned"):
        pruned = state._replace(storage=storage._replace(mark=None, floor=max(storage.floor, mark.number)))
        yield Step("the mark is pruned, under a floor", counted(pruned, "marks_pruned"))


def time_passes(state: State) -> Iterator[Step]:
    """Everybody waits: a lock whose holder has crashed frees itself in time; that it comes to this for any other
    reason, unless a request landed late, is a lock held by nobody."""
    redis = SimulatedRedis(state.redis)
    locks = [keys for keys in (KEYS, OTHER_KEYS) if redis.get(keys.lock) is not None]
    if not locks:
        yield Step("nobody can go on", state, (STUCK,))
    else:
        step = _expiry(state, locks[-1])
        excused = state.faults.crashes or state.faults.late or state.faults.kept
        yield step if excused else Step("nothing but the end of its ttl frees the lock", step.state, (STUCK,))

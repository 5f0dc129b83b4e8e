"""Waiting in the queue: messages to listeners, rechecks, and the time that passes while all wait.

Each client has a listener of its own. A message to it is under way until it is delivered, in order; anything else may
happen meanwhile. Time passes only when nothing else can happen: up to the next recheck.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencing.locks.waiting import Wait
from fencing.redis.calls import Call, decline_call
from tests.explorer import clients
from tests.explorer.clients import Program, Woken
from tests.explorer.simulated_redis import SimulatedRedis
from tests.explorer.state import (
    KEYS,
    MOST_MS,
    NAMES,
    STUCK,
    UNNOTICED,
    Hanging,
    Scenario,
    State,
    Step,
    allowed,
    counted,
    with_client,
)
from tests.explorer.storage import RESOURCE

__all__ = ["Waiting", "listener_of"]

PAUSE_MS = 130
"""After one pause a waiter is still new, and after two it is not."""


def listener_of(client: int) -> bytes:
    return NAMES[client].encode()


def _listener_in(acquire: Call) -> str:
    """Return the listener with which it asks; empty: the caller does not wait."""
    return str(acquire.args[5]) if len(acquire.args) > 5 else ""


class Waiting:
    """The steps of waiting, of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.programs: Sequence[Program] = scenario.programs

    def listens(self, state: State, call: Call) -> State:
        """A client that asks with a listener listens there."""
        if call.script.name != "acquire" or not (listener := _listener_in(call)):
            return state
        listening = state.redis.listening | {listener.encode()}
        return state._replace(redis=state.redis._replace(listening=listening))

    def notified(self, state: State, published: Sequence[tuple[bytes, bytes]]) -> State:
        """Put the messages under way; a crashed client receives none."""
        alive = {listener_of(client): client for client, local in enumerate(state.clients) if local.phase != "crashed"}
        inbox = [(alive[listener], text) for listener, text in published if listener in alive]
        return state._replace(inbox=(*state.inbox, *inbox))

    def settled(self, state: State, client: int) -> State:
        """A client that begins to wait asks at once if it was woken meanwhile; otherwise it notes when to recheck."""
        while isinstance(effect := self._effect(state, client), Wait):
            local = state.clients[client]
            if not local.woken:
                recheck_at = state.redis.clock_us // 1000 + round(effect.recheck * 1000)
                return with_client(state, client, local._replace(recheck_at=recheck_at))
            answered = clients.answered(
                client, self.programs[client], local._replace(woken=False, recheck_at=0), Woken()
            )
            state = with_client(state, client, answered)
        local = state.clients[client]
        gone = local.phase != "acquire"
        return with_client(state, client, local._replace(recheck_at=0, woken=local.woken and not gone))

    def steps(self, state: State) -> Iterator[Step]:
        """Messages arrive; connections break."""
        seen = set()
        for index, (client, text) in enumerate(state.inbox):
            if client not in seen:
                seen.add(client)
                left = state._replace(inbox=state.inbox[:index] + state.inbox[index + 1 :])
                yield Step(f"{NAMES[client]} is told: {text.split()[0].decode()}", self._delivered(left, client, text))
        if allowed(self.scenario, state, "cuts"):
            for client in range(len(self.programs)):
                if listener_of(client) in state.redis.listening and self._token(state, client) is not None:
                    broken = self.silenced(state, client)
                    after = self._wake(broken, client) if self.programs[client].wakes else broken
                    yield Step(f"{NAMES[client]}'s connection breaks", counted(after, "cuts"))

    def pauses(self, state: State) -> Iterator[Step]:
        """A while passes, up to the next recheck. No message is under way, and the lock stays as it is."""
        redis = SimulatedRedis(state.redis)
        if not allowed(self.scenario, state, "pauses") or state.inbox or redis.get(KEYS.lock) is None:
            return
        now = state.redis.clock_us // 1000
        rechecks = {
            client: max(local.recheck_at, now)
            for client, local in enumerate(state.clients)
            if self._waits(state, client)
        }
        until = min([now + PAUSE_MS, *rechecks.values()])
        if 0 <= redis.pttl(KEYS.lock) <= until - now:
            return
        redis.clock_us = until * 1000
        later = counted(state._replace(redis=redis.snapshot()), "pauses")
        due = [client for client, recheck_at in rechecks.items() if recheck_at == until]
        for client in due:
            yield Step(f"{until - now} ms pass, {NAMES[client]} looks", self._wake(later, client))
        if not due:
            yield Step(f"{until - now} ms pass", later)

    def rechecks_early(self, state: State) -> Iterator[Step]:
        """A waiter rechecks before the messages arrive that are under way."""
        if state.inbox and allowed(self.scenario, state, "early"):
            for client in range(len(self.programs)):
                if self._waits(state, client):
                    yield Step(f"{NAMES[client]} rechecks early", counted(self._wake(state, client), "early"))

    def gives_up(self, state: State, client: int) -> Iterator[Step]:
        timeout = self.programs[client].timeout
        if allowed(self.scenario, state, "gave_up") and timeout < float("inf"):
            local = state.clients[client]._replace(woken=False, recheck_at=0)
            after = clients.answered(client, self.programs[client], local, Woken(timeout))
            yield Step(f"{NAMES[client]} gives up", counted(with_client(state, client, after), "gave_up"))

    def silenced(self, state: State, client: int) -> State:
        """Its listener listens no more; what was under way is lost."""
        redis = state.redis._replace(listening=state.redis.listening - {listener_of(client)})
        return state._replace(redis=redis, inbox=tuple(each for each in state.inbox if each[0] != client))

    def time_passes(self, state: State) -> Iterator[Step]:
        """Nothing is under way, and every client waits: until the next recheck."""
        rechecks = [local.recheck_at for client, local in enumerate(state.clients) if self._waits(state, client)]
        if not rechecks:
            return
        now = state.redis.clock_us // 1000
        lock = next((entry for entry in state.redis.entries if entry.key == KEYS.lock), None)
        free_at = now if lock is None else lock.expires_ms
        recheck = max(min(rechecks), now)
        violated: tuple[str, ...] = ()
        faults = state.faults
        if lock is None and not (faults.expiries or faults.resets or faults.late):
            violated += (STUCK,)
        record = next((entry.value for entry in state.redis.entries if entry.key == KEYS.holder), None)
        offered = isinstance(record, bytes) and record.startswith(b"offer ")
        most = self.scenario.late_ms if offered else MOST_MS
        if offered and lock is not None and (free_at is None or free_at - now > MOST_MS):
            violated += (UNNOTICED,)  # if it is not accepted, nobody else has it for so long
        if free_at is not None and recheck > free_at:
            if not (faults.crashes or faults.freezes or faults.expiries or faults.resets or faults.late or faults.kept):
                violated += (STUCK,)  # a lease, or an offer, of somebody who is there has run out
            if recheck - free_at > most and not (faults.expiries or faults.resets):
                violated += (UNNOTICED,)
        for client in range(len(self.programs)):
            if self._waits(state, client) and state.clients[client].recheck_at <= recheck:
                later = state._replace(redis=state.redis._replace(clock_us=recheck * 1000))
                yield Step(f"{recheck - now} ms pass, {NAMES[client]} looks", self._wake(later, client), violated)

    def _waits(self, state: State, client: int) -> bool:
        return isinstance(self._effect(state, client), Wait)

    def _effect(self, state: State, client: int) -> clients.Effect | None:
        return clients.effect_of(client, self.programs[client], state.clients[client])

    def _token(self, state: State, client: int) -> str | None:
        """Return the token with which it waits or asks; None where its listener has no waiter."""
        effect = self._effect(state, client)
        if isinstance(effect, Wait):
            return str(effect.waiter.token)
        if isinstance(effect, Call) and effect.script.name == "acquire" and _listener_in(effect):
            return str(effect.args[0])
        return None

    def _wake(self, state: State, client: int) -> State:
        return self.settled(with_client(state, client, state.clients[client]._replace(woken=True)), client)

    def _delivered(self, state: State, client: int, text: bytes) -> State:
        kind, what, _ = text.decode().split(" ", 2)
        if kind == "recheck":
            local = state.clients[client]
            if self._waits(state, client):
                local = local._replace(recheck_at=state.redis.clock_us // 1000 + int(what))
            return with_client(state, client, local)
        if what == self._token(state, client) or kind == "passed":
            return self._wake(state, client)
        if kind != "grant":
            return state
        declined = Hanging(client, (decline_call(RESOURCE, what, NAMES[client], timeout=1.0),))
        return state._replace(hanging=(*state.hanging, declined))

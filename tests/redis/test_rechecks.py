"""Who notices that an offer is not accepted: waiters that are new ask again by themselves, and others are told.

In most of these tests the listeners are plain subscriptions, and the scripts are run without the library.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing.redis.scripts import ACQUIRE, RELEASE, Script
from tests.support.sides import Side
from tests.support.waiters import KEYS, Queue, Waiter

AGED = """
local function age(ms, held_ms)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local entries = redis.call('ZRANGE', '@queue', 0, -1)
  for i, entry in ipairs(entries) do
    local its_ms = ms[string.sub(entry, 1, 1)] or 0
    redis.call('ZADD', '@queue', string.format('%.0f', now - 1000 * its_ms - #entries + i), entry)
  end
  local record = redis.call('TYPE', '@holder').ok == 'string' and redis.call('GET', '@holder') or ''
  local before, after = string.match(record, '^(%d+ %S+ )%d+( .*)$')
  if before then redis.call('SET', '@holder', before .. string.format('%.0f', now - 1000 * held_ms) .. after) end
end
age({@ages}, @held)
"""
"""Runs before a script, in one call with it: so old are the waiters and the grant, however slow this machine is."""

NEW_MS = 250
"""How long a waiter is new."""

PROMPT = 8.0
"""Seconds that a grant may take on a busy machine. Without what is tested it takes 10 s, the longest recheck."""


class Crowd:
    """Waiters for one lock. Each is a letter, and has a listener of this name."""

    def __init__(self, server: RedisServer) -> None:
        self.client: Any = server.client()
        self._listeners: dict[str, Any] = {}
        self._tickets: dict[str, bytes] = {}
        self.moments: list[int] = []
        """In how many ms those recheck that were told so at the last hand-over."""

    def ask(self, name: str, **ages: int) -> Any:
        """Let one ask, for the first time or again; the others are so many milliseconds old, or came just now."""
        if name not in self._listeners:
            self.listen(name)
        args = [name, 60_000, "me", 0, 1, name, self._tickets.get(name, "")]
        reply = self._run(ACQUIRE, [KEYS.lock, KEYS.holder, KEYS.counter, KEYS.queue, KEYS.listeners], args, ages)
        if isinstance(reply, list):
            self._tickets[name] = reply[1]
        return reply

    def hand_over(self, held: int = 0, **ages: int) -> str:
        """Let the holder release, and the next one accept. Return who heard of it: "B!" was offered the lock.

        Args:
            held: for how many ms the lock was held.
        """
        token = self.client.get(KEYS.lock).decode()
        assert self._run(RELEASE, [KEYS.lock, KEYS.holder, KEYS.queue, KEYS.listeners], [token], ages, held) == 3
        received = []
        self.moments = []
        for name, listener in self._listeners.items():
            listener.ping()  # its reply comes behind all that was published before
            while (message := listener.get_message(timeout=60)) and message["type"] != "pong":
                kind, argument, _ = message["data"].split()
                received.append(name + "!" * (kind == b"grant"))
                self.moments += [int(argument)] if kind == b"recheck" else []
        self.ask(self.client.get(KEYS.lock).decode())
        return " ".join(sorted(received))

    def listen(self, name: str) -> None:
        listener = self._listeners[name] = self.client.pubsub()
        listener.subscribe(f"fencing:1:wake:{name}")
        listener.get_message(timeout=60)

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self.client.close()

    def _run(self, script: Script, keys: list[str], args: list[Any], ages: dict[str, int], held: int = 0) -> Any:
        table = ",".join(f"{name}={ms}" for name, ms in ages.items())
        aged = AGED.replace("@ages", table).replace("@held", str(held))
        aged = aged.replace("@queue", KEYS.queue).replace("@holder", KEYS.holder)
        return self.client.eval(aged + script.text, len(keys), *keys, *args)


@pytest.fixture
def crowd(any_redis: RedisServer) -> Iterator[Crowd]:
    made = Crowd(any_redis)
    yield made
    made.close()


def test_nobody_is_told_of_an_offer_while_all_are_new(crowd: Crowd) -> None:
    for name in "ABCDE":
        crowd.ask(name)
    assert [crowd.hand_over(B=240, C=240), *(crowd.hand_over() for _ in "CDE")] == ["B!", "C!", "D!", "E!"]
    assert crowd.client.hgetall(KEYS.listeners) == {}


def test_two_are_told_if_the_oldest_is_new_no_more(crowd: Crowd) -> None:
    """Also where those behind it are new: these may all be stopped."""
    for name in "ABCDEF":
        crowd.ask(name)
    assert crowd.hand_over(B=300, C=251) == "B! C F"
    assert sorted(crowd.moments) == [252, 302]
    assert crowd.hand_over(C=300) == "C!", "the next holder does not count"


def test_two_are_told_if_the_servers_clock_has_gone_back(crowd: Crowd) -> None:
    for name in "ABCDE":
        crowd.ask(name)
    assert crowd.hand_over(C=-5, D=-5, E=-5) == "B! D E"


def test_each_offer_is_told_to_others(crowd: Crowd) -> None:
    """Those that were told of the last one may be stopped."""
    for name in "ABCDEFGHIJ":
        crowd.ask(name)
    old = dict.fromkeys("BCDEFGHIJ", 300)
    assert [crowd.hand_over(**old) for _ in range(3)] == ["B! F G", "C! I J", "D! H I"]


@pytest.mark.parametrize(("held", "count"), [(24, 2), (25, 8)])
def test_eight_are_told_after_a_long_holding(crowd: Crowd, held: int, count: int) -> None:
    """Hand-overs are seldom then, and nobody else was told a moment ago. Several processes may be stopped at once."""
    names = "ABCDEFGHIJKL"
    for name in names:
        crowd.ask(name)
    assert len(crowd.hand_over(held, **dict.fromkeys(names, 300)).split()) == 1 + count
    assert sorted(crowd.moments) == [252 + place * 50 // (count - 1) for place in range(count)]


def test_a_record_of_another_type_stops_no_hand_over(crowd: Crowd) -> None:
    """The script has offered the lock before it reads the record, and an error undoes nothing."""
    for name in "ABCD":
        crowd.ask(name)
    crowd.client.delete(KEYS.holder)
    crowd.client.rpush(KEYS.holder, "somebody's list")
    assert crowd.hand_over(**dict.fromkeys("BCD", 300)) == "B! C D"


def test_a_new_waiter_is_told_to_ask_again_when_it_is_new_no_more(crowd: Crowd) -> None:
    crowd.ask("A")
    for name in "BC":
        assert 0 < crowd.ask(name)[2] <= NEW_MS + 2, "the clock may be a little behind its ticket"
    for name, most in {"B": 51, "C": 151}.items():
        assert 0 < crowd.ask(name, B=200, C=100)[2] <= most
    assert 4000 < crowd.ask("C", B=200, C=-4000)[2] <= 4252, "the clock has gone back, and it will be new then"
    assert [crowd.ask(name, B=251, C=251)[2] for name in "BC"] == [10_000, 10_250]


def test_those_that_find_an_offer_come_again_at_its_end_one_behind_another(crowd: Crowd) -> None:
    crowd.ask("A")
    names = "BCDEFGHIJKLMNO"
    for name in names:
        crowd.ask(name)
    old = dict.fromkeys(names, 300)
    crowd.client.set(KEYS.holder, "offer A")
    crowd.client.pexpire(KEYS.lock, 100_000)  # as if it did not end while the test looks
    waits = [crowd.ask(name, **old)[2] for name in names]
    assert waits == [1000 + min(5 * place, 50) for place in range(len(names))]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP on this system")
def test_the_first_waiter_and_the_last_two_are_stopped(side: Side, any_redis: RedisServer, crowd: Crowd) -> None:
    """The one between them is told of nothing, and asks again. The stopped ones are those that only listen."""
    holder, coordinator = (
        side.call(side.coordinator(any_redis.url, ttl=30).acquire, "r"),
        side.coordinator(any_redis.url),
    )
    queue = Queue(any_redis)
    crowd.ask("~")
    waiter = Waiter(side, coordinator)
    queue.has(2)
    for name in ("~~", "~~~"):  # on a slow machine they are no more new, and then the waiter is told before them
        crowd.ask(name)
    released_at = time.monotonic()
    side.call(holder.release)
    took = waiter.join().granted_at - released_at
    print(f"granted after {1000 * took:.0f} ms")
    assert took < PROMPT

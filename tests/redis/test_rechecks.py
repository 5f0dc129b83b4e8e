"""Who is told to recheck an offer: the two that wait longest, and nobody else while these still will.

The listeners are plain subscriptions, and the scripts are run without the library: the test makes each hand-over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing.redis.scripts import ACQUIRE, RELEASE, Script
from tests.support import wait_until
from tests.support.sides import Side
from tests.support.waiters import KEYS, Queue, process

NOTIFIED = b"notified"

AGE = """
do
  local notified = redis.call('HGET', KEYS[#KEYS], 'notified')
  local time = redis.call('TIME')
  local moment = string.format('%.0f', time[1] * 1000000 + time[2] - @us@)
  if notified then redis.call('HSET', KEYS[#KEYS], 'notified', moment .. string.match(notified, ' .*')) end
end
"""
"""Runs before a script: the last rechecks were sent so long ago, however slow this machine is."""


class Crowd:
    """Waiters for one lock. Each is a token; those that begin with the same letter have one listener."""

    def __init__(self, server: RedisServer) -> None:
        self.client: Any = server.client()
        self._listeners: dict[str, Any] = {}
        self._tickets: dict[str, bytes] = {}

    def ask(self, *tokens: str) -> Any:
        """Let each of them ask, for the first time or again. Return the last reply."""
        for token in tokens:
            if token[0] not in self._listeners:
                self._listen(token[0])
            args = [token, 60_000, "me", 0, 1, token[0], self._tickets.get(token, "")]
            reply = self._run(ACQUIRE, [KEYS.lock, KEYS.holder, KEYS.counter, KEYS.queue, KEYS.listeners], args)
            if isinstance(reply, list):
                self._tickets[token] = reply[1]
        return reply

    def hand_over(self, *, us: int = 0, accept: bool = True) -> str:
        """Let the holder release. Return who heard of it: "B!" was offered the lock, "C" is to recheck.

        Args:
            us: microseconds since the last rechecks were sent.
            accept: whether the next one accepts.
        """
        token = self.client.get(KEYS.lock).decode()
        assert self._run(RELEASE, [KEYS.lock, KEYS.holder, KEYS.queue, KEYS.listeners], [token], us) == 3
        received = []
        for name, listener in self._listeners.items():
            listener.ping()  # its reply comes behind all that was published before
            while (message := listener.get_message(timeout=60)) and message["type"] != "pong":
                received.append(name + "!" * message["data"].startswith(b"grant"))
        if accept:
            self.ask(self.client.get(KEYS.lock).decode())
        return " ".join(sorted(received))

    def leave(self, token: str) -> None:
        """Let one of them give up."""
        self._run(RELEASE, [KEYS.lock, KEYS.holder, KEYS.queue, KEYS.listeners], [token, token[0]])
        del self._tickets[token]

    def hang_up(self, listener: str) -> None:
        """End its connection, as that of a process that is killed."""
        self._listeners.pop(listener).close()
        wait_until(lambda: self.client.pubsub_numsub(f"fencing:1:wake:{listener}")[0][1] == 0)

    def close(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self.client.close()

    def _listen(self, name: str) -> None:
        listener = self._listeners[name] = self.client.pubsub()
        listener.subscribe(f"fencing:1:wake:{name}")
        listener.get_message(timeout=60)

    def _run(self, script: Script, keys: list[str], args: list[Any], us: int = 0) -> Any:
        return self.client.eval(AGE.replace("@us@", str(us)) + script.text, len(keys), *keys, *args)


@pytest.fixture
def crowd(any_redis: RedisServer) -> Iterator[Crowd]:
    made = Crowd(any_redis)
    yield made
    made.close()


def test_the_last_two_are_told_and_nobody_else_while_they_wait(crowd: Crowd) -> None:
    crowd.ask(*"ABCDEF")
    assert [crowd.hand_over() for _ in range(5)] == ["B! E F", "C!", "D!", "E! F", "F!"]
    assert crowd.client.hgetall(KEYS.listeners) == {}, "nothing is left of who was told"


def test_after_a_while_they_are_told_again(crowd: Crowd) -> None:
    crowd.ask(*"ABCDEF")
    assert crowd.hand_over() == "B! E F"
    assert crowd.hand_over(us=99_000) == "C!"
    assert crowd.hand_over(us=100_000) == "D! E F"


def test_if_the_servers_clock_goes_back_they_are_told_again(crowd: Crowd) -> None:
    crowd.ask(*"ABCDEF")
    assert [crowd.hand_over(), crowd.hand_over(us=-3_600_000_000)] == ["B! E F", "C! E F"]


def test_one_that_was_told_and_gives_up_is_replaced(crowd: Crowd) -> None:
    crowd.ask(*"ABCDEF")
    assert crowd.hand_over() == "B! E F"
    crowd.leave("E")
    assert crowd.hand_over() == "C! D F"
    crowd.leave("D")
    crowd.ask("D")  # it comes back, with another place, and has noted another moment
    crowd.ask(*"GH")
    assert crowd.hand_over() == "F! G H"


def test_one_that_was_told_and_is_killed_is_replaced(crowd: Crowd) -> None:
    crowd.ask(*"ABCDEF")
    assert crowd.hand_over() == "B! E F"
    crowd.hang_up("F")
    assert crowd.hand_over() == "C! D E"
    assert not [entry for entry in crowd.client.zrange(KEYS.queue, 0, -1) if entry.startswith(b"F ")]


def test_one_that_was_told_and_asks_again_is_told_again(crowd: Crowd) -> None:
    """Its connection broke, and the message with it."""
    crowd.ask(*"ABCDEF")
    assert crowd.hand_over() == "B! E F"
    crowd.ask("F")
    assert [crowd.hand_over(), crowd.hand_over()] == ["C! E F", "D!"]


def test_a_listener_that_is_granted_the_lock_counts_no_more(crowd: Crowd) -> None:
    """Its other waiters recheck at the end of its own lease."""
    crowd.ask("A", "B", "F1", "C", "D", "E", "F2")
    assert [crowd.hand_over() for _ in range(3)] == ["B! E F", "D E F!", "C!"]


def test_one_is_not_enough_where_two_others_wait(crowd: Crowd) -> None:
    crowd.ask("A", "B1", "B2", "C")
    assert crowd.hand_over() == "B! C"
    crowd.ask("D")
    assert crowd.hand_over() == "B! C D"


def test_two_are_found_behind_the_many_waiters_of_one_process(crowd: Crowd) -> None:
    crowd.ask("A", "B", "C", "D", *[f"E{number}" for number in range(9)])
    assert crowd.hand_over() in ("B! C E", "B! D E")
    assert NOTIFIED not in crowd.client.hgetall(KEYS.listeners), "of one of them no place is known"


def test_who_finds_an_offer_comes_again_at_its_end(crowd: Crowd) -> None:
    """It was told before the offer was made. Otherwise a frozen waiter would cost two offers."""
    crowd.ask(*"ABCDEF")
    crowd.hand_over()
    crowd.hand_over(accept=False)
    crowd.client.pexpire(KEYS.lock, 100_000)  # as if it did not end while the test looks
    assert [crowd.ask(token)[2] for token in "DFG"] == [1000, 1005, 1250], "the last one asks for the first time"


@pytest.mark.thorough
def test_without_permission_to_ask_who_listens_two_are_told_each_time(crowd: Crowd) -> None:
    crowd.client.execute_command("ACL SETUSER limited on nopass ~* &* +@all -pubsub -hset")
    crowd.ask(*"ABCDEF")
    crowd.client.execute_command("AUTH", "limited", "")
    assert [crowd.hand_over() for _ in range(3)] == ["B! E F", "C! E F", "D! E F"]


@pytest.mark.thorough
def test_between_processes_a_grant_wakes_hardly_anybody_else(any_redis: RedisServer) -> None:
    """Told at each hand-over, it would be two others."""
    side, queue = Side(False), Queue(any_redis)
    coordinator = side.coordinator(any_redis.url, ttl=30)
    holder = coordinator.acquire("r")
    with ExitStack() as stack:
        waiting = [stack.enter_context(process(any_redis, kind)) for kind in ("sync", "async") * 5]
        queue.has(10)
        before = _publishes(queue)
        holder.release()
        moments = [each.next_grant() for each in waiting]
        published = _publishes(queue) - before
    coordinator.close()
    periods = int(10 * (max(moments) - min(moments))) + 1
    print(f"{published} messages for 10 grants, in {1000 * (max(moments) - min(moments)):.0f} ms")
    assert published <= 10 + 2 * periods + 1


def _publishes(queue: Queue) -> int:
    return int(queue.client.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"])

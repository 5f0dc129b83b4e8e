"""The simulated Redis against real ones: random calls, reply by reply and key by key; and the explorer's own calls."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import redis

from examples.servers import RedisServer
from fencing.kernel.fence import digest_of
from fencing.redis import scripts as redis_scripts
from fencing.redis.keys import Keys, keys_of
from fencing.redis.scripts import Script
from tests.explorer.scenarios import explored
from tests.explorer.simulated_redis import (
    ACCEPT_MS,
    Counts,
    Entry,
    Reply,
    Scored,
    ScriptError,
    SimulatedRedis,
    Snapshot,
    kind_of,
)
from tests.explorer.state import KEYS

Value = bytes | Scored | Counts | None

SLACK_MS = 5000
"""What may pass between a call and the reading of the server's clock, on a busy machine. The ttls differ by more."""

SCRIPTS = {script.name: script for script in vars(redis_scripts).values() if isinstance(script, Script) and script.sha}
del SCRIPTS["holders"]  # it only reads, and no plan of a lock asks it
RESOURCES = ["{a}1", "{a}2"]  # of one slot, so they share a counter
TOKENS = [letter * 22 for letter in "ABC"]
OWNERS = ["host:1", "a label with blanks", "ü\n", ""]
TTLS: list[str | int] = ["", 60_000, 100_000]
NUMBERS = [0, 1, 7, 1000, 2**50, 2**50 + 1, 2**51, 2**53 - 3, 2**53 - 2, 2**53 - 1, 2**53, 2**53 + 1, 2**60, 10**15]
COUNTERS = [b"abc", b"007", b"007", b"0070", b"-5", b"5 ", b"1e5", b"", b"5\n", b"9" * 20, b"9" * 400]
LISTENERS = ["here", "there", "nowhere"]  # the last one listens nowhere
QUEUES = [b"no blank", b"here  two blanks", b"here " + b"A" * 22, b"nowhere " + b"B" * 22, b"there C C"]
HOLDERS = [
    b"",
    b"7",
    b"x %s 5 me",
    b"7 %s 5 me",
    b"7 %s 5 ",
    b"7  %s 5 me",
    b"7 %s 5\nme",
    b"007 %s 5 a b",
    b"7 %s 5-6 me",
    b"7 %s 5- me",
    b"7 %s 5-6-7 me",
    b"offer here",
]


class RealRedis:
    """A server behind the simulation's own operations."""

    def __init__(self, server: RedisServer) -> None:
        self.client: Any = redis.Redis.from_url(server.url)
        self.shas = {name: self.client.script_load(script.text) for name, script in SCRIPTS.items()}
        self.listeners: dict[str, Any] = {}

    def listen(self, names: Iterable[str]) -> frozenset[bytes]:
        """These listeners listen, and no others."""
        names = set(names)
        for name in names - set(self.listeners):
            self.listeners[name] = self.client.pubsub()
            self.listeners[name].subscribe(f"fencing:1:wake:{name}")
            self.listeners[name].get_message(timeout=60)
        for name in set(self.listeners) - names:
            listener = self.listeners.pop(name)
            listener.unsubscribe()
            listener.get_message(timeout=60)
            listener.close()
        return frozenset(name.encode() for name in self.listeners)

    def clock_us(self) -> int:
        seconds, microseconds = self.client.time()
        return int(seconds) * 1_000_000 + int(microseconds)

    def run(self, script: str, keys: Sequence[str], args: Sequence[str | int]) -> Reply:
        try:
            reply = self.client.evalsha(self.shas[script], len(keys), *keys, *args)
            return tuple(reply) if isinstance(reply, list) else reply
        except redis.ResponseError as error:
            raise ScriptError(str(error)) from None

    def load(self, snapshot: Snapshot) -> int:
        """Have what the snapshot has, but tickets as old by the server's clock. Return how far that is ahead."""
        self.client.flushall()
        self.listen(name.decode() for name in snapshot.listening)
        ahead = self.clock_us() - snapshot.clock_us
        for entry in snapshot.entries:
            value = entry.value
            if isinstance(value, tuple):
                value = tuple((each[0] + ahead, each[1]) if isinstance(each[0], float) else each for each in value)  # type: ignore[assignment]
            self.set(entry.key, value)
            if entry.expires_ms is not None:
                left = entry.expires_ms - snapshot.clock_us // 1000
                # An offer would end before it is looked at.
                self.client.pexpire(entry.key, max(left, SLACK_MS - 500) if left > 0 else left)
        return ahead

    def set(self, key: str, value: Value) -> None:
        if not isinstance(value, bytes):
            self.client.delete(key)
        if value is None:
            self.client.rpush(key, "x")
        elif isinstance(value, bytes):
            self.client.set(key, value)
        else:
            for each in value:
                if isinstance(each[0], bytes):
                    self.client.hset(key, each[0], each[1])
                else:
                    self.client.zadd(key, {each[1]: each[0]})

    def received(self) -> list[tuple[bytes, bytes]]:
        """What the listeners were told since it was last asked, in some order."""
        said = []
        for name, listener in self.listeners.items():
            listener.ping()  # its reply comes behind all that was published before
            while (message := listener.get_message(timeout=60)) and message["type"] != "pong":
                said.append((name.encode(), message["data"]))
        return said

    def snapshot(self, clock_us: int) -> Snapshot:
        """All keys, their ttls as moments of the given clock."""
        keys = sorted(str(key, "utf-8") for key in self.client.scan_iter(count=100))
        pipeline = self.client.pipeline(transaction=True)
        for key in keys:
            pipeline.pttl(key)
            pipeline.get(key)
            pipeline.zrange(key, 0, -1, withscores=True)
            pipeline.hgetall(key)
        answers = pipeline.execute(raise_on_error=False)
        entries = []
        for index, key in enumerate(keys):
            left, text, scored, counts = answers[4 * index : 4 * index + 4]
            value: Value = None
            if isinstance(text, bytes):
                value = text
            elif isinstance(scored, list):
                value = tuple((score, member) for member, score in scored)
            elif isinstance(counts, dict):
                value = tuple(sorted((field, int(count)) for field, count in counts.items()))
            entries.append(Entry(key, value, None if left < 0 else clock_us // 1000 + left))
        return Snapshot(tuple(entries), clock_us, frozenset(name.encode() for name in self.listeners))


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[RealRedis]:
    if redis_server.external:
        pytest.skip("needs a server of its own: it looks at all keys")
    connected = RealRedis(redis_server)
    yield connected
    connected.listen(())
    connected.client.close()


def attempt(run: Callable[[], Reply]) -> Reply:
    """The reply; of an error, its first words and what it is about."""
    try:
        return run()
    except ScriptError as error:
        text = str(error)
        return (next(kind for kind in ("WRONGTYPE", "FENCING", "not an integer") if kind in text).encode(),)


def parts(reply: Reply) -> tuple[bytes | int, ...]:
    if isinstance(reply, bytes):
        return tuple(reply.split(b" "))  # of acquire_any, two numbers
    return reply if isinstance(reply, tuple) else (reply,)


def alike(real: bytes | int, early: bytes | int, late: bytes | int) -> bool:
    """Whether a value of a reply, or a word of a stored string, is what it must be at some moment between."""
    if real in (early, late):
        return True
    if isinstance(real, int) and isinstance(early, int) and isinstance(late, int):
        return min(early, late) - SLACK_MS <= real <= max(early, late) + SLACK_MS
    texts = [real, early, late]
    if not all(isinstance(text, bytes) and text.isdigit() for text in texts):
        return False
    number, low, high = (float(text) for text in texts)
    return low <= number <= high  # microseconds


def names(snapshot: Snapshot) -> list[str]:
    return [entry.key for entry in snapshot.entries]


def shape(snapshot: Snapshot) -> list[object]:
    """What there is, without the values of strings."""
    values = [None if isinstance(entry.value, bytes) else _without_tickets(entry.value) for entry in snapshot.entries]
    return list(zip(names(snapshot), values, strict=True))


def compare(said: str, real: Snapshot, early: Snapshot, late: Snapshot) -> None:
    assert names(real) == names(early), said
    for entry, low, high in zip(real.entries, early.entries, late.entries, strict=True):
        if entry.value is None or low.value is None or high.value is None:
            assert (entry.value, low.value, high.value) == (None, None, None), (said, entry, low)
        elif (
            not isinstance(entry.value, bytes) or not isinstance(low.value, bytes) or not isinstance(high.value, bytes)
        ):
            assert _without_tickets(entry.value) == _without_tickets(low.value), (said, entry, low)
        else:
            words = [re.split(rb" |(?<=\d)-(?=\d)", text) for text in (entry.value, low.value, high.value)]
            assert all(map(alike, *words)), (said, entry, low, high)
            assert len({len(each) for each in words}) == 1, (said, entry, low)
        assert (entry.expires_ms is None) == (low.expires_ms is None), (said, entry, low)
        if entry.expires_ms is not None and low.expires_ms is not None and high.expires_ms is not None:
            assert low.expires_ms - SLACK_MS <= entry.expires_ms <= high.expires_ms + SLACK_MS, (said, entry, low)


def _without_tickets(value: Value) -> object:
    """Of a queue its order alone: the tickets are of the server's clock."""
    if isinstance(value, tuple):
        return [each[1] if isinstance(each[0], float) else each for each in value]
    return value


def random_arguments(chance: random.Random, script: str, before: Snapshot) -> tuple[list[str], list[str | int]]:
    keys = keys_of(chance.choice(RESOURCES))
    token, ttl = chance.choice(TOKENS), chance.choice(TTLS)
    records = [str(each.value, "utf-8") for each in before.entries if isinstance(each.value, bytes)]
    numbers: list[str | int] = [5, 7, *(record.split(" ")[0] for record in records)]
    if script == "renew":
        many = [keys_of(chance.choice(RESOURCES)) for _ in range(chance.randint(1, 3))]
        args = []
        for _ in many:
            token = chance.choice(TOKENS)
            args += [chance.choice(TTLS[1:]), token, f"{chance.choice(numbers)} {token} "]
        return [key for its in many for key in (its.lock, its.holder)], args
    listener = chance.choice(["", *LISTENERS, *LISTENERS])
    if script == "release":
        return [keys.lock, keys.holder, keys.queue, keys.listeners], [token, listener] if listener else [token]
    if script == "release_later":
        return [keys.lock, keys.holder, keys.queue], [token, chance.choice(TOKENS), chance.choice(TTLS[1:])]
    if script == "release_several":
        many = [keys_of(resource) for resource in chance.sample(RESOURCES, min(2, len(RESOURCES)))]
        return _four_keys_of_each(many), [chance.choice(TOKENS) for _ in many]
    if script == "holder":
        return [keys.lock, keys.holder, keys.queue], []
    if script == "forced_by":
        return [keys.forced], [token]
    floor = chance.choice(NUMBERS) if chance.random() < 0.2 else chance.randint(0, 100)
    args = [token, ttl, chance.choice(OWNERS), floor, chance.choice("0001")]
    if script == "acquire_any":
        return [*_four_keys_of_each(map(keys_of, RESOURCES)), keys.counter], [*args, chance.randrange(len(RESOURCES))]
    if script == "remint":
        args += [chance.choice(TOKENS), chance.choice(numbers)]
    if script == "acquire":
        ticket = chance.choice(["", "", "1000", str(chance.randint(1, 10**16))])
        args = [*args, listener, ticket] if listener or ttl == "" or chance.random() < 0.3 else args[:3]
        return [keys.lock, keys.holder, keys.counter, keys.queue, keys.listeners], args
    if script == "force_release":
        args.append(digest_of(chance.choice(TOKENS)))
        return [keys.lock, keys.holder, keys.counter, keys.forced], args
    return [keys.lock, keys.holder, keys.counter], args


def _four_keys_of_each(many: Iterable[Keys]) -> list[str]:
    return [key for its in many for key in (its.lock, its.holder, its.queue, its.listeners)]


def tampering(chance: random.Random) -> tuple[str, Value]:
    """What else may happen to the keys: None deletes nothing; a value of None is one that is no string."""
    keys = keys_of(chance.choice(RESOURCES))
    token = chance.choice(TOKENS).encode()
    kind = chance.random()
    if kind < 0.1:
        queue = [(float(chance.randint(1, 10**16)), entry) for entry in chance.sample(QUEUES, 3)]
        return keys.queue, chance.choice([tuple(sorted(queue)), None, b"no queue", ((b"here", 1),)])
    if kind < 0.25:
        return keys.listeners, chance.choice([((b"here", 1),), ((b"here", 2), (b"there", 1)), None, ((1.0, b"here"),)])
    if kind < 0.45:
        return keys.lock, chance.choice([token, token, b"a foreign holder's value", b"", None])
    if kind < 0.7:
        return keys.holder, chance.choice([None, *(each.replace(b"%s", token) for each in HOLDERS)])
    return keys.counter, chance.choice([None, *COUNTERS, *(b"%d" % number for number in NUMBERS)])


@pytest.mark.thorough
@pytest.mark.parametrize("calls", [600, 3000])
def test_random_calls(real: RealRedis, calls: int) -> None:
    seed = int(os.environ.get("FENCING_SEED", 0)) or random.randrange(1, 2**32)
    print(f"FENCING_SEED={seed}, {calls} calls")
    chance = random.Random(seed)
    simulated = SimulatedRedis(Snapshot((), real.clock_us(), real.listen(LISTENERS[:-1])))
    replies: dict[bytes, int] = {}
    received: dict[bytes, int] = {}
    for index in range(calls):
        said = f"FENCING_SEED={seed}, call {index}"
        before = simulated.snapshot()
        if chance.random() < 0.1:
            key = chance.choice([entry.key for entry in before.entries] or ["nothing"])
            simulated.delete(key)
            real.client.delete(key)
        elif chance.random() < 0.1:
            change = tampering(chance)
            simulated.set(*change)
            real.set(*change)
        else:
            script = chance.choice([*sorted(SCRIPTS), *["acquire", "release"] * 4])
            keys, args = random_arguments(chance, script, before)
            said = f"{said}: {script} {keys} {args} on {before.entries}"
            early, answer, notified = _at(before, real.clock_us(), script, keys, args)
            reply = attempt(lambda: real.run(script, keys, args))  # noqa: B023 - called at once
            late, last, notified_late = _at(before, real.clock_us(), script, keys, args)
            received_texts = sorted(real.received())
            assert received_texts in (sorted(notified), sorted(notified_late)), said  # a waiter is new for a while
            for _, text in received_texts:
                kind = text.split()[0]
                received[kind] = received.get(kind, 0) + 1
            kind = kind_of(reply) or b"%b %d" % (script.encode(), reply if isinstance(reply, int) else -1)
            replies[kind] = replies.get(kind, 0) + 1
            assert type(reply) is type(answer) is type(last), (said, reply, answer)
            assert len(parts(reply)) == len(parts(answer)) == len(parts(last)), (said, reply, answer)
            assert all(map(alike, parts(reply), parts(answer), parts(last))), (said, reply, answer, last)
            if kind == b"held":
                assert parts(reply)[-1] == parts(answer)[-1], (said, reply, answer)  # how many wait, and no time
            state = real.snapshot(real.clock_us())
            # A busy machine may let an offer end before it is looked at, or a waiter be new no more.
            if shape(_aged(early, real.clock_us())) == shape(_aged(late, state.clock_us)):
                compare(said, state, _aged(early, state.clock_us), _aged(late, state.clock_us))
            simulated = SimulatedRedis(state)  # which has the real clock's numbers
            for entry in state.entries:
                if entry.expires_ms is not None and entry.expires_ms < state.clock_us // 1000 + SLACK_MS:
                    # So that nothing expires between two calls.
                    if real.client.pexpire(entry.key, 60_000):
                        simulated.pexpire(entry.key, 60_000)
                    else:
                        simulated.delete(entry.key)
    print(replies, received)
    if calls >= 3000:  # in fewer, something may be missing by chance
        assert set(received) >= {b"grant", b"recheck"}
        assert set(replies) >= {
            b"acquire -1",
            b"taken",
            b"queued",
            b"implausible",
            b"renew -1",
            b"release 0",
            b"release 1",
            b"release 2",
            b"release 3",
            b"gone",
            b"held",
            b"free",
        }


def _at(
    before: Snapshot, clock_us: int, script: str, keys: list[str], args: list[str | int]
) -> tuple[Snapshot, Reply, list[tuple[bytes, bytes]]]:
    simulated = SimulatedRedis(before._replace(clock_us=clock_us))
    reply = attempt(lambda: simulated.run(script, keys, args))
    return simulated.snapshot(), reply, simulated.published


def _aged(snapshot: Snapshot, clock_us: int) -> Snapshot:
    return SimulatedRedis(snapshot._replace(clock_us=clock_us)).snapshot()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "redis_server",
    ["8", "7", "6.2"],
    indirect=True,
)
@pytest.mark.parametrize(
    "name",
    [
        "3 that queue",
        "3 that queue, data loss",
        "2 clients, twice refused",
    ],
)
def test_every_call_the_explorer_made(real: RealRedis, name: str) -> None:
    """Not a sample: each distinct script call on each distinct state of a small exploration, on the real server."""
    result = explored(name)
    assert result.world is not None
    for (before, call), (reply, after, notified) in result.world.calls.items():
        said = f"{call} on {before}"
        while True:
            ahead = real.load(before)
            args = list(call.args)
            if call.script.name == "acquire" and args[6:] > [""]:
                args[6] = int(args[6]) + ahead  # its ticket
            began = time.monotonic()
            answer = list(parts(real.run(call.script.name, call.keys, args)))
            state = real.snapshot(after.clock_us)
            received = real.received()
            if time.monotonic() - began < ACCEPT_MS / 2000:
                break  # otherwise an offer may have ended before it was looked at
        answer, wanted = ([word for word in each if word != b"offered"] for each in (answer, parts(reply)))
        assert len(answer) == len(wanted), said
        if kind_of(reply) == b"queued":
            answer[1] = wanted[1]  # a moment of another clock
        assert all(alike(mine, theirs, theirs) for mine, theirs in zip(answer, wanted, strict=True)), (
            said,
            answer,
        )
        assert sorted(received) == sorted(notified), said
        assert names(state) == names(after), said
        for mine, theirs in zip(state.entries, after.entries, strict=True):
            if mine.key != KEYS.holder:  # which has the time of the grant
                assert _without_tickets(mine.value) == _without_tickets(theirs.value), said
    print(f"{len(result.world.calls)} distinct calls")

"""The published algorithms of Redisson and redsync over five nodes, in Python, on bare sockets.

They are written anew after the sources of redisson/redisson (``RedissonRedLock``, ``RedissonMultiLock``, and the script
of ``RedissonLock``) and go-redsync/redsync (``mutex.go``, version 4). So the table compares algorithms, not languages.
There are no faults, retries and time-outs: only the requests of a pair that succeeds, in their order.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from examples.servers import RedisServer
from fencing.kernel.fence import new_token
from fencing.redis.resp import INCOMPLETE, bulks, new_reader

TTL_MS = 10_000
CLOCK_DRIFT = 0.01

REDISSON_LOCK = """
if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return false
end
return redis.call('pttl', KEYS[1])
"""
REDISSON_EXPIRE = "return redis.call('pexpire', KEYS[1], ARGV[1])"
REDISSON_UNLOCK = """
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return false end
if redis.call('hincrby', KEYS[1], ARGV[2], -1) > 0 then
  redis.call('pexpire', KEYS[1], ARGV[1])
  return 0
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], '0')
return 1
"""
REDSYNC_RELEASE = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('del', KEYS[1])
"""


class Wires:
    """A socket to each node. ``ask`` writes a command to some of them, and returns when all of those have replied."""

    def __init__(self, servers: Sequence[RedisServer], scripts: Sequence[str]) -> None:
        self._sockets, self._readers = [], [new_reader() for _ in servers]
        self.all = range(len(servers))
        self.quorum = len(servers) // 2 + 1
        for server in servers:
            with server.client() as client:
                self.shas = [str(client.script_load(script)) for script in scripts]
            sock = socket.create_connection((server.host, server.port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(sock)

    def ask(self, nodes: Sequence[int], *words: Any) -> list[Any]:
        command = b"*%d\r\n%b" % (len(words), bulks(words))
        for node in nodes:
            self._sockets[node].sendall(command)
        poll, missing = select.poll(), {self._sockets[node].fileno(): node for node in nodes}
        for number in missing:
            poll.register(number, select.POLLIN)
        replies: list[Any] = []
        while missing:
            for number, _ in poll.poll():
                reader = self._readers[missing[number]]
                reader.feed(self._sockets[missing[number]].recv(65536))
                if (reply := reader.gets()) is not INCOMPLETE:
                    replies.append(reply)
                    poll.unregister(number)
                    del missing[number]
        return replies


def redisson(servers: Sequence[RedisServer]) -> Callable[[], object]:
    """Lock at one node after the other, at all of them; then set the ttl at all; unlock at all at once."""
    wires = Wires(servers, [REDISSON_LOCK, REDISSON_EXPIRE, REDISSON_UNLOCK])
    lock, expire, unlock = wires.shas
    key, channel = "orders:redisson", "redisson_lock__channel:{orders:redisson}"

    def pair() -> None:
        owner = new_token()
        acquired = [
            node for node in wires.all if wires.ask([node], "EVALSHA", lock, 1, key, 2 * TTL_MS, owner) == [None]
        ]
        assert len(acquired) >= wires.quorum
        wires.ask(acquired, "EVALSHA", expire, 1, key, TTL_MS)
        wires.ask(wires.all, "EVALSHA", unlock, 2, key, channel, TTL_MS, owner)

    return pair


def redsync(servers: Sequence[RedisServer]) -> Callable[[], object]:
    """SET NX at all nodes at once, and wait for all; compare and delete at all at once, and wait for all."""
    wires = Wires(servers, [REDSYNC_RELEASE])
    [release] = wires.shas
    key = "orders:redsync"

    def pair() -> None:
        value, started = new_token(), time.monotonic()
        granted = sum(reply == b"OK" for reply in wires.ask(wires.all, "SET", key, value, "NX", "PX", TTL_MS))
        until = started + TTL_MS / 1000 * (1 - CLOCK_DRIFT)
        assert granted >= wires.quorum
        assert time.monotonic() < until
        assert sum(wires.ask(wires.all, "EVALSHA", release, 1, key, value)) >= wires.quorum

    return pair

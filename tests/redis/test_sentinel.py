"""One Redis behind Sentinel: the primary dies, a replica takes over, and locks and waiters follow."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

from examples.servers import RedisServer, find_redis_binaries
from examples.servers.local import free_port
from tests.support import wait_until
from tests.support.fixtures import RedisFactory
from tests.support.sides import Account, Side
from tests.support.waiters import Queue, Waiter

QUICK: dict[str, Any] = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}


@pytest.fixture
def primary(fresh_redis: RedisFactory) -> RedisServer:
    return fresh_redis(version="8")


@pytest.fixture
def replica(primary: RedisServer, fresh_redis: RedisFactory) -> RedisServer:
    replica = fresh_redis(version="8", extra_args=["--repl-diskless-sync-delay", "0"])
    client = replica.client()
    primary.client().config_set("repl-diskless-sync-delay", 0)
    client.replicaof(primary.host, primary.port)
    wait_until(lambda: client.info("replication")["master_link_status"] == "up", 10)
    return replica


@pytest.fixture
def sentinel(primary: RedisServer, replica: RedisServer, tmp_path: Path) -> Iterator[tuple[str, int]]:
    port = free_port()
    lines = [
        f"port {port}",
        "bind 127.0.0.1",
        f"dir {tmp_path}",
        f"sentinel monitor shop {primary.host} {primary.port} 1",
        "sentinel down-after-milliseconds shop 2000",
        "sentinel failover-timeout shop 5000",
    ]
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text("\n".join(lines) + "\n")
    binary = next(found for found in find_redis_binaries() if found.version[0] == primary.version[0])
    with subprocess.Popen([binary.path, configuration, "--sentinel"], stdout=subprocess.DEVNULL) as process:
        client = redis.Redis("127.0.0.1", port, **QUICK)

        def knows_both() -> bool:
            try:
                return len(client.sentinel_slaves("shop")) == 1
            except redis.ConnectionError:
                return False

        try:
            wait_until(knows_both, 15)
            yield "127.0.0.1", port
        finally:
            process.kill()


def has_taken_over(replica: RedisServer) -> bool:
    try:
        return bool(replica.client().role()[0] == b"master")
    except redis.ConnectionError:  # Sentinel has a server that it promotes drop its clients
        return False


@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
def test_leases_and_waiters_follow_the_primary(
    side: Side, primary: RedisServer, replica: RedisServer, sentinel: tuple[str, int], account: Account
) -> None:
    watched: Any = (AsyncSentinel if side.asynchronous else Sentinel)([sentinel], sentinel_kwargs=QUICK, **QUICK)
    coordinator = side.coordinator(watched.master_for("shop"), ttl=60)
    assert "Sentinel service 'shop'" in coordinator.address
    lock = coordinator.lock("account", guards=[account.guard])
    lease = side.call(lock.acquire)
    account.write(lease, 1)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(3)]
    Queue(primary).has(3)
    primary.client().wait(1, 5000)  # the replica has it all
    primary.kill()
    wait_until(lambda: has_taken_over(replica), 30)

    listening: Any = replica.client().client_list
    wait_until(lambda: len(listening(_type="pubsub")) > 1, 30)  # one of them is Sentinel's
    assert side.call(holder.release) is True
    released_at = time.monotonic()
    took = max(waiter.join().granted_at for waiter in waiters) - released_at
    assert [waiter.error for waiter in waiters] == [None] * 3
    print(f"the waiters had it within {1000 * took:.0f} ms")
    assert took < 8, "without a message it takes 10 s, the longest recheck"

    side.call(lease.renew)
    assert side.call(lease.release) is True
    after = side.call(lock.acquire, timeout=30)
    assert after.fence.number > lease.fence.number
    account.write(after, account.balance + 1)
    assert account.balance == 2
    assert side.call(after.release) is True
    for client in watched.sentinels:
        side.call(client.aclose if side.asynchronous else client.close)

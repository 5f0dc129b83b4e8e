"""The coordinator's own connections: derived from the client's settings, few, and none of the client's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import socket
import time
import warnings
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider

from examples.servers import RedisServer
from fencing import (
    AsyncFencedLock,
    AsyncRedisCoordinator,
    CoordinatorUnavailable,
    FencedLock,
    LeaseLost,
    RedisCoordinator,
)
from fencing.kernel import lending
from fencing.redis.calls import release_call
from fencing.redis.client import Connections
from fencing.redis.connection import LazyConnection
from fencing.redis.connection_async import Request
from fencing.redis.connection_factory import MAX_CONNECTIONS
from tests.support import wait_until
from tests.support.bursts import burst_until
from tests.support.fixtures import RedisFactory
from tests.support.refusals import refused_as_held
from tests.support.sides import Side


def use(side: Side, coordinator: object) -> None:
    lease = side.call(coordinator.acquire, "r", timeout=5)  # type: ignore[attr-defined]
    side.call(lease.renew)
    assert side.call(lease.release) is True


def test_scripts_are_loaded_again_after_script_flush(side: Side, redis_server: RedisServer) -> None:
    coordinator = side.coordinator(redis_server.url)
    client = redis_server.client()
    for _ in range(2):
        client.script_flush()
        use(side, coordinator)
        lease = side.call(coordinator.acquire, "r")
        client.script_flush()
        side.call(lease.renew)
        client.script_flush()
        assert side.call(lease.release) is True


def test_a_killed_connection_is_replaced(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    use(side, coordinator)
    lease = side.call(coordinator.acquire, "r")
    client = any_redis.client()
    client.client_kill_filter(_type="normal", skipme=True)
    side.call(lease.renew)
    assert side.call(lease.release) is True


def test_the_connections_of_a_burst_are_given_up(fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many waiters make many requests at once. Afterwards one connection for those is enough, and the listener's."""
    server = fresh_redis()
    monkeypatch.setattr(lending, "IDLE_SECONDS", 0.1)
    side = Side(False)
    coordinator = side.coordinator(side.client(server.url, client_name="app"))
    admin = server.client()

    def connections() -> int:
        return sum(each["name"] == "app" for each in admin.client_list(_type="normal"))

    burst_until(side, coordinator, ("r",), lambda: connections() > 4)
    wait_until(lambda: connections() <= 1)
    use(side, coordinator)
    coordinator.close()


@pytest.mark.thorough
def test_an_interrupt_during_a_time_out_does_not_mix_up_replies(
    fresh_redis: RedisFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late reply is dropped, and not taken for the reply to the next call."""
    server = fresh_redis()
    client = server.client()
    with RedisCoordinator(server.client(), ttl=30) as coordinator:
        coordinator.acquire("warm").release()

        def interrupt(*_: object, interrupted: bool) -> None:
            raise KeyboardInterrupt

        server.freeze()
        with monkeypatch.context() as patch:
            patch.setattr(Connections, "_abandon", interrupt)
            with pytest.raises(KeyboardInterrupt):
                coordinator.acquire("r", timeout=0.2)
        server.thaw()
        wait_until(lambda: client.get("r") is None)
        assert coordinator.lock("free").holder() is None


def test_a_server_with_too_many_clients_is_asked_again(side: Side, fresh_redis: RedisFactory) -> None:
    """It refuses in place of the first reply, where redis-py sends no command while it connects."""
    server = fresh_redis()
    admin = server.client()
    names = inspect.signature(redis.connection.AbstractConnection).parameters
    silent = ["driver_info"] if "driver_info" in names else ["lib_name", "lib_version"]
    coordinator = side.coordinator(side.client(server.url, **dict.fromkeys(silent)))
    admin.config_set("maxclients", 1)
    with pytest.raises(CoordinatorUnavailable, match="no answer"):
        side.call(coordinator.acquire, "r", timeout=0.3)
    admin.config_set("maxclients", 1000)
    use(side, coordinator)


def test_a_restarted_server_is_found_again(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    coordinator = side.coordinator(server.url)
    lease = side.call(coordinator.acquire, "r")
    server.restart(keep_data=False)
    side.expect(LeaseLost, lease.renew)
    following = side.call(coordinator.acquire, "r", timeout=5)
    assert following.fence.number > lease.fence.number, "the clock floor outlives the data"
    side.call(following.release)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("database", [0, 3])
def test_the_protocol_and_the_database_are_those_of_the_client(
    side: Side, any_redis: RedisServer, protocol: int, database: int
) -> None:
    client = side.client(any_redis.url, protocol=protocol, db=database, decode_responses=True, client_name="app")
    coordinator = side.coordinator(client)
    lease = side.call(coordinator.acquire, "r", timeout=5)
    assert any_redis.client(db=database).get("r") == lease.fence.token.encode()
    side.call(lease.release)
    admin = any_redis.client()
    assert "app" in {each["name"] for each in admin.client_list(_type="normal")}


def test_passwords_and_acl_users_are_those_of_the_client(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis(extra_args=["--requirepass", "pass word"])
    use(side, side.coordinator(server.url))
    admin = server.client()
    admin.acl_setuser(
        "worker", enabled=True, passwords=["+secret"], keys=["*"], commands=[f"+{name}" for name in NEEDED]
    )
    client = side.client(f"redis://worker:secret@{server.host}:{server.port}")
    use(side, side.coordinator(client))
    assert "worker" in {each["user"] for each in admin.client_list(_type="normal")}


class Rotating(CredentialProvider):
    """A password that changes, as tokens of a cloud's identity service do."""

    password = "first"

    def get_credentials(self) -> tuple[str, str]:
        return ("worker", self.password)


def test_credentials_that_change(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    admin = server.client()
    rights: dict[str, Any] = {"enabled": True, "keys": ["*"], "categories": ["+@all"]}
    admin.acl_setuser("worker", passwords=["+first"], **rights)
    provider = Rotating()
    coordinator = side.coordinator(side.client(server.url, credential_provider=provider), ttl=60)
    use(side, coordinator)
    admin.acl_setuser("worker", reset_passwords=True, passwords=["+second"], **rights)
    provider.password = "second"

    def of_worker() -> set[str]:
        return {each["id"] for each in admin.client_list(_type="normal") if each["user"] == "worker"}

    before = of_worker()
    assert before
    use(side, coordinator)
    assert of_worker() == before, "what is connected stays so"
    for each in before:
        admin.client_kill_filter(_id=each)
    use(side, coordinator)
    assert of_worker()
    assert not of_worker() & before
    admin.acl_setuser("default", enabled=True, passwords=["+now needed"], keys=["*"], categories=["+@all"])
    side.call(_log_out, coordinator)
    use(side, coordinator)


def _log_out(coordinator: Any) -> Any:
    """Log the connection out, as a server does when the credentials have expired."""
    connections = coordinator._backend._connections
    if hasattr(connections, "_pool"):
        connection = connections._pool.free[-1].raw
        connection.send_command("RESET")
        return connection.read_response()
    [line] = connections._loops.values()
    now = time.monotonic()
    line._waiting.append(Request(release_call("r", "t" * 22), None, now, now + 10))  # whose reply RESET's is
    return line._connection.send_command("RESET")


NEEDED = (
    *("evalsha", "eval", "get", "mget", "set", "del", "incrby", "pttl", "pexpire", "time"),
    *("zcard", "zadd", "zrem", "zrange", "zrevrange", "zrank", "zscore", "zpopmin"),
    *("hincrby", "hexists", "hlen", "hget", "hdel", "hrandfield", "exists", "incr", "decr"),
    *("publish", "subscribe", "ping"),
)


def test_refused_credentials_are_named_in_the_error(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis(extra_args=["--requirepass", "right"])
    for url in (f"redis://:wrong@{server.host}:{server.port}", f"redis://{server.host}:{server.port}"):
        error = side.expect(CoordinatorUnavailable, side.coordinator(url, ttl=60).acquire, "r", timeout=30)
        assert "credentials" in str(error) or "NOAUTH" in str(error)
        assert "username and password" in str(error) or "Authentication required" in str(error)


def test_unix_socket(side: Side, fresh_redis: RedisFactory, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    fresh_redis(extra_args=["--unixsocket", str(path)])
    coordinator = side.coordinator(side.client(f"unix://{path}"))
    use(side, coordinator)
    assert coordinator.address == str(path)


def test_a_single_connection_client_keeps_its_connection(side: Side, any_redis: RedisServer) -> None:
    client = side.client(any_redis.url, single_connection_client=True)
    use(side, side.coordinator(client))
    assert side.call(client.ping) is True
    side.call(client.aclose if side.asynchronous else client.close)


@pytest.mark.thorough
def test_waiting_takes_no_connection_of_the_clients_pool(side: Side, fresh_redis: RedisFactory) -> None:
    server = fresh_redis()
    before = len(server.client().client_list(_type="normal"))
    client = side.client(server.url, max_connections=1)
    coordinator = side.coordinator(client)
    held = side.call(coordinator.acquire, "r")
    side.race([partial(refused_as_held, partial(side.call, coordinator.acquire, "r", timeout=1))] * 40)
    assert side.call(client.ping) is True
    assert side.call(held.release) is True
    connected = len(server.client().client_list(_type="normal"))
    assert connected - before <= MAX_CONNECTIONS + 3
    side.call(client.aclose if side.asynchronous else client.close)


def test_locks_made_from_one_client_share_its_coordinator(any_redis: RedisServer) -> None:
    client = any_redis.client()
    one, two = FencedLock(client, "a"), FencedLock(client, "b", ttl=3)
    assert one.coordinator is two.coordinator
    assert FencedLock(any_redis.client(), "a").coordinator is not one.coordinator
    with two.hold(timeout=0) as lease:
        assert 0 < lease.remaining() <= 3
    one.coordinator.close()


def test_clients_with_one_pool_have_one_coordinator(side: Side, fresh_redis: RedisFactory) -> None:
    """A web service makes a client for each request. The clients are gone before the locks are."""
    server = fresh_redis()
    kind: Any = AsyncFencedLock if side.asynchronous else FencedLock
    package: Any = redis.asyncio if side.asynchronous else redis
    before = len(server.client().client_list(_type="normal"))
    pool = package.ConnectionPool.from_url(server.url)
    locks = [kind(package.Redis(connection_pool=pool), "r", ttl=60) for _ in range(40)]
    coordinators = {lock.coordinator for lock in locks}
    held = side.call(locks[0].acquire)
    side.race([partial(refused_as_held, partial(side.call, lock.acquire, timeout=0.5)) for lock in locks[1:]])
    assert side.call(held.release) is True
    assert len(coordinators) == 1
    assert len(server.client().client_list(_type="normal")) - before <= MAX_CONNECTIONS + 3
    other = package.ConnectionPool.from_url(server.url, db=1)
    assert kind(package.Redis(connection_pool=other), "r").coordinator not in coordinators
    side.call(coordinators.pop().close)


def test_the_coordinator_of_a_pool_goes_with_it(any_redis: RedisServer) -> None:
    pool = redis.ConnectionPool.from_url(any_redis.url)
    coordinator = weakref.ref(FencedLock(redis.Redis(connection_pool=pool), "r").coordinator)
    gc.collect()
    assert coordinator() is FencedLock(redis.Redis(connection_pool=pool), "other").coordinator
    del pool
    gc.collect()
    assert coordinator() is None


def test_a_missing_server_is_named_by_its_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        port = unused.getsockname()[1]
        with pytest.raises(CoordinatorUnavailable) as caught:
            FencedLock(redis.Redis("127.0.0.1", port), "r", ttl=1).acquire(timeout=0.1)
    assert "Connection refused; check that it runs and that the address is right" in str(caught.value)
    assert caught.value.address == f"127.0.0.1:{port}"


def test_a_shared_coordinator_that_was_closed_is_replaced(any_redis: RedisServer) -> None:
    client = any_redis.client()
    FencedLock(client, "r").coordinator.close()
    lock = FencedLock(client, "r")
    with lock.hold(timeout=5) as lease:
        assert lease.held
    lock.coordinator.close()


def test_each_event_loop_leaves_nothing_behind(fresh_redis: RedisFactory) -> None:
    """A worker that calls asyncio.run for each job, with one coordinator."""
    server = fresh_redis()
    coordinator = AsyncRedisCoordinator(redis.asyncio.Redis.from_url(server.url))
    client = server.client()

    def connections() -> set[str]:
        return {connection["id"] for connection in client.client_list(_type="normal")}

    before = connections()

    async def job() -> None:
        async with coordinator.hold("r", timeout=5):
            pass

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # asyncio's, of connections that outlive their loop
        for _ in range(20):
            asyncio.run(job())
        assert len(coordinator._backend._connections._loops) == 1
        asyncio.run(coordinator.close())
        assert not coordinator._backend._connections._loops
        gc.collect()
    wait_until(lambda: connections() <= before)


def test_a_closed_coordinator_refuses_to_acquire(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    use(side, coordinator)
    side.call(coordinator.close)
    side.call(coordinator.close)
    error = side.expect(RuntimeError, coordinator.acquire, "r")
    assert "closed" in str(error)


@pytest.mark.parametrize("side", ["sync"], indirect=True)  # a script decides
def test_a_key_of_another_type_is_named_and_not_changed(side: Side, redis_server: RedisServer) -> None:
    client = redis_server.client()
    client.rpush("r", "a list")
    error = side.expect(CoordinatorUnavailable, side.coordinator(redis_server.url).acquire, "r", timeout=5)
    assert "WRONGTYPE" in str(error)
    assert "script" not in str(error), "where Redis ran it helps nobody"
    assert "; the key of that name has other data: choose another" in str(error)
    assert client.lrange("r", 0, -1) == [b"a list"]
    assert client.keys() == [b"r"], "every check comes before the first write"


@pytest.mark.parametrize("side", ["sync"], indirect=True)  # a script decides
@pytest.mark.parametrize("value", ["not a number", "-3", "1e15"])
def test_a_broken_counter_is_named_and_not_changed(side: Side, redis_server: RedisServer, value: str) -> None:
    coordinator = side.coordinator(redis_server.url)
    use(side, coordinator)
    client = redis_server.client()
    [counter] = client.keys("fencing:1:*:counter")
    client.set(counter, value)
    error = side.expect(CoordinatorUnavailable, coordinator.acquire, "r", timeout=5)
    assert "counter" in str(error)
    assert client.keys() == [counter]
    assert client.get(counter) == value.encode()


@pytest.mark.parametrize("side", ["sync"], indirect=True)  # a script decides
def test_numbers_are_exact_up_to_the_last_and_then_refused(side: Side, redis_server: RedisServer) -> None:
    """A Lua number is a double. Returned as such, it would be …992 three times: three equal fences."""
    coordinator = side.coordinator(redis_server.url)
    use(side, coordinator)
    client = redis_server.client()
    [counter] = client.keys("fencing:1:*:counter")
    client.set(counter, 2**53 - 4)
    numbers = []
    for _ in range(3):
        lease = side.call(coordinator.acquire, "r")
        numbers.append(lease.fence.number)
        side.call(lease.release)
    assert numbers == [2**53 - 3, 2**53 - 2, 2**53 - 1]
    error = side.expect(Exception, coordinator.acquire, "r")
    assert type(error).__name__ == "MarkImplausible"
    assert client.get(counter) == str(2**53 - 1).encode()
    assert client.get("r") is None


@pytest.mark.parametrize("side", ["sync"], indirect=True)  # a script decides
def test_foreign_holders_and_our_locks_exclude_each_other(side: Side, redis_server: RedisServer) -> None:
    """The key and its value are those of redis-py's own Lock, so old and new workers can run side by side."""
    client = redis_server.client()
    coordinator = side.coordinator(redis_server.url)
    foreign = client.lock("r", timeout=60)
    assert foreign.acquire(blocking=False)
    assert side.call(coordinator.try_acquire, "r") is None
    holder = side.call(coordinator.lock("r").holder)
    assert (holder.owner, holder.number, holder.held_for) == (None, None, None)
    assert 0 < holder.remaining <= 60
    foreign.release()
    lease = side.call(coordinator.acquire, "r", timeout=5)
    assert not client.lock("r", timeout=5).acquire(blocking=False)
    with pytest.raises(redis.exceptions.LockError):
        foreign.release()
    side.call(lease.release)
    endless = client.lock("r")  # redis-py's default: no ttl
    assert endless.acquire(blocking=False)
    assert side.call(coordinator.lock("r").holder).remaining is None
    assert side.call(coordinator.try_acquire, "r") is None
    endless.release()


def test_a_request_that_is_sent_in_parts() -> None:
    ours, theirs = socket.socketpair()
    request = b"x" * 1_000_000  # more than the system takes at once

    def answer() -> None:
        left = len(request)
        while left and (received := theirs.recv(left)):
            left -= len(received)
        theirs.sendall(b":1\r\n")

    with ours, theirs, concurrent.futures.ThreadPoolExecutor() as threads:
        connection = LazyConnection()
        raw = SimpleNamespace(_sock=ours, connect=lambda: ours.settimeout(2), disconnect=ours.close)
        connection.open(raw, 2.0)
        answered = threads.submit(answer)
        try:
            assert connection.ask(request, time.monotonic() + 2) == 1
        finally:
            ours.shutdown(socket.SHUT_WR)
        answered.result()
        connection.close()

"""Redis Cluster: slots move, nodes come and go, and locks and waiters follow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from examples.servers import RedisCluster, RedisServer
from fencing import AsyncRedisCoordinator, CoordinatorUnavailable, NotAcquired
from fencing.redis.keys import slot_of, tag_of
from fencing.redis.listener import Heartbeat
from tests.support import wait_until
from tests.support.fixtures import REDIS_SERIES, RedisClusters, newest_local_series
from tests.support.sides import Account, Side
from tests.support.waiters import KEYS, Queue, Waiter

SLOT = slot_of(b"r")
TTL = 1.5


THOROUGH = pytest.mark.thorough


@pytest.fixture(params=["newest", *(pytest.param(series, marks=THOROUGH) for series in REDIS_SERIES[1:])])
def each_cluster(request: pytest.FixtureRequest, redis_clusters: RedisClusters) -> RedisCluster:
    """An empty Redis Cluster: the newest version, and with --thorough the others."""
    cluster = redis_clusters.get(newest_local_series() if request.param == "newest" else request.param)
    cluster.flush()
    return cluster


def listed(coordinator: Any, pattern: str) -> Any:
    async def collect() -> list[Any]:
        return [each async for each in coordinator.holders(pattern)]

    return collect() if isinstance(coordinator, AsyncRedisCoordinator) else list(coordinator.holders(pattern))


def another_primary(cluster: RedisCluster) -> RedisServer:
    own = cluster.primary_of("r")
    return next(server for server in cluster.primaries() if server is not own)


@contextlib.contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
    assert errors == []


@pytest.mark.thorough
def test_a_slot_moves_while_one_holds_and_three_wait(side: Side, each_cluster: RedisCluster) -> None:
    coordinator = side.coordinator(side.cluster_client(each_cluster), ttl=TTL)
    holder = side.call(coordinator.acquire, "r")
    queue, waiters, held = Queue(each_cluster), [], []
    for count in (1, 2, 3):
        waiters.append(Waiter(side, coordinator))
        queue.has(count)

    def between() -> None:
        # A lease is not renewed while its keys are apart. So that a renewal fails, they are apart for longer than the
        # third of the ttl after which it comes; and all together for less than a ttl.
        time.sleep(TTL / 12)
        held.append(holder.held)

    target = another_primary(each_cluster)
    began = time.monotonic()
    each_cluster.move_slot(SLOT, target, between=between)
    assert time.monotonic() - began > TTL / 3
    assert each_cluster.primary_of("r") is target
    assert len(held) >= 5, "it had its keys there"
    assert all(held)
    assert holder.fence.number is not None
    assert len(queue) == 3
    released_at = time.monotonic()
    assert side.call(holder.release) is True
    for waiter in waiters:
        assert waiter.join().error is None
    order = [holder, *(waiter.lease for waiter in waiters)]
    numbers = [lease.fence.number for lease in order]
    if each_cluster.version >= (7,):  # earlier, nobody is told that a slot has moved
        assert numbers == sorted(numbers)
    assert max(waiter.granted_at for waiter in waiters) - released_at < 8, "without a message it takes ten seconds"


def test_a_lock_is_handed_to_its_only_waiter_while_its_slot_moves(side: Side, each_cluster: RedisCluster) -> None:
    """The hand-over empties the queue, and in a slot that moves a key that is gone is an error."""
    coordinator = side.coordinator(side.cluster_client(each_cluster), ttl=60)
    holder = side.call(coordinator.acquire, "r")
    waiter = Waiter(side, coordinator)
    Queue(each_cluster).has(1)
    released: list[bool] = []

    def between() -> None:
        if not released:  # all keys are there still
            released.append(side.call(holder.release))

    each_cluster.move_slot(SLOT, another_primary(each_cluster), between=between)
    assert released == [True]
    assert waiter.join().error is None
    assert waiter.lease.fence.number > holder.fence.number


def test_a_subscription_at_another_node_is_sent_at_once(
    side: Side, redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiter whose slot has moved subscribes at the new node. If that waits for the listener's next tick, its
    offer ends meanwhile, and another waiter is served before it."""
    own = redis_cluster.primary_of("r")
    names = [f"orders:{number}" for number in range(40)]
    resources = ["r", next(name for name in names if redis_cluster.primary_of(name) is not own)]
    coordinator = side.coordinator(side.cluster_client(redis_cluster), ttl=60)
    leases = [side.call(coordinator.acquire, resource) for resource in resources]
    monkeypatch.setattr(Heartbeat, "TICK_SECONDS", 60.0)
    with ThreadPoolExecutor() as pool:
        waits = []
        for resource in resources:
            waits.append(pool.submit(side.call, coordinator.acquire, resource, timeout=30))
            Queue(redis_cluster, resource).has(1, seconds=5)  # not at the tick, or at the next attempt after 10 s
        for lease in leases:
            side.call(lease.release)
        for wait in waits:
            side.call(wait.result().release)


def test_waiters_are_told_that_their_slot_has_moved(side: Side, redis_cluster: RedisCluster) -> None:
    """With a long ttl, a waiter that is not told asks again after ten seconds."""
    coordinator = side.coordinator(side.cluster_client(redis_cluster), ttl=60)
    holder = side.call(coordinator.acquire, "r")
    queue, waiters = Queue(redis_cluster), []
    for count in (1, 2, 3):
        waiters.append(Waiter(side, coordinator))
        queue.has(count)
    source: Any = redis_cluster.primary_of("r").client()
    renewals = []

    def is_here(key: str) -> bool:
        try:
            return bool(source.exists(key))
        except redis.ResponseError:  # ASK
            return False

    def between() -> None:
        if not is_here(KEYS.lock) and not is_here(KEYS.holder):  # both are there already: ASK
            renewals.append(side.call(holder.renew))

    redis_cluster.move_slot(SLOT, another_primary(redis_cluster), between=between)
    assert renewals
    released_at = time.monotonic()
    assert side.call(holder.release) is True
    took = max(waiter.join().granted_at for waiter in waiters) - released_at
    assert [waiter.error for waiter in waiters] == [None] * 3
    assert took < 8


def test_of_waiters_with_a_limit_those_that_died_do_not_count(side: Side, redis_cluster: RedisCluster) -> None:
    coordinator = side.coordinator(side.cluster_client(redis_cluster), ttl=30, max_waiters=1)
    queue, holder = Queue(redis_cluster), side.call(coordinator.acquire, "r")
    gone = f"s{{{tag_of('r')}}}gone"
    queue.client.zadd(KEYS.queue, {f"{gone} {'0' * 22}": 1e17})
    queue.client.hset(KEYS.listeners, gone, 1)
    waiter = Waiter(side, coordinator)
    wait_until(lambda: [gone.encode() in entry for entry in queue.entries()] == [False])
    assert side.expect(NotAcquired, coordinator.acquire, "r", timeout=30).waiters == 1
    side.call(holder.release)
    assert waiter.join().error is None


@pytest.mark.thorough
def test_a_free_lock_is_taken_when_its_slot_has_moved(side: Side, each_cluster: RedisCluster) -> None:
    coordinator = side.coordinator(side.cluster_client(each_cluster), ttl=10)
    before = side.call(coordinator.acquire, "r")
    side.call(before.release)  # of its keys, only the counter exists: see docs/coordinators/redis.md
    moving, counts_up = threading.Event(), threading.Event()

    def between() -> None:
        moving.set()
        counts_up.wait(20)

    with in_background(lambda: each_cluster.move_slot(SLOT, another_primary(each_cluster), between=between)):
        try:
            assert moving.wait(10)
            with pytest.raises((NotAcquired, CoordinatorUnavailable)):
                side.call(coordinator.acquire, "r", timeout=0.2)
            waiter = Waiter(side, coordinator, timeout=20)
        finally:
            counts_up.set()
    assert waiter.join().error is None
    assert waiter.lease.fence.number > before.fence.number


@pytest.mark.thorough
def test_a_replica_takes_over_by_hand(side: Side, each_cluster: RedisCluster) -> None:
    coordinator = side.coordinator(side.cluster_client(each_cluster), ttl=10)
    holder = side.call(coordinator.acquire, "r")
    waiter = Waiter(side, coordinator, timeout=30)
    Queue(each_cluster).has(1)
    [replica] = each_cluster.replicas_of(each_cluster.primary_of("r"))
    client: Any = replica.client()
    client.execute_command("CLUSTER FAILOVER")
    wait_until(lambda: each_cluster.is_primary(replica))
    side.call(holder.renew)
    released_at = time.monotonic()
    assert side.call(holder.release) is True
    assert waiter.join().error is None
    assert waiter.granted_at - released_at < 8, "without a message it takes ten seconds"
    each_cluster.wait_until_ready()


def test_several_locks_lie_in_several_slots(side: Side, each_cluster: RedisCluster) -> None:
    coordinator = side.coordinator(side.cluster_client(each_cluster), ttl=TTL)
    names = [f"orders:{number}" for number in range(20)]
    leases = [side.call(coordinator.acquire, name) for name in names]
    due = min(lease.remaining() for lease in leases)
    wait_until(lambda: min(lease.remaining() for lease in leases) > due - 0.1)
    time.sleep(TTL)
    assert all(lease.held for lease in leases), "renewals go to every node"
    found = dict(side.call(listed, coordinator, "orders:*"))
    assert sorted(found) == sorted(names)
    assert {found[lease.fence.resource].number for lease in leases} == {lease.fence.number for lease in leases}
    for lease in leases:
        assert side.call(lease.release) is True


class Load:
    """Threads that count up a balance, each time under the lock and its guard."""

    def __init__(self, side: Side, cluster: RedisCluster, account: Account, threads: int = 3) -> None:
        self.acknowledged = 0
        self.numbers: list[int] = []
        self.errors: list[BaseException] = []
        self._stopped = threading.Event()
        self._count = threading.Lock()
        self._side, self._account = side, account
        self._coordinator = side.coordinator(side.cluster_client(cluster), ttl=2, guards=[account.guard])
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while not self._stopped.is_set():
            try:
                lease = self._side.call(self._coordinator.acquire, "r", timeout=10)
            except (NotAcquired, CoordinatorUnavailable):
                continue
            except BaseException as error:  # noqa: BLE001 - the test reads it
                self.errors.append(error)
                return
            try:
                self._account.write(lease, self._account.balance + 1)
                with self._count:
                    self.acknowledged += 1
                    self.numbers.append(lease.fence.number)
            except Exception:  # noqa: BLE001 - refused: a newer holder has claimed
                pass
            with contextlib.suppress(Exception):
                self._side.call(lease.release)

    def counts_up(self) -> None:
        """Wait until it has counted on."""
        reached = self.acknowledged + 5
        wait_until(lambda: self.acknowledged >= reached or self.errors)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(60)
        assert self.errors == []
        assert self._account.balance == self.acknowledged, "an acknowledged update was lost"
        assert self.numbers == sorted(self.numbers)


def kill_a_primary(cluster: RedisCluster, load: Load) -> None:
    killed = cluster.primary_of("r")
    killed.kill()
    wait_until(lambda: len(cluster.primaries()) == 3)
    load.counts_up()
    killed.restart()
    cluster.wait_until_ready()


def add_a_node(cluster: RedisCluster, load: Load) -> None:
    added = cluster.add_primary()
    cluster.move_slot(SLOT, added)


def restart_all(cluster: RedisCluster, load: Load) -> None:
    for server in cluster.servers:
        server.restart()
        cluster.wait_until_ready()


def cut_off_the_majority(cluster: RedisCluster, load: Load) -> None:
    """Freeze all nodes but the lock's primary, until it refuses to work."""
    own = cluster.primary_of("r")
    others = [server for server in cluster.servers if server is not own]
    for server in others:
        server.freeze()
    try:
        client: Any = own.client()
        wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "fail")
    finally:
        for server in others:
            server.thaw()
    cluster.wait_until_ready()


@THOROUGH
@pytest.mark.parametrize("account", ["sqlite"], indirect=True)
@pytest.mark.parametrize("event", [kill_a_primary, add_a_node, restart_all, cut_off_the_majority])
def test_no_update_is_lost(
    side: Side, fresh_cluster: RedisCluster, account: Account, event: Callable[[RedisCluster, Load], None]
) -> None:
    load = Load(side, fresh_cluster, account)
    try:
        load.counts_up()
        event(fresh_cluster, load)
        load.counts_up()
    finally:
        load.stop()


@THOROUGH
def test_waiters_survive_a_killed_primary(side: Side, fresh_cluster: RedisCluster) -> None:
    coordinator = side.coordinator(side.cluster_client(fresh_cluster), ttl=20)
    elsewhere = next(
        name for name in map(str, range(99)) if fresh_cluster.primary_of(name) is not fresh_cluster.primary_of("r")
    )
    other = side.call(coordinator.acquire, elsewhere)
    holder = side.call(coordinator.acquire, "r")
    waiters = [Waiter(side, coordinator) for _ in range(3)]
    Queue(fresh_cluster).has(3)
    primary = fresh_cluster.primary_of("r")
    client: Any = primary.client()
    client.wait(1, 5000)  # the replica has it all
    primary.kill()
    wait_until(lambda: len(fresh_cluster.primaries()) == 3)
    side.call(holder.renew)
    released_at = time.monotonic()
    assert side.call(holder.release) is True
    took = max(waiter.join().granted_at for waiter in waiters) - released_at
    assert [waiter.error for waiter in waiters] == [None] * 3
    assert took < 8, "without a message it takes ten seconds"
    assert side.call(other.release) is True


# Bad input


def refused_within(seconds: float, call: Callable[[], object]) -> str:
    started = time.monotonic()
    with pytest.raises(CoordinatorUnavailable) as caught:
        call()
    assert time.monotonic() - started < seconds
    text = str(caught.value)
    print(text)
    assert len(text) < 300
    return text


def works_again(side: Side, coordinator: Any) -> bool:
    try:
        side.call(side.call(coordinator.acquire, "r", timeout=20).release)
    except CoordinatorUnavailable:  # nodes are asked once a second
        return False
    return True


def test_one_server_is_given_as_a_cluster(any_redis: RedisServer) -> None:
    side = Side(asynchronous=True)  # the sync client itself refuses it
    client = redis.asyncio.RedisCluster(host=any_redis.host, port=any_redis.port)
    coordinator = side.coordinator(client)
    text = refused_within(30, lambda: side.call(coordinator.acquire, "r", timeout=60))
    assert "is one server and no Redis Cluster; pass a redis.Redis" in text
    side.call(coordinator.close)


def test_a_node_of_a_cluster_is_given_as_one_server(side: Side, redis_cluster: RedisCluster) -> None:
    server = another_primary(redis_cluster)
    coordinator = side.coordinator(f"redis://{server.host}:{server.port}")
    text = refused_within(30, lambda: side.call(coordinator.acquire, "r", timeout=60))
    assert "is a node of a Redis Cluster" in text
    assert "pass a redis.RedisCluster" in text


def forgot_slot(client: Any) -> bool:
    try:
        client.execute_command("CLUSTER DELSLOTS", SLOT)
    except redis.ResponseError:  # it is unassigned, or a replica refuses
        return False
    return True


@pytest.mark.thorough
def test_a_slot_that_no_node_has(side: Side, redis_cluster: RedisCluster) -> None:
    owner = redis_cluster.primary_of("r")
    coordinator = side.coordinator(side.cluster_client(redis_cluster))
    clients: list[Any] = [server.client() for server in (owner, *(s for s in redis_cluster.servers if s is not owner))]
    try:
        # A message that the owner sent before it forgot the slot gives it back to the node that reads it later:
        # a round in which nobody had it any more.
        wait_until(lambda: not any(forgot_slot(client) for client in clients))
        text = refused_within(30, lambda: side.call(coordinator.acquire, "r", timeout=60))
        assert f"does not cover all slots: no node has slot {SLOT}" in text
    finally:
        owning: Any = owner.client()
        owning.execute_command("CLUSTER ADDSLOTS", SLOT)
        redis_cluster.wait_until_ready()
    wait_until(lambda: works_again(side, coordinator))


@pytest.mark.thorough
def test_nodes_that_name_one_another(side: Side, redis_cluster: RedisCluster) -> None:
    owner, other = redis_cluster.primary_of("r"), another_primary(redis_cluster)
    ids = {server: name for name, server in redis_cluster.ids().items()}
    coordinator = side.coordinator(side.cluster_client(redis_cluster))
    owning: Any = owner.client()
    owning.execute_command("CLUSTER SETSLOT", SLOT, "NODE", ids[other])
    try:
        text = refused_within(30, lambda: side.call(coordinator.acquire, "r", timeout=60))
        assert "disagree" in text or "no node has" in text
    finally:
        with contextlib.suppress(redis.ResponseError):
            owning.execute_command("CLUSTER DELSLOTS", SLOT)
        owning.execute_command("CLUSTER ADDSLOTS", SLOT)
        redis_cluster.wait_until_ready()
    wait_until(lambda: works_again(side, coordinator))

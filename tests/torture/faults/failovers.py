"""Faults that have another server take over, one that lags: what the old one has acknowledged last is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import redis

from examples.servers import ServerError
from examples.servers.postgres import start_standby
from tests.torture.faults.base import InVain, Strike, fault

PATIENCE = 20.0


def _wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise InVain("it took too long")
        time.sleep(0.01)


@fault("fail over", "redis", "redis-data", is_slow=True)
def redis_by_hand(strike: Strike) -> None:
    """Start a replica of a Redis, cut it off, and have it take over some time later."""
    service, saved_at = strike.service, time.monotonic()
    primary = service.server
    replica = service.start_server()
    try:
        with replica.client(socket_timeout=5) as client:
            client.execute_command("REPLICAOF", primary.host, primary.port)
        with primary.client(socket_timeout=5) as client:
            _wait(lambda: client.info("replication").get("slave0", {}).get("state") == "online")
            since = time.monotonic()
            offset = client.info("replication")["master_repl_offset"]
            _wait(lambda: client.info("replication")["slave0"]["offset"] >= offset)
            client.execute_command("ACL", "SETUSER", "default", "-psync", "-sync")
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    except (redis.RedisError, KeyError, InVain) as error:
        replica.close()
        raise InVain(str(error)) from error
    time.sleep(strike.seconds)
    service.saved_at = saved_at
    service.fail_over(replica, since)


@fault("fail over", "postgresql", is_slow=True)
def postgresql_by_hand(strike: Strike) -> None:
    """Start a standby of a PostgreSQL, cut it off, and promote it some time later."""
    service = strike.service
    primary = service.server
    try:
        standby = start_standby(primary, service.clock.environment())
    except ServerError as error:
        raise InVain(str(error)) from error
    service.stack.callback(standby.close)
    try:
        since = _cut_off(primary, standby)
    except (psycopg.Error, InVain) as error:
        standby.close()
        raise InVain(str(error)) from error
    time.sleep(strike.seconds)
    service.fail_over(standby, since)


def _cut_off(primary: Any, standby: Any) -> float:
    """Have it follow no more; return when it had all that was acknowledged."""
    since = time.monotonic()
    with primary.connect() as on_primary, standby.connect() as on_standby:
        [position] = on_primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        _wait(lambda: on_standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [position]).fetchone()[0])
        on_standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        on_standby.execute("SELECT pg_reload_conf()")
        _wait(lambda: on_standby.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is None)
    return since


@fault("fail over", "sentinel", is_slow=True)
def sentinel(strike: Strike) -> None:
    """Cut the replicas off, and have one of them take over some time later."""
    servers = strike.service.sentinels
    try:
        servers.cut_replication()
        time.sleep(strike.seconds)
        servers.fail_over()
    except (ServerError, redis.RedisError) as error:
        raise InVain(str(error)) from error
    finally:
        _let_replicate(servers.servers)


def _let_replicate(servers: Any) -> None:
    for server in servers:
        _wait(partial(_sets_user, server, "+psync", "+sync"))


def _sets_user(server: Any, *rights: str) -> bool:
    """Whether it took this; another fault may break the connection, or restart the server."""
    try:
        with server.client(socket_timeout=5) as client:
            return bool(client.execute_command("ACL", "SETUSER", "default", *rights))
    except redis.RedisError:
        return False


@fault("kill", "sentinel", is_slow=True)
def kill_primary(strike: Strike) -> None:
    """Kill the primary, and start it again when another one has taken over."""
    servers = strike.service.sentinels
    try:
        primary = servers.primary
        primary.kill()
        try:
            servers.successor(primary, PATIENCE)
        finally:
            primary.restart()
    except ServerError as error:
        raise InVain(str(error)) from error


def _primary(strike: Strike) -> Any:
    """Return the primary of a counter's locks, of a Cluster."""
    return strike.service.cluster.primary_of(_locked(strike))


def _locked(strike: Strike) -> str:
    """Return the name of a counter whose locks are there."""
    names: list[str] = strike.service.locked
    if not names:
        raise InVain("it has no locks in this run")
    return names[strike.target % len(names)]


@fault("kill", "cluster", is_slow=True)
def kill_node(strike: Strike) -> None:
    """Kill a primary of a Cluster, and start it again when its replica has taken over, or not."""
    cluster = strike.service.cluster
    try:
        primary = _primary(strike)
        others = len(cluster.primaries())
        primary.kill()
        try:
            _wait(lambda: len(cluster.primaries()) >= others)
        finally:
            primary.restart()
        cluster.wait_until_ready()
    except (ServerError, redis.RedisError) as error:
        raise InVain(str(error)) from error


@fault("fail over", "cluster", is_slow=True)
def cluster_by_hand(strike: Strike) -> None:
    """Have a replica of a Cluster take over."""
    cluster = strike.service.cluster
    try:
        primary = _primary(strike)
        [replica, *_] = cluster.replicas_of(primary)
        with replica.client(socket_timeout=5) as client:
            client.execute_command("CLUSTER", "FAILOVER", *(["FORCE"] if strike.target % 2 else []))
        _wait(lambda: cluster.is_primary(replica))
        cluster.wait_until_ready()
    except (ServerError, redis.RedisError, ValueError) as error:
        raise InVain(str(error)) from error


@fault("move a slot", "cluster", is_slow=True)
def move_slot(strike: Strike) -> None:
    """Move the slot of a counter's locks to another primary."""
    cluster = strike.service.cluster
    slot = redis.crc.key_slot(_locked(strike).encode())
    try:
        source = cluster.primary_of_slot(slot)
        target = next(each for each in cluster.primaries() if each is not source)
        cluster.move_slot(slot, target, between=lambda: time.sleep(0.01))
    except (ServerError, redis.RedisError, StopIteration) as error:
        raise InVain(str(error)) from error

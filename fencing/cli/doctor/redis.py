"""A Redis: alone, behind Sentinels, or a Cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisClusterException, RedisError, ResponseError
from redis.retry import Retry

from fencing.cli.doctor import redis_server, rights
from fencing.cli.doctor.findings import SECONDS, Finding, NotExamined, of_servers
from fencing.kernel.errors import CoordinatorUnavailable
from fencing.locks.urls import redacted, scheme_of
from fencing.redis.keys import SLOTS
from fencing.redis.urls import client_of

CLUSTER = "docs/coordinators/redis.md#redis-cluster"
WRONG_SETTINGS = "docs/coordinators/redis.md#wrong-settings"
NODES = "docs/coordinators/redis.md#nodes-that-fail-come-and-go"
SENTINEL = "docs/coordinators/redis.md#sentinel"

LEAST_SENTINELS = 3
LONGEST_DOWN_AFTER = 10.0
"""From how many seconds on the time before a failover is a warning: a usual ttl is over by then."""


def examine(url: str, lock: str | None) -> Iterator[Finding]:
    """Yield the findings about the service of a URL.

    Args:
        url: any that ``fencing.redis.urls`` takes.
        lock: see :func:`fencing.cli.doctor.rights.findings`.

    Raises:
        NotExamined: it does not answer.
        ValueError: the URL is wrong.
    """
    _, _, kind = scheme_of(url).partition("+")
    try:
        with opened(url) as client:
            if kind == "cluster":
                yield from _cluster(client, lock)
            elif kind == "sentinel":
                yield from _sentinel(client, lock)
            else:
                facts = redis_server.ask(client)
                yield from redis_server.findings(client, facts)
                yield from rights.findings(client, rights.LOCKS, lock, rights.PAGE)
                yield from redis_server.keyspace(client)
    except (RedisError, RedisClusterException, CoordinatorUnavailable, OSError) as error:
        raise NotExamined(f"an answer failed: {redacted(str(error))}") from error


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """Open a client whose requests are bounded, and not repeated."""
    sign = "&" if "?" in url else "?"
    limits = [f"{name}={SECONDS}" for name in ("socket_timeout", "socket_connect_timeout") if f"{name}=" not in url]
    client = client_of(url + (sign + "&".join(limits) if limits else ""), asynchronous=False)
    try:
        if not hasattr(client, "get_primaries"):
            client.set_retry(Retry(NoBackoff(), 0))
        yield client
    finally:
        client.close()


def _sentinel(client: Any, lock: str | None) -> Iterator[Finding]:
    manager, service = client.connection_pool.sentinel_manager, client.connection_pool.service_name
    states: list[dict[str, Any]] = []
    silent: list[str] = []
    for sentinel in manager.sentinels:
        place = sentinel.connection_pool.connection_kwargs
        name = f"{place['host']}:{place['port']}"
        place.update(socket_timeout=SECONDS, socket_connect_timeout=SECONDS)
        try:
            sentinel.set_retry(Retry(NoBackoff(), 0))
            states.append(sentinel.sentinel_master(service))
        except NoPermissionError as error:
            silent.append(f"{name} ({error})")
        except ResponseError:
            yield Finding(
                "wrong",
                f"the Sentinel at {name} does not know the service {service!r}",
                "Its answer does not count.",
                "correct the name in the URL: redis+sentinel://host1,host2/service/0",
                SENTINEL,
            )
        except (RedisError, OSError) as error:
            silent.append(f"{name} ({redacted(str(error))})")
        finally:
            sentinel.close()
    if not states:
        raise NotExamined(f"no Sentinel answers for {service!r}: {', '.join(silent)}")
    for name in silent:
        yield Finding(
            "warning",
            f"a Sentinel does not answer: {name}",
            "With fewer Sentinels, fewer failures are survived.",
            "start it, or take it out of the URL",
            SENTINEL,
        )
    yield from sentinel_findings(states)
    facts = redis_server.ask(client)
    yield from redis_server.findings(client, facts)
    yield from rights.findings(client, rights.LOCKS, lock, rights.PAGE)
    yield from redis_server.keyspace(client)


def sentinel_findings(states: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield what follows from the answers of the Sentinels to ``SENTINEL MASTER``: not empty."""
    service = states[0]["name"]
    primaries = sorted({f"{state['ip']}:{state['port']}" for state in states})
    if len(primaries) > 1:
        yield Finding(
            "wrong",
            f"the Sentinels name different primaries: {', '.join(primaries)}",
            "Clients may take one lock at each of them.",
            "wait for the end of the failover; if it stays so, see that all Sentinels watch the same servers",
            SENTINEL,
        )
    count = 1 + max(int(state["num-other-sentinels"]) for state in states)
    if count < LEAST_SENTINELS:
        yield Finding(
            "warning",
            f"there are {count} Sentinels",
            "A failover needs a majority of them. Of fewer than three, none may fail.",
            "run three, each on a machine of its own",
            SENTINEL,
        )
    else:
        yield Finding("ok", f"{count} Sentinels watch {primaries[0]}", page=SENTINEL)
    quorums = sorted({int(state["quorum"]) for state in states})
    if quorums[-1] > count:
        yield Finding(
            "wrong",
            f"the quorum is {quorums[-1]}, of {count} Sentinels",
            "There is never a failover.",
            f"set it on each Sentinel:\nSENTINEL SET {service} quorum {count // 2 + 1}",
            SENTINEL,
        )
    elif quorums[0] <= count // 2:
        yield Finding(
            "warning",
            f"a Sentinel has the quorum {quorums[0]}, of {count} Sentinels",
            "A minority that is cut off may begin a failover. It still needs the votes of a majority.",
            f"set it on each Sentinel:\nSENTINEL SET {service} quorum {count // 2 + 1}",
            SENTINEL,
        )
    else:
        yield Finding("ok", f"the quorum is {quorums[-1]}", page=SENTINEL)
    down_after = max(int(state["down-after-milliseconds"]) for state in states) / 1000
    if down_after > LONGEST_DOWN_AFTER:
        yield Finding(
            "warning",
            f"down-after-milliseconds is {down_after * 1000:.0f}",
            f"A primary that dies is missed after {down_after:.0f} s. Until then nobody gets a lock, and leases with a "
            "shorter ttl end.",
            f"set it on each Sentinel:\nSENTINEL SET {service} down-after-milliseconds 5000",
            SENTINEL,
        )
    else:
        yield Finding("ok", f"a dead primary is missed after {down_after:g} s", page=SENTINEL)
    if not any(int(state["num-slaves"]) for state in states):
        yield Finding(
            "warning",
            "the primary has no replica",
            "There is nothing to fail over to.",
            "start a replica, on a machine of its own",
            SENTINEL,
        )


def _cluster(client: Any, lock: str | None) -> Iterator[Finding]:
    alive: list[tuple[Any, Any, redis_server.Facts]] = []
    for node in client.get_primaries():
        connection = client.get_redis_connection(node)
        connection.set_retry(Retry(NoBackoff(), 0))
        try:
            alive.append((node, connection, redis_server.ask(connection)))
        except NotExamined as error:
            yield Finding(
                "wrong",
                f"the primary {node.host}:{node.port} {error}",
                "Its locks cannot be taken, and with cluster-require-full-coverage none at all.",
                "start it; if it has replicas, one takes over after cluster-node-timeout",
                NODES,
            )
    if not alive:
        raise NotExamined("no primary of the Cluster answers")
    yield from cluster_findings(alive[0][1], alive[0][2], [facts for _, _, facts in alive])
    found: list[tuple[str, Finding]] = []
    for node, connection, facts in alive:
        needed = rights.CLUSTER if facts.version >= (7,) or not facts.info else rights.before_seven(rights.CLUSTER)
        of_node = (
            *redis_server.findings(connection, facts, is_cluster=True),
            *rights.findings(connection, needed, lock, rights.PAGE),
            *redis_server.keyspace(connection),
        )
        found += [(f"{node.host}:{node.port}", finding) for finding in of_node]
    yield from of_servers(found, len(alive))


def cluster_findings(client: Any, facts: redis_server.Facts, every: list[redis_server.Facts]) -> Iterator[Finding]:
    """Yield the findings about the Cluster as a whole, as one of its nodes sees it.

    Args:
        client: of that node.
        facts: what it says.
        every: what each primary says.
    """
    try:
        state = client.execute_command("CLUSTER INFO")
    except NoPermissionError:
        yield Finding(
            "unknown",
            "the account may not run CLUSTER INFO: slots were not looked at",
            change="give it the right, on each node:\nACL SETUSER worker +cluster|info",
            page=rights.PAGE,
        )
        state = {}
    if state:
        covered = int(state["cluster_slots_ok"])
        if covered < SLOTS:
            yield Finding(
                "wrong",
                f"{SLOTS - covered} of {SLOTS} slots have no node that serves them",
                "No lock of these slots can be taken.",
                "start the node that had them, or:\nredis-cli --cluster fix HOST:PORT",
                WRONG_SETTINGS,
            )
        else:
            yield Finding("ok", f"all {SLOTS} slots are served, by {state['cluster_size']} primaries", page=CLUSTER)
    if facts.settings.get("cluster-require-full-coverage") == "yes":
        timeout = int(facts.settings.get("cluster-node-timeout", 15000)) / 1000
        yield Finding(
            "warning",
            "cluster-require-full-coverage is yes",
            "While one primary is missing, all nodes refuse to work. Leases outlast that with a ttl of "
            f"{timeout + 2:g} s: the cluster-node-timeout and two seconds more.",
            "choose that ttl; or set, on each node:\nCONFIG SET cluster-require-full-coverage no",
            NODES,
        )
    elif facts.settings:
        yield Finding("ok", "a missing primary stops the locks of its own slots alone", page=NODES)
    if any(each.info and not int(each.info.get("connected_slaves", 0)) for each in every):
        yield Finding(
            "warning",
            "a primary has no replica",
            "If it dies, nobody takes over its slots.",
            "add one:\nredis-cli --cluster add-node NEW:PORT HOST:PORT --cluster-slave",
            NODES,
        )
    if facts.info and facts.version < (7,):
        yield Finding(
            "warning",
            "the Cluster is older than 7.0",
            "Each message to a waiter goes to all nodes, and waiters may be late after a slot has moved.",
            "use Redis 7.0 or later",
            "docs/coordinators/redis.md#waiting",
        )

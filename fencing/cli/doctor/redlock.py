"""The nodes of Redlock: each alone, and all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from fencing.cli.doctor import redis_server, rights
from fencing.cli.doctor.findings import Finding, NotExamined, of_servers
from fencing.cli.doctor.redis import opened
from fencing.locks.urls import redacted

USE = "docs/coordinators/redlock.md#use-it"
OPERATE = "docs/coordinators/redlock.md#operate-it"
UNAVAILABLE = "docs/coordinators/redlock.md#how-long-it-can-be-unavailable"
KEYS = "docs/coordinators/redlock.md#keys-and-permissions"

LEAST = 3


def examine(urls: list[str], lock: str | None) -> Iterator[Finding]:
    """Yield the findings about the nodes.

    Args:
        urls: one for each node.
        lock: see :func:`fencing.cli.doctor.rights.findings`.

    Raises:
        NotExamined: no node answers.
        ValueError: a URL is wrong.
    """
    yield from number_of(len(urls))
    facts: list[redis_server.Facts] = []
    found: list[tuple[str, Finding]] = []
    with ExitStack() as stack:
        for url in urls:
            client = stack.enter_context(opened(url))
            name = redacted(url)
            try:
                found += [(name, finding) for finding in _node(client, lock, facts)]
            except (NotExamined, RedisError, OSError) as error:
                yield Finding(
                    "warning",
                    f"{name}: {redacted(str(error))}",
                    "Of the nodes, a majority must answer.",
                    "start it",
                    UNAVAILABLE,
                )
    yield from of_servers(found, len(facts))
    if not facts:
        raise NotExamined("no node answers")
    if len(facts) <= len(urls) // 2:
        yield Finding(
            "wrong",
            f"{len(facts)} of {len(urls)} nodes answer, which is no majority",
            "No lock can be taken.",
            "start the others",
            UNAVAILABLE,
        )
    yield from together(facts)


def number_of(count: int) -> Iterator[Finding]:
    """Yield whether so many nodes are right."""
    if count < LEAST or count % 2 == 0:
        yield Finding(
            "wrong",
            f"there are {count} nodes",
            "The coordinator refuses fewer than three, and an even number.",
            "name three or five",
            USE,
        )
    else:
        yield Finding("ok", f"{count} nodes, of which {count // 2} may fail", page=USE)


def together(every: list[redis_server.Facts]) -> Iterator[Finding]:
    """Yield what is wrong between the nodes that answer."""
    ids = [facts.run_id for facts in every if facts.run_id]
    if len(set(ids)) < len(ids):
        yield Finding(
            "wrong",
            "two URLs name the same process",
            "One server would count twice for a majority. The coordinator refuses that.",
            "name each server once",
            USE,
        )
    elif ids:
        yield Finding("ok", "all nodes are different processes", page=USE)
    versions = sorted({str(facts.info["redis_version"]) for facts in every if facts.info})
    if len(versions) > 1:
        yield Finding(
            "warning",
            f"the nodes have different versions: {', '.join(versions)}",
            "They may behave differently under the same fault.",
            "upgrade the older ones, one by one",
            OPERATE,
        )


def _node(client: Any, lock: str | None, facts: list[redis_server.Facts]) -> Iterator[Finding]:
    it = redis_server.ask(client)
    facts.append(it)
    for finding in redis_server.findings(client, it):
        if finding.page == redis_server.SENTINEL and finding.level == "wrong" and it.info.get("role") == "slave":
            yield Finding(
                "wrong",
                finding.what,
                "Nodes of Redlock are independent. A replica grants nothing, and copies what another has granted.",
                "make it a server of its own, and empty it first:\nREPLICAOF NO ONE",
                USE,
            )
        elif finding.page != redis_server.SENTINEL:  # no node should have replicas
            yield finding
    if int(it.info.get("connected_slaves", 0)):
        yield Finding(
            "warning",
            f"{it.info['connected_slaves']} replicas copy from it",
            "A failover inside a node loses locks that the node has granted.",
            "use servers without replicas, and more of them",
            USE,
        )
    yield from rights.findings(client, rights.REDLOCK, lock, rights.OF_REDLOCK)
    try:
        if client.get("fencing:1:member") is None:
            yield Finding(
                "warning",
                "it does not take part yet: no coordinator has admitted it",
                "It grants nothing for longest_ttl after the first request.",
                "for new servers, call initialise() of a RedlockCoordinator once, in Python; otherwise wait",
                OPERATE,
            )
        else:
            yield Finding("ok", "it has been admitted", page=OPERATE)
    except (NoPermissionError, ResponseError):
        pass  # it is found among the permissions
    yield from redis_server.keyspace(client, for_locks_alone=True)

"""Requests to Redis: as a proxy sees them, and as a server counts them."""

from __future__ import annotations

from typing import Any

from examples.servers import RedisServer
from fencing.redis.scripts import Script


def asks_for(script: Script, request: bytes) -> bool:
    """Return whether the request runs this script, by its digest or by its text."""
    return b"EVAL" in request and (script.sha.encode() in request or script.text.encode() in request)


def times_run(server: RedisServer, *commands: str) -> int:
    """Return how often a server has run these commands, for clients and in scripts.

    A test that compares such counts has a server of its own. One that the run shares counts for earlier tests, too: a
    lock that nobody got is given back once more a second later, also after its coordinator was closed.
    """
    with server.client() as client:
        stats: Any = client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]) for command in commands)


def scripts_run(server: RedisServer) -> int:
    """Return how many scripts a server has run: see `times_run`."""
    return times_run(server, "evalsha", "eval")

"""Faults of Redis servers: their data, their memory, their clock, and pauses."""

from __future__ import annotations

import time
from typing import Any

import redis

from tests.torture.faults.base import InVain, Strike, fault

ONE = ("redis", "redis-data")
LONGEST_FREEZE = 0.5
JUMPS = (-86_400, -40, -2, 2, 40, 86_400)
TOO_LITTLE = "1mb"
RESTART_SECONDS = 20.0


def _run(server: Any, *command: str) -> None:
    try:
        with server.client(socket_timeout=5, retry=None) as client:
            client.execute_command(*command)
    except redis.RedisError as error:
        raise InVain(str(error)) from error


def _one_of(strike: Strike) -> Any:
    """Return a server of several."""
    servers = strike.service.servers
    return servers[strike.target % len(servers)]


@fault("flush", *ONE, weight=2)
def flush(strike: Strike) -> None:
    """FLUSHALL: all data are gone."""
    start = time.monotonic()
    _run(strike.service.server, "FLUSHALL")
    strike.service.was_rewound(0.0, start)


@fault("save", *ONE, weight=2)
def save(strike: Strike) -> None:
    """SAVE: what a restart comes back with."""
    now = time.monotonic()
    _run(strike.service.server, "SAVE")
    strike.service.saved_at = now


@fault("older file", *ONE, weight=2)
def older_file(strike: Strike) -> None:
    """Restart it from its older file: what was not saved is gone."""
    start = time.monotonic()
    strike.service.server.kill()
    strike.service.server.restart()
    strike.service.was_rewound(strike.service.saved_at, start)


@fault("freeze", *ONE)
def freeze(strike: Strike) -> None:
    """SIGSTOP: connections stay, and nothing answers."""
    _freeze(strike.service.server, strike.seconds)


def _freeze(server: Any, seconds: float) -> None:
    server.freeze()
    time.sleep(min(seconds, LONGEST_FREEZE))
    server.thaw()


@fault("no memory", *ONE)
def no_memory(strike: Strike) -> None:
    """Reach ``maxmemory``: every write is refused."""
    server = strike.service.server
    _run(server, "CONFIG", "SET", "maxmemory", TOO_LITTLE)
    strike.after(min(strike.seconds, LONGEST_FREEZE), lambda: _give_memory(strike.service))


def _give_memory(service: Any) -> None:
    """Undo it; a server that takes over, or that is restarted, does not have the setting."""
    deadline = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            return _run(service.server, "CONFIG", "SET", "maxmemory", "0")
        except InVain:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


@fault("jump", *ONE, "postgresql", is_alone=False)
def jump(strike: Strike) -> None:
    """Set the clock of the server, forward or back."""
    strike.service.clock.set(JUMPS[strike.target % len(JUMPS)])
    strike.after(4 * strike.seconds, lambda: strike.service.clock.set(0))


@fault("flush", "redlock")
def flush_node(strike: Strike) -> None:
    """FLUSHALL on one node."""
    _run(_one_of(strike), "FLUSHALL")


@fault("kill", "redlock")
def kill_node(strike: Strike) -> None:
    """Restart one node, with its data."""
    _one_of(strike).kill()
    _one_of(strike).restart()


@fault("empty", "redlock")
def empty_node(strike: Strike) -> None:
    """Restart one node, without its data."""
    _one_of(strike).kill()
    _one_of(strike).restart(keep_data=False)


@fault("freeze", "redlock", "cluster", "sentinel")
def freeze_node(strike: Strike) -> None:
    """SIGSTOP of one server."""
    _freeze(_one_of(strike), strike.seconds)


@fault("flush", "cluster", "sentinel")
def flush_all(strike: Strike) -> None:
    """FLUSHALL on each server that takes it."""
    for server in strike.service.servers:
        try:
            _run(server, "FLUSHALL")
        except InVain:
            pass  # a replica

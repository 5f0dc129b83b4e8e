"""Guarded writes to Redis, to files and through HTTP, the fence already claimed, beside the same write without a check.

Redis: the same commands in one script, sent by redis-py. Files: a temporary file, fsync, rename, fsync of the folder.
HTTP: a PUT to a service that writes to SQLite, whose transaction checks the fence, or does not. All on one core with
the server.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from fencing import Fence
from storage_guards import FileGuard, HTTPGuard, RedisGuard, fenced
from tests.benchmarks.contenders import AGAIN
from tests.benchmarks.duel import Contenders
from tests.benchmarks.pair import CPU
from tests.benchmarks.parts import Run
from tests.benchmarks.servers import redis_server
from tests.support.http_servers import running

PLAIN, WRITE = "plain", "guard.write"
TIME = "time, µs"
AGAINST = {TIME: (PLAIN,), CPU: ()}
LIMIT = 60.0

REDIS, FILES, HTTP = "Redis, two commands", "files, 1 KiB", "HTTP, SQLite behind a service"
MINE = Fence("orders:1", 1, "a" * 22)

Kinds = dict[str, Callable[[], object]]


def part(run: Run) -> None:
    for scenario in _SCENARIOS:
        run.duel(scenario, "guards.opened", AGAINST, rounds=500, seconds=LIMIT, scenario=scenario)


@contextmanager
def opened(scenario: str) -> Iterator[Contenders]:
    """Open both kinds of writes."""
    with _SCENARIOS[scenario]() as functions:
        yield Contenders({**functions, WRITE + AGAIN: functions[WRITE]})


@contextmanager
def _redis() -> Iterator[Kinds]:
    with redis_server() as server, server.client() as client:
        guard = RedisGuard(server.client())
        guard.claim(MINE)
        script: Any = client.register_script("redis.call('SET', KEYS[1], ARGV[1]); return redis.call('INCR', KEYS[2])")
        yield {
            PLAIN: lambda: script(keys=["value", "count"], args=["x" * 100]),
            WRITE: lambda: guard.write(MINE, ("SET", "value", "x" * 100), ("INCR", "count")),
        }


@contextmanager
def _files() -> Iterator[Kinds]:
    with tempfile.TemporaryDirectory() as directory:
        folder, data = Path(directory), b"x" * 1024
        guard = FileGuard(folder)
        guard.claim(MINE)
        (folder / "plain").mkdir()

        def plain() -> None:
            new = folder / "plain" / "new"
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(folder / "plain" / "current")
            descriptor = os.open(folder / "plain", os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

        yield {PLAIN: plain, WRITE: lambda: guard.write(MINE, data)}


@contextmanager
def _http() -> Iterator[Kinds]:
    with (
        tempfile.TemporaryDirectory() as directory,
        running("waitress", Path(directory) / "data.sqlite") as service,
        httpx2.Client(base_url=service.url) as client,
    ):
        HTTPGuard("/fencing/claims", client).claim(MINE)

        numbers = itertools.count()

        def put(**parameters: str) -> None:
            body = b"%d" % next(numbers)  # SQLite does not write what is there already
            with fenced(client, MINE):
                client.put("/data", params={"resource": MINE.resource, **parameters}, content=body).raise_for_status()

        yield {PLAIN: lambda: put(unchecked="1"), WRITE: put}


_SCENARIOS: dict[str, Callable[[], Any]] = {REDIS: _redis, FILES: _files, HTTP: _http}

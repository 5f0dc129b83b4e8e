"""A Redis whose settings the tests of this folder change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.servers import RedisServer, ServerError, start_redis


@pytest.fixture(scope="session")
def _own_server() -> Iterator[RedisServer]:
    try:
        server = start_redis(own=True)
    except ServerError as error:
        if error.log:  # found, and did not start: that is a failure
            raise
        pytest.skip(f"redis: {error}")
    with server:
        yield server


@pytest.fixture
def own_redis(_own_server: RedisServer) -> RedisServer:
    """An empty Redis with its first settings."""
    with _own_server.client() as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.flushall()
    return _own_server

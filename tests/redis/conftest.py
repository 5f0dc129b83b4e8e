"""A Redis that tests may freeze, also where FENCING_TEST_REDIS_URL names one that they must not; and Sentinels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from examples.servers import (
    RedisServer,
    SentinelServers,
    ServerError,
    start_redis,
)
from tests.support.fixtures import flush, missing_or_broken, newest_found
from tests.support.sentinels import started


@pytest.fixture(autouse=True)
def _patient_tries(patient_tries: None) -> None:
    """Real servers answer late on a busy machine."""


@pytest.fixture(scope="module")
def _own_redis() -> Iterator[RedisServer]:
    with ExitStack() as stack:
        try:
            server = start_redis(version=newest_found(), own=True)
        except ServerError as error:
            missing_or_broken("redis", error)
        yield stack.enter_context(server)


@pytest.fixture
def freezable_redis(_own_redis: RedisServer) -> Iterator[RedisServer]:
    """An empty Redis for the test to freeze. It is thawed afterwards, and shared by the tests of a file."""
    yield flush(_own_redis)
    _own_redis.thaw()


@pytest.fixture
def own_sentinels() -> Iterator[SentinelServers]:
    """Three Sentinels, a primary and two replicas of the test's own, to kill and to freeze."""
    with ExitStack() as stack:
        yield started(stack)

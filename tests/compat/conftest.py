from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.servers import RedisServer
from tests.support.compat_locks import Locks
from tests.support.sides import Side

collect_ignore = ["redis_py"]  # runs in a process of its own: see test_redis_py_suite.py


@pytest.fixture
def locks(side: Side, any_redis: RedisServer) -> Iterator[Locks]:
    locks = Locks(side, any_redis.url)
    yield locks
    locks.close()

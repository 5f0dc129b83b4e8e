"""The fixtures of redis-py's tests of its lock. The class under test is ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fencing.compat import AsyncRedisPyLock, RedisPyLock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--redis-url", required=True, help="of a Redis whose database is emptied")
    parser.addoption("--theirs", action="store_true", help="run the tests over the lock of redis-py")


@pytest.fixture(autouse=True)
def lock_class(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type:
    """Replace the one name that the tests import by the class under test, and return what replaces it."""
    theirs: type = request.module.Lock
    ours = RedisPyLock if issubclass(RedisPyLock, theirs) else AsyncRedisPyLock
    tested = theirs if request.config.getoption("--theirs") else ours
    assert issubclass(tested, theirs)
    monkeypatch.setattr(request.module, "Lock", tested)
    return tested


def _get_client(kind: Any, request: pytest.FixtureRequest, **options: Any) -> Any:
    """Return a client, and empty its database at the end of the test. The tests import this by its name."""
    client = kind.from_url(request.config.getoption("--redis-url"), **options)

    def close() -> None:
        client.flushdb()
        client.close()

    request.addfinalizer(close)
    return client


@pytest.fixture
def r(request: pytest.FixtureRequest) -> Iterator[Any]:
    return _get_client(redis.Redis, request)  # type: ignore[no-any-return]

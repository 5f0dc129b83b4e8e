"""Another session holds the mark's row and does not move: acquiring ends in time, and gives the lock back."""

from __future__ import annotations

import re
import time

import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import GuardUnavailable
from tests.support.sides import Account, Side
from tests.support.sql_ways import SIDES_AND_DATABASES

LONG_SECONDS = 60.0


@pytest.mark.thorough
@pytest.mark.parametrize(("side", "account"), SIDES_AND_DATABASES, indirect=True)
def test_a_frozen_session_at_acquire(side: Side, any_redis: RedisServer, account: Account) -> None:
    client = any_redis.client()
    coordinator = side.coordinator(any_redis.url, guards=[account.guard])
    side.call(side.call(coordinator.acquire, "r").release)
    frozen = create_engine(account.engine.url.set(drivername=account.engine.url.drivername.replace("+aiosqlite", "")))
    with frozen.connect() as session:
        session.execute(text("UPDATE fencing_marks SET seq = seq WHERE resource = 'r'"))  # and then nothing
        started = time.monotonic()
        error = side.expect(GuardUnavailable, coordinator.acquire, "r", timeout=0.5)
        assert 0.3 < time.monotonic() - started < LONG_SECONDS
        assert error.resource == "r"
        assert "locked" in str(error)
        assert client.get("r") is None, "the lock was given back"
    lease = side.call(coordinator.acquire, "r", timeout=60)
    account.write(lease, 1)
    side.call(lease.release)
    frozen.dispose()


@pytest.mark.thorough
@pytest.mark.parametrize("account", ["postgres"], indirect=True)
def test_a_frozen_session_at_write(side: Side, any_redis: RedisServer, account: Account) -> None:
    lease = side.call(side.coordinator(any_redis.url, guards=[account.guard], ttl=3.0).acquire, "r")
    frozen = create_engine(account.engine.url)
    with frozen.connect() as session:
        session.execute(text("UPDATE fencing_marks SET seq = seq WHERE resource = 'r'"))
        error = side.expect(GuardUnavailable, account.write, lease, 1)
        said = re.search(r"for ([\d.]+) s", str(error))
        assert said is not None
        assert float(said[1]) <= 3.0, "it is bounded by the lease, not by the guard's ten seconds"
    assert account.balance == 0
    side.call(lease.release)
    frozen.dispose()

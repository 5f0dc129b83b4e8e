"""Requests that are kept on their way to the database, and arrive after the client went on over a new connection."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kept_requests import EACH_CALL, TTL, Call, Late, Tale, TryAcquire, is_waited_for, play
from tests.support.sql_locks import LockDatabase, through

LATES = [Late(), Late(cut=1)]
DRIVERS = ("psycopg", "asyncpg")


class Bench:
    attempt_seconds = 0.1
    only_named = True

    def __init__(self, locks: LockDatabase) -> None:
        self._locks = locks
        self.side, self.proxies = locks.side, [locks.proxy]
        self.direct = locks.coordinator(direct=True, ttl=TTL, renew=False)

    def through(self) -> Any:
        self._locks.coordinator(ttl=TTL, renew=False)
        return self.side.made.pop()  # the story closes it

    def is_waiting(self, coordinator: Any, name: str) -> bool:
        return is_waited_for(self.side, coordinator, name)


@pytest.fixture
def bench(locks: LockDatabase) -> Bench:
    return Bench(locks)


@pytest.mark.thorough
@pytest.mark.parametrize("late", LATES, ids=str)
@pytest.mark.parametrize("call", EACH_CALL)
@pytest.mark.parametrize("locks", DRIVERS, indirect=True)
def test_no_late_request_breaks_a_promise(bench: Bench, call: type[Call], late: Late) -> None:
    play(bench, call, late)


@through("psycopg", of=DRIVERS)
def test_an_acquire_that_arrives_late_revives_no_lease(bench: Bench) -> None:
    play(bench, TryAcquire, Late(cut=1), [Tale("forced", "freed")])

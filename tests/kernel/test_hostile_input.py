"""What comes from outside: its length is checked first, and no message shows a secret."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from fencing import Fence, FencedLock, MemoryCoordinator, RedisCoordinator
from fencing.kernel.fence import MAX_RESOURCE_BYTES
from storage_guards import ObjectStoreGuard, PsycopgGuard, SQLAlchemyGuard

SECRET = "hunter2"
URL = f"postgresql://app:{SECRET}@db/orders"


def test_a_long_text_of_a_fence_is_refused_at_once() -> None:
    text = "1." + "t" * 22 + "." + "%41" * 10_000_000
    began = time.thread_time()
    with pytest.raises(ValueError, match="30000025 characters"):
        Fence.parse(text)
    assert time.thread_time() - began < 0.05


def test_the_longest_text_of_a_fence_is_read() -> None:
    fence = Fence("%" * MAX_RESOURCE_BYTES, 2**53 - 1, "t" * 128)
    assert Fence.parse(str(fence)) == fence


class Settings(dict[str, str]):
    """A user's configuration, whose repr has a password."""


MISTAKES: list[Callable[[], Any]] = [
    lambda: MemoryCoordinator(guards=[URL]),  # type: ignore[list-item]
    lambda: MemoryCoordinator(guards=URL),  # type: ignore[arg-type]
    lambda: MemoryCoordinator(clock=URL),  # type: ignore[arg-type]
    lambda: MemoryCoordinator(URL),  # type: ignore[arg-type]
    lambda: MemoryCoordinator(renew=URL),  # type: ignore[arg-type]
    lambda: MemoryCoordinator(owner=URL + "\n"),
    lambda: MemoryCoordinator(ttl=URL),  # type: ignore[arg-type]
    lambda: FencedLock(URL, "r"),  # type: ignore[arg-type]
    lambda: RedisCoordinator(URL),  # type: ignore[arg-type]
    lambda: RedisCoordinator(redis.Redis(password=SECRET), clock_floor=URL),  # type: ignore[arg-type]
    lambda: Fence("r", URL, "t" * 22),  # type: ignore[arg-type]
    lambda: SQLAlchemyGuard(URL),  # type: ignore[arg-type]
    lambda: PsycopgGuard(URL.replace("postgresql", "postgresql+psycopg")),
    lambda: PsycopgGuard(f"host=db passwort={SECRET}"),
    lambda: PsycopgGuard(f"host=db password {SECRET}"),
    lambda: PsycopgGuard(Settings(password=SECRET)),  # type: ignore[arg-type]
    lambda: ObjectStoreGuard(Settings(secret_access_key=SECRET)),
    lambda: ObjectStoreGuard(f"s3://key:{SECRET}@bucket"),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_message_shows_a_secret(mistake: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        mistake()
    assert SECRET not in str(raised.value)

"""The names that an editor completes: what users call, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

import fencing
from fencing import AsyncLease, Lease

LEASE = [
    "detach",
    "ensure_held",
    "fence",
    "held",
    "lost",
    "on_lost",
    "reclaim",
    "release",
    "remaining",
    "renew",
    "slot",
]
COORDINATOR = [
    *(
        "acquire",
        "address",
        "adopt",
        "close",
        "closed",
        "election",
        "force_release",
        "hold",
        "hold_all",
        "holder",
        "holders",
    ),
    *("lock", "locked", "release_all", "slots", "try_acquire"),
]
OF_ITS_OWN = {
    "Coordinator": [],
    "MemoryCoordinator": ["table"],
    "RedisCoordinator": [],
    "RedlockCoordinator": ["initialise"],
    "SQLCoordinator": ["create_tables", "metadata", "prune"],
}


def completed(kind: type) -> list[str]:
    """Return the names that a class and its bases define for others."""
    defined = {name for each in kind.__mro__ for name in (*vars(each), *vars(each).get("__annotations__", ()))}
    return sorted(name for name in defined if not name.startswith("_"))


@pytest.mark.parametrize("kind", [Lease, AsyncLease])
def test_a_lease_has_only_what_users_call(kind: type) -> None:
    assert completed(kind) == LEASE


@pytest.mark.parametrize("name", OF_ITS_OWN)
@pytest.mark.parametrize("side", ["", "Async"])
def test_a_coordinator_has_only_what_users_call(side: str, name: str) -> None:
    assert completed(getattr(fencing, side + name)) == sorted(COORDINATOR + OF_ITS_OWN[name])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_object_has_no_more_names_than_its_class(asynchronous: bool, tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    package: Any = redis.asyncio if asynchronous else redis
    engine: Any = (
        create_async_engine(f"sqlite+aiosqlite:///{file}") if asynchronous else create_engine(f"sqlite:///{file}")
    )
    arguments: dict[str, Any] = {
        "MemoryCoordinator": None,
        "RedisCoordinator": package.Redis(),
        "RedlockCoordinator": [package.Redis(port=port) for port in (7001, 7002, 7003)],
        "SQLCoordinator": engine,
    }
    for name, argument in arguments.items():
        made = getattr(fencing, "Async" * asynchronous + name)(argument)
        assert [each for each in vars(made) if not each.startswith("_")] == [], name

"""A mistake of a user gets one sentence: what is wrong, and what to do. No server is needed for it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

import fencing
from fencing import (
    AsyncFencedLock,
    AsyncMemoryCoordinator,
    AsyncRedisCoordinator,
    AsyncSQLCoordinator,
    Fence,
    FencedLock,
    LeaseLost,
    Mark,
    MemoryCoordinator,
    NotAcquired,
    RedisCoordinator,
    RedlockCoordinator,
    StaleFence,
)
from fencing.kernel.effects import Claim, run
from fencing.testing import ManualClock
from storage_guards import AsyncMemoryGuard, MemoryGuard
from tests.support.memory_side import MemorySide

CLIENT = redis.Redis(host="127.0.0.1", port=1)
ASYNC_CLIENT = redis.asyncio.Redis(host="127.0.0.1", port=1)
SIDES = [(RedisCoordinator, FencedLock, CLIENT), (AsyncRedisCoordinator, AsyncFencedLock, ASYNC_CLIENT)]

both = pytest.mark.parametrize(("coordinator", "lock", "client"), SIDES, ids=["sync", "async"])


def assert_refused(error: type[Exception], says: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert says in text
    assert "\n" not in text


@both
@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"ttl": 0}, ValueError, "ttl must be between"),
        ({"ttl": -1}, ValueError, "ttl must be between"),
        ({"ttl": 1e9}, ValueError, "ttl must be between"),
        ({"ttl": math.nan}, ValueError, "finite"),
        ({"ttl": math.inf}, ValueError, "finite"),
        ({"ttl": None}, TypeError, "every lock must expire"),
        ({"ttl": "10"}, TypeError, "number of seconds, not str"),
        ({"ttl": True}, TypeError, "number of seconds, not bool"),
        ({"guards": None}, TypeError, "guards must be a list of guards"),
        ({"guards": "guard"}, TypeError, "write guards=[guard]"),
        ({"guards": [object()]}, TypeError, "it has no claim(); make one"),
        ({"guards": [MemoryGuard]}, TypeError, "MemoryGuard is a class, not a guard"),
        ({"renew": 1}, TypeError, "True or False"),
        ({"tll": 10}, TypeError, "; did you mean 'ttl'?"),
        (
            {"timeout": 10},
            TypeError,
            "hold(timeout=...) sets how long to wait for it",
        ),
        ({"renew": False, "max_lifetime": 60}, ValueError, "pass max_lifetime=None with it"),
        ({"ttl": 20, "max_lifetime": 15}, ValueError, "at least the ttl (20 s), not 15; pass both"),
        ({"max_waiters": 0}, ValueError, "at least 1, not 0; try_acquire() and timeout=0 never wait"),
        ({"max_waiters": -1}, ValueError, "at least 1"),
        ({"max_waiters": True}, TypeError, "max_waiters must be an int, or None for no limit, not bool"),
        ({"max_waiters": 2.0}, TypeError, "not float"),
        ({"owner": 7}, TypeError, "owner must be a str"),
        ({"owner": ""}, ValueError, "1 to 200 printable"),
        ({"owner": "two\nlines"}, ValueError, "1 to 200 printable"),
        ({"owner": "x" * 201}, ValueError, "1 to 200 printable"),
    ],
)
def test_settings(
    coordinator: Any, lock: Any, client: Any, settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    assert_refused(error, says, coordinator, client, **settings)
    assert_refused(error, says, lock, client, "r", **settings)


@both
def test_the_clock_floor_is_an_option_of_coordinators(coordinator: Any, lock: Any, client: Any) -> None:
    assert_refused(TypeError, "clock_floor must be True or False", coordinator, client, clock_floor=1)
    assert_refused(
        TypeError, "it is an option of coordinators, and not of those of SQL", lock, client, "r", clock_floor=False
    )
    assert_refused(
        TypeError,
        f"{coordinator.__name__}; the options are clock_floor, replicas, ttl",
        coordinator,
        client,
        clock_flor=True,
    )


@both
@pytest.mark.parametrize(
    ("prefix", "error", "says"),
    [
        (7, TypeError, "prefix must be a str such as 'billing:', not int"),
        ("", ValueError, "leave it out"),
        ("billing", ValueError, "write 'billing:'"),
        ("fencing:", ValueError, "reserved"),
        ("a\0:", ValueError, "NUL"),
        ("é" * 128 + ":", ValueError, "at most 256 bytes"),
    ],
)
def test_prefixes(coordinator: Any, lock: Any, client: Any, prefix: Any, error: type[Exception], says: str) -> None:
    assert_refused(error, says, coordinator, client, prefix=prefix)


@both
def test_a_prefix_is_an_option_of_coordinators(coordinator: Any, lock: Any, client: Any) -> None:
    made = coordinator(client, prefix="billing:")
    assert_refused(TypeError, "it is an option of coordinators", lock, client, "r", prefix="billing:")
    assert_refused(TypeError, "it is an option of coordinators", made.lock, "r", prefix="billing:")
    assert_refused(TypeError, "did you mean 'prefix'?", coordinator, client, prefx="billing:")
    for name in ("", "fencing:x", "x" * (513 - len("billing:")), None):
        with pytest.raises((TypeError, ValueError), match="resource name"):
            made.lock(name)
    assert len(made.lock("x" * (512 - len("billing:"))).resource) == 512


@both
@pytest.mark.parametrize("resource", ["", "fencing:x", "x" * 513, None, b"r", 7])
def test_resource_names(coordinator: Any, lock: Any, client: Any, resource: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="resource name"):
        lock(client, resource)
    with pytest.raises((TypeError, ValueError), match="resource name"):
        coordinator(client).lock(resource)


@pytest.mark.parametrize(
    ("timeout", "error", "says"),
    [
        (-1, ValueError, "0 tries once, None waits for ever"),
        (math.nan, ValueError, "finite"),
        (math.inf, ValueError, "finite"),
        ("5", TypeError, "number of seconds"),
        (False, TypeError, "number of seconds"),
    ],
)
def test_timeouts(timeout: Any, error: type[Exception], says: str) -> None:
    assert_refused(error, says, FencedLock(CLIENT, "r").acquire, timeout)


def test_wrong_types_of_resource_names() -> None:
    assert_refused(TypeError, "not bytes; decode it first", FencedLock, CLIENT, b"r")
    assert_refused(TypeError, "not int; name what is protected, such as 'orders:42'", FencedLock, CLIENT, 42)


def test_wrong_holders_at_a_guard() -> None:
    claim = MemoryGuard().claim
    fence = Fence("r", 1, "a" * 22)
    assert_refused(TypeError, "Fence.parse first", claim, str(fence))
    assert_refused(TypeError, "not list; pass several as separate arguments", claim, [fence])
    assert_refused(TypeError, "not FencedLock; acquire the lock, and pass the lease", claim, FencedLock(CLIENT, "r"))


def test_clients_of_the_wrong_kind() -> None:
    assert_refused(TypeError, "for asyncio use AsyncRedisCoordinator", FencedLock, ASYNC_CLIENT, "r")
    assert_refused(TypeError, "for threads use RedisCoordinator", AsyncFencedLock, CLIENT, "r")
    assert_refused(TypeError, "write redis.Redis.from_url(...)", FencedLock, "redis://localhost", "r")
    assert_refused(TypeError, "write redis.Redis(connection_pool=...)", RedisCoordinator, redis.ConnectionPool())
    assert_refused(TypeError, "write redis.Redis(host=...)", RedisCoordinator, None)
    assert_refused(
        TypeError, "create_engine(...) of SQLAlchemy, or EtcdCoordinator([url])", FencedLock, "sqlite:///locks.db", "r"
    )
    assert_refused(TypeError, "write redis.asyncio.Redis.from_url(...)", AsyncFencedLock, "redis://localhost", "r")
    assert_refused(TypeError, "write redis.asyncio.Redis.from_url(...)", AsyncRedisCoordinator, "redis://localhost")
    assert_refused(
        TypeError,
        "create_async_engine(...) of SQLAlchemy, or AsyncEtcdCoordinator([url])",
        AsyncFencedLock,
        "sqlite:///locks.db",
        "r",
    )
    assert_refused(TypeError, "write create_async_engine(...)", AsyncSQLCoordinator, "sqlite:///locks.db")
    assert_refused(
        TypeError, "make a RedlockCoordinator or an EtcdCoordinator first", FencedLock, [CLIENT, CLIENT, CLIENT], "r"
    )
    assert_refused(TypeError, "takes a redis.Redis or a redis.RedisCluster, not", RedisCoordinator, None)
    assert_refused(TypeError, "pass the client that made the pipeline", RedisCoordinator, CLIENT.pipeline())
    assert_refused(TypeError, "pass the client that made the pipeline", AsyncRedisCoordinator, ASYNC_CLIENT.pipeline())
    assert_refused(TypeError, "pass the client that made", RedlockCoordinator, [CLIENT, CLIENT, CLIENT.pipeline()])
    assert_refused(
        TypeError,
        "such as a redis.Redis, an engine of SQLAlchemy or a kazoo.client.KazooClient, or a coordinator, not NoneType",
        FencedLock,
        None,
        "r",
    )
    assert_refused(TypeError, "takes an async coordinator", AsyncFencedLock, RedisCoordinator(CLIENT), "r")
    assert_refused(TypeError, "takes a sync coordinator", FencedLock, AsyncRedisCoordinator(ASYNC_CLIENT), "r")


def test_sync_guards_in_async_locks_and_async_guards_in_sync_locks() -> None:
    assert_refused(
        TypeError,
        "is a sync guard, but this is an async lock",
        AsyncFencedLock,
        ASYNC_CLIENT,
        "r",
        guards=[MemoryGuard()],
    )
    assert_refused(
        TypeError, "is an async guard, but this is a sync lock", FencedLock, CLIENT, "r", guards=[AsyncMemoryGuard()]
    )


def test_an_async_guard_in_disguise() -> None:
    class Disguised:
        def claim(self, *holders: Any, timeout: float | None = None) -> Any:
            return AsyncMemoryGuard().claim(*holders, timeout=timeout)

    def plan() -> Any:
        yield Claim(Disguised(), (Fence("r", 1, "a" * 22),), 1.0)  # type: ignore[arg-type]

    assert_refused(TypeError, "is an async guard, but this is a sync lock", run, plan(), None)


def test_fences_that_a_lock_cannot_adopt() -> None:
    lock = FencedLock(CLIENT, "r")
    assert_refused(TypeError, "Fence.parse", lock.adopt, "7." + "a" * 22 + ".r")
    assert_refused(
        ValueError,
        "the fence is of 'other'; adopt it with that lock",
        lock.adopt,
        Fence("other", 1, "a" * 22),
    )
    with MemoryCoordinator().hold("r") as lease:
        assert_refused(TypeError, "pass what its detach() returns", lock.adopt, lease)


@pytest.mark.parametrize("kind", [MemoryCoordinator, AsyncMemoryCoordinator])
def test_wrong_options_of_memory_coordinators(kind: Any) -> None:
    assert_refused(TypeError, "table must be a LockTable, not list", kind, [MemoryGuard()])
    assert_refused(TypeError, "clock must be a function that returns seconds", kind, clock=5)
    assert_refused(TypeError, "such as ManualClock()", kind, clock=ManualClock)
    assert_refused(TypeError, "did you mean 'clock'?", kind, clok=ManualClock())
    assert_refused(TypeError, "a number of seconds, not str", ManualClock().advance, "1")


def test_wrong_callbacks_of_a_lease() -> None:
    async def called(error: Any) -> None: ...

    with MemoryCoordinator().hold("r") as lease:
        assert_refused(TypeError, "on_lost takes a function, not NoneType", lease.on_lost, None)
        assert_refused(TypeError, "on_lost takes a function, not an async function", lease.on_lost, called)


def test_a_released_lease_is_not_entered_again() -> None:
    lease = MemoryCoordinator().acquire("r")
    with lease:
        pass
    with pytest.raises(LeaseLost, match="was released"), lease:
        raise AssertionError("without a lock")


def test_acquire_is_not_re_entrant(side: MemorySide) -> None:
    """It would wait for the block around it, although it was asked not to."""
    coordinator = side.coordinator()
    for method, argument in (("acquire", "r"), ("try_acquire", "r"), ("hold_all", ["r"])):
        with pytest.raises(TypeError, match=rf"^{method} is never re-entrant: only blocks are; write hold\("):
            side.call(getattr(coordinator, method), argument, reentrant=True)
    assert side.holder("r") is None


@both
def test_a_class_in_the_place_of_a_client(coordinator: Any, lock: Any, client: Any) -> None:
    kind = type(client)
    assert_refused(TypeError, "takes a client, not the class Redis; write Redis(...)", coordinator, kind)
    assert_refused(TypeError, "not the class Redis; make one of it", lock, kind, "r")


def test_what_is_no_lease_but_gives_one() -> None:
    coordinator, guard = MemoryCoordinator(), MemoryGuard()
    assert_refused(
        TypeError, "not FencedLock; acquire the lock, and pass the lease", guard.claim, coordinator.lock("r")
    )
    with (hold := coordinator.hold("r")):
        assert_refused(TypeError, "write `with … as lease:`, and pass the lease", guard.claim, hold)


def test_landed_of_an_error_that_leaves_nothing_open() -> None:
    error = StaleFence(fence=Fence("r", 5, "a" * 22), mark=Mark(6, "b" * 22, 0))
    says = "not StaleFence; a write that raised another error of a guard has not happened"
    assert_refused(TypeError, says, MemoryGuard().landed, error)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("fencing", "SQLAlchemyGuard"),
        ("fencing", "FencingMiddleware"),
        ("storage_guards", "AsyncRedisCoordinator"),
        ("storage_guards", "FencedLock"),
        ("storage_guards", "Fence"),
    ],
)
def test_a_name_of_the_other_package(package: str, name: str) -> None:
    other = {"fencing": "storage_guards", "storage_guards": "fencing"}[package]
    says = f"{name} is in another package: from {other} import {name}"
    assert_refused(ImportError, says, exec, f"from {package} import {name}")
    assert_refused(
        ImportError, f"cannot import name '{name}s' from '{package}'", exec, f"from {package} import {name}s"
    )
    exec(f"from {other} import {name}")


def test_a_coordinator_whose_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [each for each in sys.modules if each.startswith("fencing.sql.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.delitem(vars(fencing), "SQLCoordinator", raising=False)
    for loaded in [each for each in sys.modules if each.partition(".")[0] == "sqlalchemy"]:
        monkeypatch.setitem(sys.modules, loaded, None)
    says = "SQLCoordinator needs sqlalchemy, which is not installed: install fencing with the extra [sqlalchemy]"
    assert_refused(ModuleNotFoundError, says, exec, "from fencing import SQLCoordinator")


def test_an_owner_that_is_not_known() -> None:
    """Perhaps a string without a ttl, under the lock's name on Redis: to try later never helps."""
    error = NotAcquired(resource="r", reason="held", waited=1, kept_by="foreign")
    assert str(error).endswith("try later; if nothing frees it, force_release() does, or choose another name")

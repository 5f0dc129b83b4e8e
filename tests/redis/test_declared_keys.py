"""Each script touches only keys that it was given: services that are not Redis refuse others, and so does a Cluster."""

from __future__ import annotations

import re
from contextlib import ExitStack
from importlib.resources import files
from typing import Any

import pytest
import redis

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, Fence, RedisCoordinator
from fencing.redis import scripts
from fencing.redis.scripts import Script
from fencing.redlock import scripts as redlock_scripts
from fencing.testing import CoordinatorContract
from storage_guards import RedisGuard
from storage_guards.redis import scripts as guard_scripts
from tests.support.declared_keys import ScriptWatch, run_contract
from tests.support.fixtures import REDIS_SERIES, RedisFactory
from tests.support.redis_guards import RedisGuardContract
from tests.support.redlock import RedlockNodes
from tests.support.sides import Side


def scripts_of(module: Any) -> dict[str, str]:
    return {each.sha: each.name for each in vars(module).values() if isinstance(each, Script) and each.sha}


@pytest.mark.parametrize("package", ["fencing.redis", "fencing.redlock", "storage_guards.redis"])
def test_no_script_names_a_key_itself(package: str) -> None:
    found = 0
    for file in (files(package) / "lua").iterdir():
        found += 1
        code = re.sub(r"--.*", "", file.read_text("utf-8"))
        assert not re.findall(r"'fencing:1:(?!wake:)[^']*'", code), file.name
        assert "SCAN" not in code, file.name
    assert found >= 7


class OnRedis(CoordinatorContract):
    short_ttl = 0.15

    def __init__(self, url: str) -> None:
        self.url = url

    def make(self, **options: Any) -> Any:
        return RedisCoordinator(redis.Redis.from_url(self.url), **options)


class OnNodes(CoordinatorContract):
    short_ttl = 0.3

    def __init__(self, nodes: RedlockNodes) -> None:
        self.nodes = nodes

    def make(self, **options: Any) -> Any:
        return self.nodes.coordinator(Side(False), **options)


class Guarded(RedisGuardContract):
    def __init__(self, server: RedisServer) -> None:
        self.server, self.direct = server, server.client()


@pytest.fixture(params=REDIS_SERIES)
def own_server(request: pytest.FixtureRequest, fresh_redis: RedisFactory) -> RedisServer:
    return fresh_redis(version=request.param)


@pytest.mark.thorough
def test_scripts_of_a_coordinator_touch_their_own_keys_only(own_server: RedisServer) -> None:
    known = scripts_of(scripts)
    with ScriptWatch(own_server) as watch:
        run_contract(lambda: OnRedis(own_server.url))
        with OnRedis(own_server.url).make() as coordinator, coordinator.hold_all(["a", "b"], timeout=5):
            pass
    assert not {(known[sha], *what) for sha, *what in watch.undeclared}
    assert {known[sha] for sha in watch.ran} == set(known.values())


@pytest.mark.thorough
def test_scripts_of_redlock_touch_their_own_keys_only(fresh_redis: RedisFactory) -> None:
    known = scripts_of(redlock_scripts) | scripts_of(scripts)
    with ExitStack() as stack:
        nodes = RedlockNodes([fresh_redis() for _ in range(3)], longest_ttl=60.0)
        watches = [stack.enter_context(ScriptWatch(server)) for server in nodes.servers]
        with nodes.coordinator(Side(False)) as coordinator:
            coordinator.initialise()
        run_contract(lambda: OnNodes(nodes))
    assert not {(known[sha], *what) for watch in watches for sha, *what in watch.undeclared}
    assert {known[sha] for watch in watches for sha in watch.ran} >= set(scripts_of(redlock_scripts).values())


@pytest.mark.thorough
def test_scripts_of_a_guard_touch_the_keys_of_marks_and_commands_only(own_server: RedisServer) -> None:
    known = scripts_of(guard_scripts)
    with ScriptWatch(own_server) as watch:
        run_contract(lambda: Guarded(own_server))
        guard, fence = RedisGuard(own_server.client()), Fence("once", 1, "t" * 22)
        guard.claim(fence)
        guard.write(fence, ("SET", "{once}:a", "1"), once="2026-11-23")
        with guard.begin(fence, once="2026-11-24") as transaction:
            transaction.write("SET", "{once}:a", "2")
    assert not {(known.get(sha), *what) for sha, *what in watch.undeclared}
    assert set(known) <= watch.ran


def test_a_script_that_touches_another_key_is_seen(any_redis: RedisServer) -> None:
    with ScriptWatch(any_redis) as watch, any_redis.client() as client:
        client.eval("redis.call('SET', KEYS[1], '1') return redis.call('MGET', KEYS[1], 'an other')", 1, "own")
    assert {(command, key) for _, command, key in watch.undeclared} == {("MGET", b"an other")}


def test_a_listing_asks_for_keys_that_it_declares(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    leases = [side.call(coordinator.acquire, name) for name in ("a", "b ü", "c")]
    any_redis.client().set("fencing:1:{1}:holder:of another slot", "1 token 1 me")
    with ScriptWatch(any_redis) as watch:
        found = listed(side, coordinator)
    for lease in leases:
        side.call(lease.release)
    assert found == [lease.fence.resource for lease in leases]
    assert watch.ran == {scripts.HOLDERS.sha}
    assert not watch.undeclared


def test_a_listing_leaves_out_what_its_user_may_not_read(side: Side, any_redis: RedisServer) -> None:
    coordinator = side.coordinator(any_redis.url)
    leases = [side.call(coordinator.acquire, name) for name in ("mine:1", "mine:2", "theirs")]
    admin: Any = any_redis.client()
    admin.execute_command("ACL SETUSER limited on >secret ~mine:* ~fencing:1:* &* +@all")
    try:
        limited = side.coordinator(side.client(any_redis.url, username="limited", password="secret"))
        assert listed(side, limited) == ["mine:1", "mine:2"]
        admin.execute_command("ACL SETUSER limited -evalsha -eval")
        with pytest.raises(CoordinatorUnavailable, match="permissions"):
            listed(side, limited)
    finally:
        admin.execute_command("ACL DELUSER limited")
    for lease in leases:
        side.call(lease.release)


def listed(side: Side, coordinator: Any) -> list[str]:
    async def collect() -> list[str]:
        return sorted([resource async for resource, _ in coordinator.holders()])

    return side.call(collect) if side.asynchronous else sorted(resource for resource, _ in coordinator.holders())

"""What a later version of the library may keep on the nodes: it is shown, or refused, and never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencing import CoordinatorUnavailable
from fencing.redis.keys import keys_of
from fencing.redlock.calls import MEMBER_KEYS
from fencing.redlock.decisions import decide_holder
from tests.support.redlock import FreshNodes, RedlockNodes
from tests.support.sides import Side

NEWER = b"2:1795313443589306 now with fields"
MEMBER, BACK, *_ = MEMBER_KEYS


def clients_of(nodes: RedlockNodes) -> list[Any]:
    return [server.client() for server in nodes.servers]


def kept(clients: list[Any]) -> list[dict[bytes, bytes]]:
    """All that the nodes keep, without what every release may do: free a lock."""
    return [{key: client.dump(key) for key in client.scan_iter("fencing:1:*")} for client in clients]


@pytest.mark.parametrize("call", ["acquire", "remint", "force"])
def test_the_counters_of_a_newer_version_are_refused_and_stay(
    side: Side, redlock_nodes: RedlockNodes, call: str
) -> None:
    name = f"newer:{call}"
    counter, clients = keys_of(name).counter, clients_of(redlock_nodes)
    coordinator = redlock_nodes.coordinator(side)
    lease = None
    if call != "acquire":
        lease = side.call(coordinator.acquire, name, timeout=60)
        side.call(lease.detach)
        redlock_nodes.wait_until_all_hold(side, name)
    for client in clients:
        client.set(counter, NEWER)
    before = [client.mget(name, keys_of(name).holder, counter) for client in clients]
    calls: dict[str, Callable[[], Any]] = {
        "acquire": lambda: coordinator.acquire(name, timeout=60),
        "remint": lambda: coordinator.adopt(lease.fence),  # type: ignore[union-attr]
        "force": lambda: coordinator.force_release(name),
    }
    said = str(side.expect(CoordinatorUnavailable, calls[call]))
    assert f"the counter {counter} does not hold a number" in said
    assert "then upgrade this program" in said
    assert [client.mget(name, keys_of(name).holder, counter) for client in clients] == before
    for client in clients:
        client.delete(counter, name, keys_of(name).holder)


def test_a_renewal_leaves_the_counter_of_a_newer_version_alone(redlock_nodes: RedlockNodes) -> None:
    """The record is lost, so the renewal writes it again, with its number."""
    side, name = Side(False), "newer:renewal"
    keys, clients = keys_of(name), clients_of(redlock_nodes)
    lease = redlock_nodes.coordinator(side).lock(name, ttl=20, renew=False).acquire(timeout=60)
    redlock_nodes.wait_until_all_hold(side, name)
    for client in clients:
        client.set(keys.counter, NEWER)
        client.delete(keys.holder)
    lease.renew()
    side.wait_until(lambda: all(client.exists(keys.holder) for client in clients))
    assert {client.get(keys.counter) for client in clients} == {NEWER}
    assert lease.release() is True
    for client in clients:
        client.delete(keys.counter)


@pytest.mark.parametrize("key", [MEMBER, BACK])
def test_nodes_that_a_newer_version_has_admitted_are_refused_and_stay(
    side: Side, fresh_nodes: FreshNodes, key: str
) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    clients = clients_of(nodes)
    coordinator = nodes.coordinator(side)
    lease = side.call(coordinator.acquire, "r", timeout=60)
    nodes.wait_until_all_hold(side, "r")
    for client in clients:
        client.delete(MEMBER)
        client.set(key, NEWER)
    before = kept(clients)
    for call in (
        lambda: coordinator.acquire("other", timeout=60),
        lambda: coordinator.force_release("r"),
        lambda: coordinator.initialise(),
        lambda: lease.renew(),
    ):
        said = str(side.expect(CoordinatorUnavailable, call))
        assert f"the key {key} does not hold what this version knows" in said
        assert "then upgrade this program" in said
    assert kept(clients) == before
    assert side.call(lease.release) is True


def test_one_node_of_a_newer_version_is_one_that_does_not_answer(fresh_nodes: FreshNodes) -> None:
    nodes = fresh_nodes(longest_ttl=60.0)
    newer: Any = nodes.servers[0].client()
    newer.set(MEMBER, NEWER)
    before = kept([newer])
    with nodes.coordinator(Side(False)).hold("r", timeout=60) as lease:
        assert lease.held
    assert kept([newer]) == before
    assert newer.exists("r") == 0


def test_a_holder_that_has_released_and_stays_is_shown(side: Side, redlock_nodes: RedlockNodes) -> None:
    """A later version leaves a lock taken for a while, although its holder has released it. A renewal keeps that."""
    name = "newer:released"
    keys, clients = keys_of(name), clients_of(redlock_nodes)
    coordinator = redlock_nodes.coordinator(side, owner="me")
    lease = side.call(coordinator.lock(name, renew=False).acquire, timeout=60)
    redlock_nodes.wait_until_all_hold(side, name)
    for client in clients:
        number, token, granted, owner = client.get(keys.holder).decode().split(" ")
        client.set(keys.holder, f"{int(number) - 1} {token} {granted}-{granted} {owner}", keepttl=True)
    side.call(lease.renew)
    side.wait_until(lambda: all(client.get(keys.holder).startswith(number.encode()) for client in clients))
    holder = side.call(coordinator.holder, name)
    assert (holder.released, holder.owner, holder.number) == (True, "me", int(number))
    side.call(lease.detach)
    assert side.call(coordinator.force_release, name).holder.released is True


def test_one_node_that_says_so_is_enough_for_released() -> None:
    """The release has not reached the others, and nobody else can send one."""

    def held(released: bytes) -> list[object]:
        return [b"held", 900, 100, b"7", b"me", b"5eed", released]

    assert decide_holder([held(b""), held(b"-9"), held(b"")], 2) == held(b"-9")
    assert decide_holder([held(b""), held(b""), held(b"")], 2) == held(b"")

"""The topology of a Redis Cluster: replies, redirections and failures, without a server."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, TryAgainError

from fencing import CoordinatorUnavailable
from fencing.kernel.retry import NoReply
from fencing.redis.cluster import topology as module
from fencing.redis.cluster.topology import MOST_REDIRECTS, Topology
from fencing.redis.keys import SLOTS

A, B, C = ("10.0.0.1", 7000), ("10.0.0.2", 7000), ("10.0.0.3", 7000)
Redirected: Any = MovedError  # untyped
Asked: Any = AskError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def topology(clock: Clock) -> Topology:
    made = Topology([A], None, "the Cluster of 10.0.0.1:7000")
    made.to_ask()
    made.update([node(0, 8191, A, C), node(8192, SLOTS - 1, B)], A)
    return made


def node(first: int, last: int, *nodes: tuple[str, int]) -> list[Any]:
    return [first, last, *([host.encode(), port, b"an id", []] for host, port in nodes)]


def unavailable(error: Exception) -> CoordinatorUnavailable:
    failure = CoordinatorUnavailable("refused")
    failure.__cause__ = error
    return failure


def refused(error: Exception) -> NoReply:
    return NoReply(error, may_have_run=False)


def test_each_slot_has_its_primary(topology: Topology) -> None:
    assert (topology.owners[0], topology.owners[8191], topology.owners[8192]) == (A, A, B)
    assert topology.primaries == {A: 0, B: 8192}
    assert C not in topology.primaries, "a replica"
    assert (topology.next_primary(0), topology.next_primary(8192)) == (8192, None)
    assert not topology.must_ask


@pytest.mark.parametrize("host", [b"", None, "", b"?"])
def test_a_node_without_a_name_is_at_the_address_that_was_asked(topology: Topology, host: Any) -> None:
    topology.update([[0, SLOTS - 1, [host, 7001, b"an id"]]], B)
    assert topology.owners[5] == (B[0], 7001)
    assert topology.redirect(Redirected("5 :7002"), C) == (C[0], 7002)


def test_addresses_are_mapped_as_the_client_maps_them(clock: Clock) -> None:
    made = Topology([A], lambda named: ("127.0.0.1", named[1] + 1), "it")
    made.update([node(0, SLOTS - 1, B)], A)
    assert made.owners[0] == ("127.0.0.1", 7001)


NO_SLOTS = [(0, 99999), (0, 2**53), (-2, -1), (-1, 5), (5, 4), (0, float("inf"))]
NO_NODES = [[], [b"h", b"x"], [b"h", 65536], [b"h", -1], [5, 1], [b"\xff", 1]]


@pytest.mark.parametrize(
    "reply",
    [5, ["x"], [[1]], [[0, 1]], *([[*slots, [b"h", 1]]] for slots in NO_SLOTS), *([[0, 1, it]] for it in NO_NODES)],
)
def test_a_reply_that_makes_no_sense_changes_nothing(topology: Topology, reply: Any) -> None:
    with pytest.raises(RedisError, match="CLUSTER SLOTS"):
        topology.update(reply, A)
    assert topology.owners[0] == A


def test_nodes_are_asked_once_a_second_at_most(topology: Topology, clock: Clock) -> None:
    topology.suspect(A)
    assert not topology.must_ask
    clock.now += 1.0
    assert topology.must_ask
    assert topology.to_ask()[-1] == A, "the one that failed comes last"
    assert set(topology.to_ask()) == {A, B, C}
    assert not topology.must_ask


def test_moved_is_followed_and_kept(topology: Topology) -> None:
    assert topology.follow(unavailable(Redirected("5 10.0.0.2:7000")), 5, A, 0) == (B, False)
    assert (topology.owners[5], topology.owners[6]) == (B, A)
    assert topology.is_stale, "other slots may have moved with it"


def test_ask_is_followed_once(topology: Topology) -> None:
    assert topology.follow(unavailable(Asked("5 10.0.0.2:7000")), 5, A, 0) == (B, True)
    assert topology.owners[5] == A
    assert not topology.is_stale


def test_nodes_that_name_one_another_are_followed_a_few_times(topology: Topology, clock: Clock) -> None:
    moved = unavailable(Redirected("5 10.0.0.2:7000"))
    with pytest.raises(NoReply, match="redirections in a row for slot 5"):
        topology.follow(moved, 5, A, MOST_REDIRECTS)
    clock.now += 0.6
    with pytest.raises(NoReply):
        topology.follow(moved, 5, A, MOST_REDIRECTS)
    clock.now += 0.6
    with pytest.raises(CoordinatorUnavailable, match=r"disagree.*redis-cli --cluster check"):
        topology.follow(moved, 5, A, MOST_REDIRECTS)
    clock.now += 2.0
    with pytest.raises(NoReply):  # a new circle
        topology.follow(moved, 5, A, MOST_REDIRECTS)


def test_a_slot_that_moves_is_tried_again_there(topology: Topology) -> None:
    with pytest.raises(NoReply, match="Multiple keys"):
        topology.follow(refused(TryAgainError("Multiple keys request during rehashing of slot")), 5, A, 0)
    assert not topology.is_stale


@pytest.mark.parametrize("error", [ClusterDownError("The cluster is down"), RedisError("connection closed")])
def test_a_node_that_fails_is_suspect(topology: Topology, error: Exception) -> None:
    with pytest.raises(NoReply):
        topology.follow(refused(error), 5, A, 0)
    assert topology.is_stale


def test_a_slot_without_a_node_is_told_after_a_second(topology: Topology, clock: Clock) -> None:
    topology.update([node(0, 4, A), node(6, SLOTS - 1, B)], A)
    assert isinstance(topology.not_covered(5), NoReply)
    clock.now += 0.9
    with pytest.raises(NoReply):
        topology.follow(refused(ClusterDownError("Hash slot not served")), 9, B, 0)
    clock.now += 0.9
    with pytest.raises(CoordinatorUnavailable, match="no node has slot 5; run redis-cli --cluster fix"):
        topology.follow(refused(ClusterDownError("The cluster is down")), 9, B, 0)


def test_before_any_node_has_replied_its_error_is_told(clock: Clock) -> None:
    made = Topology([A], None, "it")
    made.failure = refused(ConnectionError("connection refused"))
    error = made.not_covered(5)
    assert isinstance(error, NoReply)
    assert "connection refused" in str(error)
    made.failure = CoordinatorUnavailable("wrong password")
    assert "wrong password" in str(made.not_covered(5))

"""What replies mean together, and which nodes are asked."""

from __future__ import annotations

import time

import pytest
import redis

from fencing.kernel.retry import NoReply
from fencing.redis.calls import release_call
from fencing.redlock.calls import Fanout, grant_call, highest_call
from fencing.redlock.decisions import (
    Ask,
    Confirm,
    Held,
    Refused,
    Undecided,
    check_answered,
    decide_grant,
    decide_renewals,
    digest_of,
    seed_for,
)
from fencing.redlock.nodes import DOUBT_SECONDS, FAILURES, Nodes
from fencing.redlock.scripts import ACQUIRE

MINE, SMALLER, LARGER = "ours", b"1" * 16, b"9" * 16
"""A token whose digest is 48537f613ab85111, and other digests."""
LOST = NoReply(TimeoutError(), may_have_run=True)


def taken(digest: bytes, left: int = 1000) -> list[object]:
    return [b"taken", left, b"me", digest]


def test_equal_numbers_of_a_majority_are_held_in_one_round() -> None:
    assert decide_grant([b"7", b"7", b"9", b"7", None], 3, MINE) == Held(7)


def test_different_numbers_are_confirmed_where_they_are_lower() -> None:
    assert decide_grant([b"7", b"8", b"9", taken(LARGER), LOST], 3, MINE) == Confirm(9, 1, (0, 1))


def test_split_votes_go_to_the_caller_with_most_nodes() -> None:
    assert decide_grant([b"7", b"7", taken(SMALLER), taken(LARGER), None], 3, MINE) == Ask((2, 3))
    assert decide_grant([b"7", b"7", taken(LARGER), taken(LARGER), LOST], 3, MINE) == Ask((2, 3)), "a tie"
    lost = decide_grant([b"7", b"7", taken(SMALLER), taken(SMALLER, 1500), taken(LARGER)], 3, MINE)
    assert lost == Refused(1500, "me"), "the smaller digest wins a tie"


def test_nobody_holds_it_where_nobody_is_known_to_have_a_majority() -> None:
    counted = Undecided("2 of 5 nodes granted it, 2 had granted it to 'me', and 1 did not answer in time")
    assert decide_grant([b"7", b"7", taken(SMALLER), taken(SMALLER), LOST], 3, MINE) == counted
    assert decide_grant([b"7", b"7", taken(LARGER), taken(LARGER), LOST], 3, MINE, may_ask=False) == counted
    assert decide_grant([b"7", *[taken(SMALLER)] * 3, LOST], 3, MINE) == Refused(1000, "me")


def test_nodes_that_came_back_name_the_shortest_wait() -> None:
    assert decide_grant([b"7", [b"back", 900, b"0"], [b"back", 700, b"0"]], 2, MINE) == Refused(None, None, 700)
    back = [[b"back", 900, b"0"], [b"back", 700, b"5"]]
    assert decide_grant([LOST, *back], 2, MINE) == Refused(None, None, 700, are_new=False)
    assert decide_grant([LOST, back[0], back[0]], 2, MINE) == Refused(None, None, 900, are_new=True)


def test_each_lease_of_a_renewal_is_decided_by_itself() -> None:
    assert decide_renewals([b"rgr", b"rgg", b"rgo", LOST, None], 3, 3) == [True, False, None]


def test_a_node_begins_above_the_members_or_stays_out() -> None:
    members, back = [[b"member", b"8"], [b"member", b"9"]], [b"stranger", b"30", 0]
    assert seed_for([*members, back], 2, 100) == 9
    assert seed_for([members[0], back, LOST], 2, 100) is None
    assert seed_for([members[0], back, back], 2, 20) == 30
    assert seed_for([members[0], back, back], 2, 100) == 100


def test_too_few_replies_are_counted_in_the_error() -> None:
    with pytest.raises(NoReply, match="1 of 3 nodes answered, and 2 are needed"):
        check_answered([b"7", LOST, LOST], 2)
    check_answered([b"7", b"7", LOST], 2)


def test_a_dead_node_is_skipped_unless_a_majority_would_be_missing() -> None:
    nodes = Nodes([redis.Redis(port=port) for port in (1, 2, 3)], longest_ms=1000, restart_wait=True)
    ask = Fanout(highest_call(), (0, 1, 2), 2, 0, 0.05)
    now = time.monotonic()
    for _ in range(FAILURES):
        assert nodes.chosen(ask, now) == (0, 1, 2)
        nodes.failed(0, now)
    assert nodes.chosen(ask, now) == (1, 2)
    assert nodes.chosen(ask, now + 1) == (0, 1, 2), "one request tries it again"
    assert nodes.chosen(ask, now + 1) == (1, 2)
    nodes.failed(1, now + 1)
    assert nodes.chosen(ask, now + 1) == (0, 1, 2)
    nodes.replied(1)
    assert nodes.chosen(ask, now + 1) == (1, 2)
    nodes.replied(0)
    assert nodes.chosen(ask, now + 1) == (0, 1, 2)


def test_a_node_in_doubt_is_not_asked_with_the_token_for_a_while() -> None:
    nodes = Nodes([redis.Redis(port=port) for port in (1, 2, 3)], longest_ms=1000, restart_wait=True)
    token = "t" * 22
    take = Fanout(grant_call(ACQUIRE, "r", token, (1000, "me", 0), 1), (0, 1, 2), 2, 2, 0.05)
    free = Fanout(release_call("r", token), (0, 1, 2), 2, 2, 0.05)
    nodes.doubt(1, token)
    now = time.monotonic()
    assert nodes.chosen(take, now) == (0, 2)
    assert nodes.chosen(free, now) == (0, 1, 2)
    assert nodes.chosen(take, now + DOUBT_SECONDS + 0.1) == (0, 1, 2)
    nodes.settled(1, token)
    assert nodes.chosen(take, now) == (0, 1, 2)
    assert len(digest_of(token)) == 16

"""What replies mean together, and which nodes are asked."""

from __future__ import annotations

import time

import pytest
import redis

from fencing.kernel.fence import digest_of
from fencing.kernel.retry import NoReply
from fencing.redis.calls import release_call
from fencing.redlock.calls import Fanout, grant_call, highest_call
from fencing.redlock.decisions import (
    Ask,
    Confirm,
    Held,
    NoMajority,
    Refused,
    check_answered,
    decide_grant,
    decide_holder,
    decide_renewals,
    decide_take,
    free_nodes,
    has_decided,
    seed_for,
    vote,
)
from fencing.redlock.exchange import AWAITED
from fencing.redlock.nodes import FAILURES, Nodes
from fencing.redlock.scripts import ACQUIRE, FORCE_RELEASE, REMINT

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
    counted = NoMajority("2 of 5 nodes granted it, 2 had granted it to 'me', and 1 did not answer in time")
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


def test_only_an_acquisition_has_a_release_behind_a_time_out() -> None:
    """Its token is not asked with again. The others are repeated with theirs."""
    token = "t" * 22
    assert grant_call(ACQUIRE, "r", token, (1000, "me", 0), 1).compensation == release_call("r", token)
    for script, more in ((REMINT, ("o" * 22, 7)), (FORCE_RELEASE, ("1" * 16, 0))):
        assert grant_call(script, "r", token, (1000, "me", 0), 1, more).compensation is None
    with pytest.raises(NoReply) as raised:
        check_answered([b"7", LOST, LOST], 2, undone=True)
    assert raised.value.was_undone
    refused = NoReply(ConnectionRefusedError(), may_have_run=False)
    with pytest.raises(NoReply) as raised:
        check_answered([b"7", refused, refused], 2, undone=True)
    assert not raised.value.was_undone, "nothing was sent"


def test_what_one_node_has_done_has_run() -> None:
    """A release that is repeated then cannot tell that the lock was not held. It is as vain to repeat it as before."""
    refused = NoReply(ConnectionRefusedError(), may_have_run=False)
    for replies, may_have_run, was_refused in (
        ([1, refused, refused], True, True),
        ([0, refused, refused], False, True),
        ([b"gfg", refused, refused], True, True),
        ([b"ggg", refused, refused], False, True),
        ([taken(SMALLER), refused, refused], False, True),
        ([1, LOST, refused], True, False),
        ([LOST, refused, refused], True, False),
        ([refused] * 3, False, True),
    ):
        with pytest.raises(NoReply) as raised:
            check_answered(replies, 2)
        assert (raised.value.may_have_run, raised.value.was_refused) == (may_have_run, was_refused)


def test_only_a_majority_of_others_says_that_a_grant_is_gone() -> None:
    free = taken(digest_of("").encode())
    assert decide_take([b"7", taken(LARGER), free], 2, MINE) == Refused(None, None)
    assert decide_take([b"7", b"7", free], 2, MINE) == Held(7)
    assert decide_take([b"7", b"8", free], 2, MINE) == Confirm(8, 1, (0,))
    open_round = decide_take([b"7", free, LOST], 2, MINE)
    assert open_round == NoMajority("1 of 3 nodes granted it, 1 had granted it to 'me', and 1 did not answer in time")
    back = [b"back", 900, b"0"]
    assert decide_take([b"7", back, free], 2, MINE) == NoMajority(
        "1 of 3 nodes granted it, 1 had granted it to 'me', 1 came back from a restart, and 0 did not answer in time"
    )
    assert free_nodes([b"7", free, taken(LARGER), LOST]) == (1,)


def test_a_holder_has_a_majority_or_may_have_one_with_nodes_that_did_not_reply() -> None:
    def held(digest: bytes, left: int = 900) -> list[object]:
        return [b"held", left, 100, b"7", b"me", digest, b""]

    assert decide_holder([held(LARGER, 500), held(LARGER), [b"free"]], 2) == held(LARGER, 500)
    assert decide_holder([held(LARGER), [b"free"], [b"free"]], 2) is None
    assert decide_holder([held(LARGER), [b"free"], LOST], 2) == held(LARGER)
    assert decide_holder([held(LARGER), [b"free"], [b"free"], [b"free"], LOST], 3) is None


def test_the_number_of_a_holder_is_that_of_most_of_its_nodes() -> None:
    """A node that was late in the round of the grant has minted a number of its own, and nobody has told it another."""

    def held(number: bytes) -> list[object]:
        return [b"held", 900, 100, number, b"me", LARGER, b""]

    assert decide_holder([held(b"8"), held(b"7"), held(b"7")], 2) == held(b"7")
    assert decide_holder([held(b"6"), held(b"7"), held(b"7")], 2) == held(b"7")
    assert vote(held(b"8")) != vote(held(b"7")), "two that disagree are no majority: the others are waited for"
    assert vote(held(b"7")) == vote([b"held", 500, 400, b"7", b"me", LARGER])


def test_a_fan_out_is_decided_when_so_many_nodes_say_the_same() -> None:
    silent: list[object] = [LOST, None, AWAITED, AWAITED, AWAITED]
    assert not has_decided([*silent, *silent, b"7", b"7", b"8"], 3), "what is missing or failed is no vote"
    assert has_decided([*silent, b"7", b"8", b"7", b"7"], 3)
    assert has_decided([*silent, 1, 3], 2), "two have freed it, and one of them has a queue"
    assert not has_decided([*silent, 1, 0], 2)
    assert has_decided([taken(LARGER, 500), taken(LARGER, 700), None], 2)
    assert not has_decided([taken(LARGER), taken(SMALLER), None], 2)

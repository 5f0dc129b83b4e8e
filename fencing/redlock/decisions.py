"""What the replies of several nodes mean together. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.fence import digest_of
from fencing.kernel.retry import NoReply

Replies = Sequence[Any]
"""For each node: its reply, an exception, or None."""

RENEWED, GONE, TOO_OLD = b"rgo"
"""The characters of lua/renew.lua."""

_new = tuple.__new__  # the constructor of a NamedTuple is a function in Python

_FREE = digest_of("").encode()
"""In the place of a token's digest where nobody holds the lock."""


class Held(NamedTuple):
    """A majority gave the same number."""

    number: int


class Confirm(NamedTuple):
    """A majority granted, with different numbers: the highest one must be confirmed by those that have less."""

    number: int
    agreed: int  # how many nodes gave it already
    nodes: tuple[int, ...]


class Refused(NamedTuple):
    """The lock is not granted.

    ``waiting_ms``: the first ms after which a node that came back may be admitted; ``are_new``: all that replied have
    no data at all.
    """

    remaining_ms: int | None  # None: not known
    owner: str | None
    waiting_ms: int | None = None
    are_new: bool = False


class Ask(NamedTuple):
    """No holder can have a majority, and the caller has most nodes: it asks the others again."""

    nodes: tuple[int, ...]


class NoMajority(NamedTuple):
    """No majority granted the lock in time, and nobody is known to hold it; ``text`` says what was counted."""

    text: str


class Implausible(NamedTuple):
    """A node refused the number."""

    number: int
    ceiling: int


Decision = Held | Confirm | Refused | Ask | NoMajority | Implausible


def vote(reply: Any) -> Hashable:
    """Return what a reply says, so that equal votes can be counted; None: it counts for nothing."""
    if type(reply) is bytes:
        return reply
    if type(reply) is int:
        return reply > 0
    if type(reply) is not list:
        return None
    if reply[0] == b"held":
        return (reply[3], reply[5])  # a node that was late in the round of a grant has a number of its own
    said: bytes = reply[3] if reply[0] == b"taken" else reply[0]
    return said


def has_decided(replies: Replies, quorum: int) -> bool:
    """Return whether so many nodes gave the same vote."""
    for reply in replies:  # mostly the first one decides
        if isinstance(reply, (bytes, int)) and replies.count(reply) >= quorum:
            return True
    votes = [said for each in replies if (said := vote(each)) is not None]
    return any(votes.count(said) >= quorum for said in votes)


def check_answered(replies: Replies, least: int, *, undone: bool = False) -> None:
    """Raise if too few nodes replied.

    Args:
        replies: of all nodes.
        least: how many must have replied.
        undone: whether a release was sent behind each request without a reply.

    Raises:
        NoReply: another attempt may succeed.
        CoordinatorUnavailable: so many nodes refused that it would not.
    """
    failures = [reply for reply in replies if isinstance(reply, Exception)]
    replied = sum(reply is not None for reply in replies) - len(failures)
    if replied >= least or not failures:
        return
    lost = [each for each in failures if isinstance(each, NoReply)]
    refused = [each for each in failures if isinstance(each, CoordinatorUnavailable)]
    if refused and replied + len(lost) < least:
        raise refused[0]
    cause = next((each for each in lost if each.may_have_run), lost[0] if lost else failures[0])
    silent = named([i for i, reply in enumerate(replies) if isinstance(reply, Exception)])
    text = (
        f"{replied} of {len(replies)} nodes answered, and {least} are needed; {silent} did not: "
        f"{str(cause) or type(cause).__name__}"
    )
    was_sent = any(each.may_have_run for each in lost)
    raise NoReply(
        TimeoutError(text),
        may_have_run=was_sent or any(map(_has_changed, replies)),
        was_refused=not was_sent,
        was_undone=undone and was_sent,
    ) from cause


def _has_changed(reply: Any) -> bool:
    """Return whether a node has granted, renewed or freed something, as its reply says."""
    return (type(reply) is int and reply > 0) or (type(reply) is bytes and any(each != GONE for each in reply))


def named(nodes: Sequence[int]) -> str:
    """Return these nodes in words; they count from 1, in the order of the coordinator's list."""
    first, last = ", ".join(str(i + 1) for i in nodes[:-1]), nodes[-1] + 1
    return f"nodes {first} and {last}" if first else f"node {last}"


def check_settings(replies: Replies, longest_ms: int, restart_wait: bool) -> None:
    """Raise if a node was admitted with other settings than the caller's.

    Raises:
        CoordinatorUnavailable: the settings differ.
    """
    for index, reply in enumerate(replies):
        if type(reply) is list and reply[0] == b"setting":
            theirs = f"longest_ttl={int(reply[1]) / 1000:g} and restart_wait={reply[2] == b'1'}"
            raise CoordinatorUnavailable(
                f"node {index + 1} was admitted with {theirs}, but this coordinator has "
                f"longest_ttl={longest_ms / 1000:g} and restart_wait={restart_wait}; pass {theirs}, or change the "
                f"nodes as docs/coordinators/redlock.md says",
                refused=True,
            )


def decide_grant(replies: Replies, quorum: int, token: str, *, may_ask: bool = True) -> Decision:
    """Return what the replies of a script that grants mean.

    Args:
        replies: of lua/acquire.lua.
        quorum: how many nodes are a majority.
        token: the caller's.
        may_ask: whether the caller may ask nodes again.
    """
    for reply in replies:  # mostly the first one decides
        if type(reply) is bytes and replies.count(reply) >= quorum:
            return _new(Held, (int(reply),))
    numbers = {i: int(reply) for i, reply in enumerate(replies) if type(reply) is bytes}
    if len(numbers) >= quorum:
        highest = max(numbers.values())
        lower = tuple(i for i, each in numbers.items() if each < highest)
        return Confirm(highest, len(numbers) - len(lower), lower)
    kinds: dict[bytes, list[tuple[int, Any]]] = {}
    for i, reply in enumerate(replies):
        if type(reply) is list:
            kinds.setdefault(reply[0], []).append((i, reply))
    if b"implausible" in kinds:
        _, reply = kinds[b"implausible"][0]
        return Implausible(int(reply[1]), int(reply[2]))
    taken = kinds.get(b"taken", [])
    back = kinds.get(b"back", [])
    holders = Counter(reply[3].decode() for _, reply in taken)
    strongest = max(holders.items(), key=lambda each: (each[1], -int(each[0], 16)), default=("", 0))
    is_split = numbers and strongest[1] < quorum and len(numbers) + len(taken) >= quorum
    is_ahead = is_split and (len(numbers), strongest[0]) > (strongest[1], digest_of(token))  # a tie: the smaller digest
    if is_ahead and may_ask:
        return Ask(tuple(i for i, _ in taken))
    waiting = min((int(reply[1]) for _, reply in back), default=None)
    is_missing = not taken or any(isinstance(reply, Exception) for reply in replies)
    if waiting is None and strongest[1] < quorum and (is_ahead or is_missing):
        return NoMajority(_counted(len(numbers), taken, len(replies)))
    if not taken:
        are_new = not numbers and bool(back) and all(reply[2] == b"0" for _, reply in back)
        return Refused(None, None, waiting, are_new)
    return _refusal([reply for _, reply in taken if reply[3].decode() == strongest[0]], waiting)


def decide_take(replies: Replies, quorum: int, token: str) -> Decision:
    """Return what the replies of lua/remint.lua or lua/force_release.lua mean, which take the lock from a grant.

    ``Refused``: that grant certainly has no majority any more. Without enough replies this is not known.
    """
    decision = decide_grant(replies, quorum, token, may_ask=False)
    if isinstance(decision, (Held, Confirm, Implausible)):
        return decision
    taken = [(i, reply) for i, reply in enumerate(replies) if type(reply) is list and reply[0] == b"taken"]
    if len(taken) > len(replies) - quorum:
        return Refused(None, None)
    back = sum(type(reply) is list and reply[0] == b"back" for reply in replies)
    return NoMajority(_counted(sum(type(reply) is bytes for reply in replies), taken, len(replies), back))


def free_nodes(replies: Replies) -> tuple[int, ...]:
    """Return the nodes at which nobody held the lock that lua/force_release.lua was to take."""
    return tuple(i for i, reply in enumerate(replies) if type(reply) is list and reply[3:] == [_FREE])


def _counted(granted: int, taken: Sequence[tuple[int, Any]], nodes: int, back: int = 0) -> str:
    """Describe a round that nobody has won."""
    owners = ", ".join(sorted({repr(reply[2].decode("utf-8", "replace")) for _, reply in taken}))
    others = f", {len(taken)} had granted it to {owners}" if taken else ""
    others += f", {back} came back from a restart" if back else ""
    silent = nodes - granted - len(taken) - back
    return f"{granted} of {nodes} nodes granted it{others}, and {silent} did not answer in time"


def _refusal(taken: Sequence[Any], waiting_ms: int | None) -> Refused:
    """Return the refusal of one holder: the lock is free when the last of its nodes is."""
    left = max(int(reply[1]) for reply in taken)
    return Refused(None if left < 0 else left, taken[0][2].decode("utf-8", "replace") or None, waiting_ms)


def decide_renewals(replies: Replies, count: int, quorum: int) -> list[bool | None]:
    """Return for each lease whether it is held by a majority; False: it cannot be; None: too few replies."""
    results = [reply for reply in replies if type(reply) is bytes]
    nodes = len(replies)
    decided: list[bool | None] = []
    for i in range(count):
        renewed = sum(reply[i] == RENEWED for reply in results)
        gone = len(results) - renewed
        decided.append(True if renewed >= quorum else False if gone > nodes - quorum else None)
    return decided


def decide_stay(replies: Replies, quorum: int) -> bool | None:
    """Return whether a lock stays taken after its release, as a majority says; None: no majority agrees.

    Args:
        replies: of redis/lua/release_later.lua: 1 of a node at which it stays taken, 0 of one that did not have it.
        quorum: how many nodes are a majority.
    """
    if replies.count(1) >= quorum:
        return True
    return False if replies.count(0) >= quorum else None


def decide_holder(replies: Replies, quorum: int) -> Any:
    """Return the reply of lua/holder.lua that stands for the holder, with the remaining ms of its Q-th longest node.

    A holder has a majority, or may have one with the nodes that did not reply. So a forced release can name it. Its
    number is that of most of its nodes: one that was late in the round of the grant has a number of its own. It has
    released the lock if one of its nodes says so: nobody else can.
    """
    missing = sum(isinstance(reply, Exception) for reply in replies)
    by_digest: dict[bytes, list[Any]] = {}
    for reply in replies:
        if type(reply) is list and reply[0] == b"held":
            by_digest.setdefault(reply[5], []).append(reply)
    for held in sorted(by_digest.values(), key=len, reverse=True)[:1]:
        if len(held) + missing >= quorum:
            lasting = sorted((int(reply[1]) for reply in held), reverse=True, key=lambda ms: ms if ms >= 0 else 1 << 62)
            nodes = Counter(reply[3] for reply in held)
            agreed = max(held, key=lambda reply: (nodes[reply[3]], int(reply[3] or 0)))
            released = max(reply[6] for reply in held)
            return [b"held", lasting[min(quorum, len(held)) - 1], *agreed[2:6], released]
    return None


def seed_for(replies: Replies, quorum: int, clock_us: int) -> int | None:
    """Return the number that a node that came back must exceed; None: it must stay out.

    Args:
        replies: of lua/highest.lua.
        clock_us: a clock in microseconds, for the case that too few members are left.
    """
    known = [reply for reply in replies if type(reply) is list and reply[0] in (b"member", b"stranger")]
    members = [int(reply[1]) for reply in known if reply[0] == b"member"]
    if len(members) >= quorum:
        return max(members)
    if len(known) == len(replies):  # all of them answer, so nothing that is left can be higher
        return max(clock_us, *(int(reply[1]) for reply in known))
    return None

"""Says of a history what could not have happened if the rules hold. No I/O, no randomness.

A write whose outcome is unknown may have happened or not, until ``landed`` has said. A write whose process died is
unknown, too. Nothing is concluded from either but from what the storage has at the end.

A storage may go back in time (``rewound``). What it had acknowledged since then may be gone, claims and marks too. But
whoever has seen such a write must not write afterwards, and what was acknowledged later must stay.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from tests.torture.history import Event

__all__ = ["FEWEST_KEPT", "RULES", "Violation", "check"]

LOST_UPDATE = "lost update"
STALE_READ = "stale read"
LATE_HOLDER = "late holder"
WRONG_REFUSAL = "wrong refusal"
WRONG_LANDED = "wrong landed"
LONG_WAIT = "wait beyond its bound"
LOCK_LEFT = "lock left behind"
TWO_HOLDERS = "two holders at once"
LOWER_NUMBER = "number that fell"
FREE_TOO_SOON = "lock free too soon"
TWO_SLOTS = "one holder of two slots"
WRONG_SLOT = "slot above the highest"
NO_LEADER = "no leader"
WRONG_LEADER = "wrong leader"
DONE_TWICE = "done twice"
WRONG_DONE = "wrong AlreadyDone"
WRONG_TOO_OLD = "wrong TooOld"
UNEXPECTED = "unexpected error"
SURVIVOR = "survivor of a rewind"
BROKEN = "broken history"

RULES = (
    LOST_UPDATE,
    STALE_READ,
    LATE_HOLDER,
    SURVIVOR,
    WRONG_REFUSAL,
    WRONG_LANDED,
    LONG_WAIT,
    LOCK_LEFT,
    TWO_HOLDERS,
    LOWER_NUMBER,
    FREE_TOO_SOON,
    TWO_SLOTS,
    WRONG_SLOT,
    NO_LEADER,
    WRONG_LEADER,
    DONE_TWICE,
    WRONG_DONE,
    WRONG_TOO_OLD,
    UNEXPECTED,
    BROKEN,
)

HARMLESS = frozenset(
    {
        *("cut", "drop request", "drop reply", "silence", "keep", "drip"),
        *("freeze", "kill leader", "partition", "outlast", "fill", "prune", "prune keys", "verify", "back up"),
    }
)
"""Faults of a service under which no two holders believe at once: no data is lost there, and no clock jumps.

A leader is one of a majority, which has agreed on all that was acknowledged: etcd's and ZooKeeper's.
"""

MAY_NAME_NO_HOLDER = frozenset({"redlock"})
"""Where some nodes do not answer, who has a few of the others is named, for a majority may be theirs."""

FEWEST_KEPT = 100
"""How many keys that are done a guard keeps at least, before it gives up the lowest: docs/guards/once.md."""


class Violation(NamedTuple):
    """A rule that did not hold, and the event that shows it."""

    rule: str
    event: Event
    text: str

    def __str__(self) -> str:
        where = f" of {self.event.counter}" if self.event.counter else ""
        return f"{self.rule}{where}, process {self.event.process}, at {self.event.start:.6f}: {self.text}"


def check(history: Iterable[Event]) -> list[Violation]:
    """Return all violations, in the order of time. An empty list: the history is one that may happen."""
    events = sorted(history, key=lambda event: event.start)
    counters: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.counter:
            counters[event.counter].append(event)
    found = [*_waits(events), *_found(events), *_two_slots(events), *_wrong_slots(counters)]
    for counter, own in counters.items():
        if not _may_have_two_holders(events, counter):
            found += [*_two_holders(own), *_lower_numbers(own), *_free_too_soon(own)]
            if _locks_of(counter) not in MAY_NAME_NO_HOLDER:
                found += _wrong_leaders(own)
        found += _no_leader(own)
        if any(event.kind in ("write", "read", "final") for event in own):
            found += _Counter(own).violations()
    return sorted(found, key=lambda violation: violation.event.start)


def _waits(events: Sequence[Event]) -> Iterator[Violation]:
    stops: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind == "stopped":
            stops[event.process].append(event)
    for event in events:
        if event.kind == "hung":
            yield Violation(LONG_WAIT, event, event.text or "the process did not end")
        elif event.allowed is not None and event.end is not None:
            took = event.end - event.start - _stood_still(event.start, event.end, stops[event.process])
            if took > event.allowed:
                text = f"{event.kind} took {took:.2f} s, {event.allowed:.2f} s are allowed"
                yield Violation(LONG_WAIT, event, text)


def _stood_still(start: float, end: float, stops: Iterable[Event]) -> float:
    """Return for how long one stop or more lasted, in the order of their beginnings."""
    stood, until = 0.0, start
    for stop in stops:
        stopped_until = min(end, _end(stop))
        stood += max(0.0, stopped_until - max(until, stop.start))
        until = max(until, stopped_until)
    return stood


def _found(events: Sequence[Event]) -> Iterator[Violation]:
    for event in events:
        if event.kind == "error":
            yield Violation(UNEXPECTED, event, event.text or "an error that nothing explains")
        elif event.kind == "left":
            yield Violation(LOCK_LEFT, event, event.text or "a lock that no process holds is still taken")


def _locks_of(counter: str) -> str:
    """Return the service that has the locks of a counter."""
    return counter.rpartition("/")[2].partition("}")[0]


def _may_have_two_holders(events: Iterable[Event], counter: str) -> bool:
    """Whether a fault befell the locks of a counter under which no lock promises exclusion."""
    locks = _locks_of(counter)
    kinds = {event.text.partition(":")[0].removesuffix(", in vain") for event in events if event.kind == "fault"}
    return any(kind.endswith(f" {locks}") and kind.removesuffix(f" {locks}") not in HARMLESS for kind in kinds)


def _is_grant(event: Event) -> bool:
    return event.kind == "acquire" and event.outcome == "granted"


def _lower_numbers(events: Sequence[Event]) -> Iterator[Violation]:
    """Grants with no higher number than an earlier one whose holder had believed in it before."""
    granted = {event.token: _end(event) for event in filter(_is_grant, events)}
    first: dict[str, Event] = {}
    for event in events:
        if event.kind == "held" and event.token in granted:
            first.setdefault(event.token, event)
    for earlier, later in pairwise(first.values()):
        if later.number <= earlier.number and granted[later.token] > granted[earlier.token]:  # else: two holders
            yield Violation(LOWER_NUMBER, later, f"{later.number} was held after {earlier.number}")


def _free_too_soon(events: Sequence[Event]) -> Iterator[Violation]:
    """Grants while a lock was to stay taken, although its holder had released it."""
    released = {event.token for event in events if event.kind == "release" and event.outcome == "released"}
    for grant in events:
        if not (_is_grant(grant) and grant.at_least and grant.token in released):
            continue
        until = grant.start + grant.at_least
        for event in events:
            if event.kind == "held" and event.token != grant.token and _end(grant) < event.start < until:
                text = f"{event.number} had the lock {until - event.start:.3f} s before {grant.number} was to leave it"
                yield Violation(FREE_TOO_SOON, event, text)
                break


def _two_slots(events: Iterable[Event]) -> Iterator[Violation]:
    """Grants of several resources to the holder of one token."""
    granted: dict[str, Event] = {}
    for event in filter(_is_grant, events):
        first = granted.setdefault(event.token, event)
        if first.counter != event.counter:
            yield Violation(TWO_SLOTS, event, f"its token also has {first.counter}")


def _wrong_slots(counters: Mapping[str, Sequence[Event]]) -> Iterator[Violation]:
    """Grants of resources that the run does not have."""
    if not any(event.kind == "final" for own in counters.values() for event in own):
        return  # it was cut short
    for own in counters.values():
        grant = next(filter(_is_grant, own), None)
        if grant is not None and own[-1].kind != "final":
            yield Violation(WRONG_SLOT, grant, "there is no such slot in this run")


def _no_leader(events: Sequence[Event]) -> Iterator[Violation]:
    for calm in events:
        if calm.kind == "calm" and not any(
            event.kind == "write" and event.outcome == "acknowledged" and _end(event) > calm.start for event in events
        ):
            text = f"nobody wrote as the leader in the {_end(calm) - calm.start:.1f} s after the last fault"
            yield Violation(NO_LEADER, calm, text)


def _wrong_leaders(events: Sequence[Event]) -> Iterator[Violation]:
    """What an observer was told: an older term after a newer one, or another replica than the one that was elected."""
    elected = {event.number: event for event in filter(_is_grant, events)}
    newest: dict[int, int] = defaultdict(int)
    for event in events:
        if event.kind != "seen" or not event.number:
            continue
        if event.number < newest[event.process]:
            yield Violation(WRONG_LEADER, event, f"term {event.number} was told after {newest[event.process]}")
        newest[event.process] = max(newest[event.process], event.number)
        winner = elected.get(event.number)
        if winner is not None and event.text != str(winner.process):
            text = f"{event.text} was told to lead in term {event.number}, which process {winner.process} has"
            yield Violation(WRONG_LEADER, event, text)


def _two_holders(events: Iterable[Event]) -> Iterator[Violation]:
    """Grants whose holders believed in them at the same time."""
    granted, believed = dict[str, Event](), dict[str, float]()
    for event in events:
        if _is_grant(event):
            granted[event.token] = event
        elif event.kind == "held":
            believed[event.token] = event.start
    former, until = "", -math.inf
    for token, event in sorted(granted.items(), key=lambda item: _end(item[1])):
        if _end(event) < until:
            earlier = until - _end(event)
            text = f"{event.number} was granted {earlier:.3f} s before {granted[former].number} was held last"
            yield Violation(TWO_HOLDERS, event, text)
        if believed.get(token, -math.inf) > until:
            former, until = token, believed[token]


class _Latest:
    """The highest of some values that were certain before a moment."""

    def __init__(self, known: Iterable[tuple[float, int, Event]]) -> None:
        self._moments: list[float] = []
        self._highest: list[tuple[int, Event]] = []
        for moment, value, event in sorted(known, key=lambda each: each[0]):
            if not self._highest or value > self._highest[-1][0]:
                self._moments.append(moment)
                self._highest.append((value, event))

    def before(self, moment: float) -> tuple[int, Event] | None:
        index = bisect_left(self._moments, moment)
        return self._highest[index - 1] if index else None


def _takes_back(rewind: Event, event: Event) -> bool:
    """Whether what the event did may be gone after the rewind."""
    return _end(event) > rewind.since and event.start < _end(rewind)


def _end(event: Event) -> float:
    return math.inf if event.end is None else event.end


class _Counter:
    """The events of one counter."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._rewinds = list(self._of("rewound"))
        self._writes = {event.write: event for event in self._of("write")}
        self._final = next(iter(self._of("final")), None)

    def _of(self, kind: str) -> Iterator[Event]:
        return (event for event in self._events if event.kind == kind)

    def violations(self) -> Iterator[Violation]:
        yield from self._late_claims()
        yield from self._late_writes()
        if self._final is None:
            return
        yield from self._broken(self._final)
        yield from self._lost_updates()
        yield from self._survivors()
        yield from self._wrong_answers()
        yield from self._stale_reads()
        yield from self._done_twice()
        yield from self._wrong_once()

    # What may have been forgotten

    def _is_gone(self, event: Event) -> bool:
        """Whether what it did may be gone at the end."""
        return any(_takes_back(rewind, event) for rewind in self._rewinds)

    def _begun_before(self, moment: float) -> int:
        """How many rewinds had begun: the first ones."""
        return sum(rewind.start < moment for rewind in self._rewinds)

    def _known(self, events: Iterable[tuple[int, Event]]) -> list[_Latest]:
        """For each number of rewinds that have begun: the latest that is still certain."""
        acknowledged = [(value, event) for value, event in events if event.end is not None]
        return [
            _Latest(
                (_end(event), value, event)
                for value, event in acknowledged
                if not any(_takes_back(rewind, event) for rewind in self._rewinds[:count])
            )
            for count in range(len(self._rewinds) + 1)
        ]

    # The chain

    @cached_property
    def _chain(self) -> list[Event]:
        """The writes that count, first to last: each has read the one before it."""
        chain: list[Event] = []
        last = self._final.write if self._final else ""
        while last in self._writes and len(chain) <= len(self._writes):
            chain.append(self._writes[last])
            last = chain[-1].before
        return chain[::-1]

    @cached_property
    def _position(self) -> dict[str, int]:
        """Where a write is in the chain; the counter as it was made is before all."""
        return {"": 0, **{event.write: index for index, event in enumerate(self._chain, 1)}}

    @cached_property
    def _effects(self) -> set[str]:
        """The writes that have happened, counting or overwritten."""
        known = self._final.effects if self._final else None
        return set(self._position if known is None else known)

    @cached_property
    def _answers(self) -> dict[str, Event]:
        return {event.write: event for event in self._of("landed") if event.outcome in ("True", "False")}

    def _broken(self, final: Event) -> Iterator[Violation]:
        """What makes the chain itself doubtful."""
        if self._chain:
            first, last = self._chain[0], self._chain[-1].write
        else:
            first, last = final, ""
        if last != final.write:
            yield Violation(BROKEN, final, f"it ends with {final.write!r}, which nobody wrote")
        elif self._chain and first.before:
            yield Violation(BROKEN, first, f"it has read {first.before!r}, which nobody wrote")
        elif final.value != len(self._chain):
            yield Violation(BROKEN, final, f"its value is {final.value} after {len(self._chain)} writes")
        for write in sorted(self._effects - self._writes.keys() - {""}):
            yield Violation(BROKEN, final, f"{write!r} happened, and nobody wrote it")

    def _lost_updates(self) -> Iterator[Violation]:
        for event in self._writes.values():
            if event.write in self._position:
                continue
            if event.outcome == "acknowledged" and not self._is_gone(event):
                yield Violation(LOST_UPDATE, event, f"{event.write!r} was acknowledged, and does not count")
            elif event.write in self._effects:
                yield Violation(LOST_UPDATE, event, f"{event.write!r} happened, and was overwritten")

    def _survivors(self) -> Iterator[Violation]:
        """Writes that count, and have read what a rewind took back."""
        for earlier, later in pairwise(self._chain):
            if earlier.write not in self._effects:
                text = f"{later.write!r} counts, and has read {earlier.write!r}, which a rewind had taken back"
                yield Violation(SURVIVOR, later, text)

    def _wrong_answers(self) -> Iterator[Violation]:
        for event in self._writes.values():
            if event.outcome == "refused" and event.write in self._effects:
                yield Violation(WRONG_REFUSAL, event, f"{event.write!r} was refused, and happened")
        for event in self._of("landed"):
            happened = str(event.write in self._effects)
            if self._is_overtaken(event):
                continue
            if event.outcome in ("True", "False") and event.outcome != happened:
                yield Violation(WRONG_LANDED, event, f"of {event.write!r}: {event.outcome}, and {happened} is right")

    def _is_overtaken(self, answer: Event) -> bool:
        """Whether a rewind changed what had happened, so that the answer could be right when it was given."""
        write = self._writes.get(answer.write)
        if write is None:
            return False
        for rewind in self._rewinds:
            is_near = answer.start < _end(rewind) if answer.outcome == "True" else _end(answer) > rewind.start
            if is_near and _takes_back(rewind, write):
                return True
        return False

    def _is_lost_later(self, reading: Event) -> bool:
        """Whether it saw a write that a rewind took back afterwards."""
        write = self._writes.get(reading.write)
        if write is None or write.outcome == "refused":
            return False
        return any(reading.start < _end(rewind) and _takes_back(rewind, write) for rewind in self._rewinds)

    def _stale_reads(self) -> Iterator[Violation]:
        position = self._position
        acknowledged = self._known(
            (position[event.write], event) for event in self._chain if event.outcome == "acknowledged"
        )
        for event in self._of("read"):
            if event.end is None:
                continue  # it failed, so it saw nothing
            if event.write not in position:
                if event.write not in self._effects and not self._is_lost_later(event):
                    yield Violation(STALE_READ, event, f"it saw {event.write!r}, which never counted")
                continue
            latest = acknowledged[self._begun_before(event.end)].before(event.start)
            if latest is not None and latest[0] > position[event.write]:
                text = f"it saw {event.write!r}, after {latest[1].write!r} had been acknowledged"
                yield Violation(STALE_READ, event, text)
            seen = self._writes.get(event.write)
            if seen is not None and seen.start > event.end:
                yield Violation(STALE_READ, event, f"it saw {event.write!r} before that began")

    # What is done once per key

    def _done_twice(self) -> Iterator[Violation]:
        """Keys whose effect is in the storage more than once. A rewind takes effects and keys back together."""
        done = [event for event in self._writes.values() if event.key and event.write in self._effects]
        counts = Counter(event.key for event in done)
        for key, count in counts.items():
            if count > 1:
                last = max((event for event in done if event.key == key), key=lambda event: event.start)
                yield Violation(DONE_TWICE, last, f"what has the key {key!r} was done {count} times")

    def _wrong_once(self) -> Iterator[Violation]:
        """Refusals of keys that nothing explains."""
        keyed: dict[str, list[Event]] = defaultdict(list)
        for event in self._writes.values():
            if event.key:
                keyed[event.key].append(event)
        pruned = list(self._of("pruned"))
        for event in self._of("once"):
            if event.outcome == "already":
                if not any(
                    write.number == event.value and self._may_have_happened(write, event) for write in keyed[event.key]
                ):
                    text = f"{event.key!r} was told to be done under {event.value}, and nothing had been done"
                    yield Violation(WRONG_DONE, event, text)
            elif event.outcome == "too old" and (reason := self._wrong_floor(event, keyed, pruned)):
                yield Violation(WRONG_TOO_OLD, event, f"{event.key!r} at the floor {event.before!r}: {reason}")

    def _may_have_happened(self, write: Event, before: Event) -> bool:
        """Whether the write may have been in the storage before the event was over."""
        if write.start > _end(before) or write.outcome == "refused":
            return False
        return write.write in self._effects or self._is_lost_later(replace(before, write=write.write))

    def _wrong_floor(self, event: Event, keyed: Mapping[str, Sequence[Event]], pruned: Iterable[Event]) -> str:
        """Return what is wrong with the floor of a TooOld; empty: nothing."""
        floor = event.before
        if event.key.encode() > floor.encode():
            return "the key is above it"
        if not any(self._may_have_happened(write, event) for write in keyed[floor]):
            return "what has that key was never done"
        if any(prune.start < _end(event) and floor.encode() < prune.key.encode() for prune in pruned):
            return ""
        above = sum(
            any(self._may_have_happened(write, event) for write in writes)
            for key, writes in list(keyed.items())
            if key.encode() > floor.encode()
        )
        return "" if above >= FEWEST_KEPT else f"nobody has pruned, and only {above} keys are above it"

    def _late_claims(self) -> Iterator[Violation]:
        claimed = self._claimed
        for event in self._of("claim"):
            newest = claimed[self._begun_before(_end(event))].before(event.start)
            if event.end is not None and newest is not None and newest[0] > event.number:
                yield Violation(LATE_HOLDER, event, f"a claim of {event.number} after one of {newest[0]}")

    @cached_property
    def _claimed(self) -> list[_Latest]:
        return self._known((event.number, event) for event in self._of("claim"))

    def _late_writes(self) -> Iterator[Violation]:
        """Acknowledged, or in the storage, although a newer fence had claimed, or had written."""
        for event in self._writes.values():
            counts = event.outcome == "acknowledged" or (self._final is not None and event.write in self._effects)
            newest = self._claimed[self._begun_before(_end(event))].before(event.start)
            if counts and newest is not None and _is_newer(newest[1], event):
                yield Violation(LATE_HOLDER, event, f"a write of {event.number} after a claim of {newest[0]}")
        for earlier, later in pairwise(self._chain):
            if _is_newer(earlier, later):
                text = f"a write of {later.number} after a write of {earlier.number}"
                yield Violation(LATE_HOLDER, later, text)


def _is_newer(event: Event, than: Event) -> bool:
    """Whether its fence shuts out the other one: a higher number, or the same with another token."""
    if not event.number:  # it has no fence
        return False
    return event.number > than.number or (event.number == than.number and event.token != than.token)

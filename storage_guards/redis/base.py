"""The plans of both Redis guards. Sync and async perform the same ones.

A write is one script. It is accepted if the mark is the fence's own, and its newest write id is the expected one. So of
two writes that expect the same state one is refused, also if one of them arrives late. It also names the history of its
server (the replication id), and is accepted in that one only. So it is known where a write may land whose reply was
lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from fencing.kernel.admission import admit_claim, admit_write, as_fence, sorted_fences
from fencing.kernel.effects import Plan
from fencing.kernel.errors import (
    AlreadyDone,
    GuardUnavailable,
    OutcomeUnknown,
    StaleFence,
    StaleRead,
    TooOld,
    UnclaimedFence,
)
from fencing.kernel.fence import Fence, HasFence, Mark, check_resource
from fencing.kernel.process import OfThisProcess
from fencing.redis.calls import call_without_token
from fencing.redis.keys import slot_of
from fencing.redis.scripts import Script
from storage_guards.bounds import check_timeout, check_unknown, wait_seconds
from storage_guards.continuity import Acknowledged, Continuity, check, new_id
from storage_guards.once import already_done, check_once
from storage_guards.redis.commands import (
    MOST_DONE,
    READS,
    WRITES,
    check_keys,
    done_key,
    encode,
    mark_key,
    packed_command,
)
from storage_guards.redis.replies import State, check_policy, decoded, failed_command, found_under, state_of
from storage_guards.redis.requests import Requests
from storage_guards.redis.scripts import CLAIM, READ, READ_MARKS, SETTLE, WRITE, WRITE_ONCE, checked_script
from storage_guards.sending import Sending

POLICY_SECONDS = 60.0
"""How long the answer about the eviction policy counts. A claim after it asks again."""

MOST_UNSETTLED = 1000
"""How many writes with an unknown outcome a guard remembers. The oldest are forgotten."""

_OWN_WRITE = "this guard object wrote to it meanwhile: inside a block, write with the transaction, not with the guard"

Holder = Fence | HasFence


class _Request(NamedTuple):
    """A write behind the check.

    Args:
        script: of it.
        keys: of the data.
        parts: its arguments.
        once: the key of what it does once. None: it has none.
    """

    script: Script
    keys: list[bytes]
    parts: list[Any]
    once: str | None = None


class RedisBase(OfThisProcess):
    """What both Redis guards share. A subclass has the connections."""

    begin_locks_mark = False
    """A block does not lock the mark: it is refused at its end. So it cannot be the gate of effects elsewhere."""

    def __init__(self, client: Any, *, timeout: float, cluster: bool, address: str) -> None:
        self._timeout = check_timeout(timeout)
        self._cluster, self._requests = cluster, Requests(address)
        self._continuity = Continuity(getattr(client, "connection_pool", client))
        self._decode = bool(client.get_encoder().decode_responses)
        self._policy_until = 0.0
        self._histories: dict[int, str] = {}  # of the server of each slot, as it was found last
        self._unsettled: dict[str, None] = {}  # ids of writes, the oldest first

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._requests.address}, timeout {self._timeout:g} s>"

    # Claims and marks

    def _plan_claim(self, holders: Sequence[Holder], timeout: float | None) -> Plan[dict[Fence, State]]:
        fences = sorted_fences(holders)
        deadline = time.monotonic() + wait_seconds(holders, self._timeout, timeout)
        last = {fence: self._continuity.last(holder, fence) for fence, holder in self._pairs(holders)}
        states: dict[Fence, State] = {}
        groups = self._by_slot(fences)
        if len(groups) > 1:  # no script can claim them all, so at least check them all first
            for fence in fences:
                state, floor = yield from self._plan_found(fence.resource)
                admit_claim(None if state is None else state.mark, fence, floor)
        for group in groups:
            states.update((yield from self._plan_claim_group(group, deadline)))
        for fence, holder in self._pairs(holders):
            state = states[fence]
            check(last[fence], fence, state.mark.seq, state.writes)
            self._continuity.remember(holder, fence, state.mark.seq, state.writes[0])
        return states

    def _by_slot(self, fences: list[Fence]) -> list[list[Fence]]:
        """Return the fences that one script can claim; outside a Cluster that is all of them."""
        groups: dict[int, list[Fence]] = {}
        for fence in fences:
            groups.setdefault(self._slot(fence), []).append(fence)
        return list(groups.values())

    def _slot(self, fence: Fence) -> int:
        return slot_of(fence.resource.encode()) if self._cluster else 0

    def _plan_claim_group(self, fences: list[Fence], deadline: float) -> Plan[dict[Fence, State]]:
        asks = time.monotonic() >= self._policy_until or self._cluster
        args: list[str | int] = [int(asks), new_id()]
        for fence in fences:
            args += (fence.number, fence.token)
        reply = yield from self._plan_ask(CLAIM, fences, args, deadline)
        if reply[0] == b"stale":
            fence = fences[reply[1]]
            state, floor = found_under(fence.resource, reply[2])
            raise StaleFence(fence=fence, mark=state.mark) if state else StaleFence(fence=fence, mark=None, floor=floor)
        if asks:
            check_policy(reply[1], self._requests.address)
            self._policy_until = time.monotonic() + POLICY_SECONDS
        self._note_history(fences[0], reply[2])
        return {fence: self._present(fence, found) for fence, found in zip(fences, reply[3], strict=True)}

    def _plan_mark(self, resource: str) -> Plan[Mark | None]:
        check_resource(resource)
        state, _ = yield from self._plan_found(resource)
        return None if state is None else state.mark

    def _plan_found(self, resource: str) -> Plan[tuple[State | None, int]]:
        deadline = time.monotonic() + self._timeout
        call = call_without_token(READ_MARKS, (mark_key(resource),), ())
        reply = yield from self._requests.plan_repeated(call, resource, deadline)
        return found_under(resource, reply[1])

    def _plan_states(self, fences: list[Fence], deadline: float) -> Plan[dict[Fence, State]]:
        """Read the marks, which must be the fences' own."""
        history, *marks = yield from self._plan_ask(READ_MARKS, fences, [], deadline)
        self._note_history(fences[0], history)
        return {fence: self._present(fence, found) for fence, found in zip(fences, marks, strict=True)}

    def _note_history(self, fence: Fence, history: bytes) -> None:
        self._histories[self._slot(fence)] = history.decode("ascii")

    @staticmethod
    def _present(fence: Fence, found: list[Any]) -> State:
        state = state_of(fence.resource, found)
        admit_write(None if state is None else state.mark, fence)
        if state is None:
            raise UnclaimedFence(fence=fence, mark=None)
        return state

    # Writes

    def _plan_write(self, holders: Sequence[Holder], request: _Request, claim: bool, sending: Sending) -> Plan[Any]:
        """Write as soon as the marks are in a state that is known, again if another write came in between."""
        fences = sorted_fences(holders)
        deadline = time.monotonic() + wait_seconds(holders, self._timeout)
        if claim:
            yield from self._plan_claim(holders, deadline - time.monotonic())
        last = {fence: self._continuity.last(holder, fence) for fence, holder in self._pairs(holders)}
        newest = {fence: known.write_id for fence, known in last.items() if known is not None}
        if len(newest) < len(fences) or self._slot(fences[0]) not in self._histories:
            states = yield from self._plan_states(fences, deadline)
            newest = {
                fence: state.writes[0] for fence, state in states.items()
            } | newest  # what was acknowledged counts
        while True:
            changed = yield from self._plan_send(holders, fences, newest, last, request, deadline, sending)
            if isinstance(changed, Written):
                return changed.value
            fence, state = changed
            newest[fence] = state.writes[0]
            if time.monotonic() >= deadline:
                raise GuardUnavailable(
                    f"others under the same fence of {fence.resource!r} wrote again and again; retry",
                    resource=fence.resource,
                )

    def _plan_commit(
        self, holders: Sequence[Holder], newest: dict[Fence, str], request: _Request, sending: Sending
    ) -> Plan[None]:
        """Write what a block has gathered, if nobody wrote or claimed since the block began."""
        fences = list(newest)
        deadline = time.monotonic() + wait_seconds(holders, self._timeout)
        last = {fence: self._continuity.last(holder, fence) for fence, holder in self._pairs(holders)}
        changed = yield from self._plan_send(holders, fences, newest, last, request, deadline, sending)
        if not isinstance(changed, Written):
            raise self._stale_block(*changed)

    def _plan_send(
        self,
        holders: Sequence[Holder],
        fences: list[Fence],
        newest: dict[Fence, str],
        last: dict[Fence, Acknowledged | None],
        request: _Request,
        deadline: float,
        sending: Sending,
    ) -> Plan[Written | tuple[Fence, State]]:
        """Send a write once. Return its replies, or the fence whose mark is in another state, and that state."""
        id_ = new_id()
        reply = yield from self._plan_ask_to_write(fences, newest, last, request, id_, deadline, sending)
        if reply[0] == b"changed":
            sending.unknown = None
            fence = fences[reply[1]]
            state = self._present(fence, reply[2])
            check(last[fence], fence, state.mark.seq, state.writes)
            if self._settle(state.writes):  # an earlier write, whose reply was lost, came after the reads
                raise StaleRead(resource=fence.resource)
            return fence, state
        if request.once is not None and reply[0] in (b"done", b"too old"):
            sending.unknown = None
            raise self._refused_once(holders[0], request.once, *reply)
        seqs = dict(zip(fences, map(int, reply[1]), strict=True))
        for fence, holder in self._pairs(holders):
            self._continuity.remember(holder, fence, seqs[fence], id_)
        if reply[0] == b"failed":
            sending.unknown = None
            raise failed_command(reply[2], reply[3])
        value = reply[2] if len(reply) > 2 else None
        return Written(decoded(value) if self._decode else value)

    def _plan_ask_to_write(
        self,
        fences: list[Fence],
        newest: dict[Fence, str],
        last: dict[Fence, Acknowledged | None],
        request: _Request,
        id_: str,
        deadline: float,
        sending: Sending,
    ) -> Plan[Any]:
        """Send a write, and again if the server has another history than the write names: then it was not done."""
        script, keys, parts, once = request
        first, known = fences[0], last[fences[0]]
        states: list[str | int] = []
        for fence in fences:
            states += (fence.number, fence.token, newest[fence])
        names: tuple[Any, ...] = (*(mark_key(fence.resource) for fence in fences), *keys)
        if once is not None:
            names = (names[0], done_key(first.resource), *keys)
            parts = [once, MOST_DONE, *parts]
        slot = self._slot(first)
        while True:
            history = self._histories[slot]
            writes = f"{id_} {newest[first]} {history}"
            seq = 1 + (known.seq if known else 0)
            unknown = OutcomeUnknown(fence=first, seq=seq, recent_writes=writes, once=once)
            call = call_without_token(script, names, (len(fences), id_, history, *states, *parts))
            try:
                reply = yield from self._requests.plan_once(call, first.resource, deadline, unknown, sending)
            except BaseException:
                if sending.unknown is not None:
                    self._note_unsettled(id_)
                raise
            if reply[0] != b"elsewhere":
                return reply
            sending.unknown = None
            self._note_history(first, reply[1])
            if time.monotonic() >= deadline:
                raise GuardUnavailable(
                    f"another Redis answers than before; nothing was written to {first.resource!r}; retry",
                    resource=first.resource,
                )

    def _note_unsettled(self, id_: str) -> None:
        """Note a write of which it is unknown whether it has happened."""
        while len(self._unsettled) >= MOST_UNSETTLED:
            self._unsettled.pop(next(iter(self._unsettled), ""), None)
        self._unsettled[id_] = None

    def _settle(self, ids: Sequence[str]) -> bool:
        """Forget these writes: their outcome is known now. Return whether it was unknown of one of them."""
        found = [id_ for id_ in ids if id_ in self._unsettled]
        for id_ in found:
            self._unsettled.pop(id_, None)
        return bool(found)

    def _request_of(self, fences: Sequence[Fence], commands: Sequence[object], once: str | None = None) -> _Request:
        keys: list[bytes] = []
        parts: list[bytes | int] = []
        for command in commands:
            encoded, its_keys = packed_command(command, WRITES)
            keys += its_keys
            parts += (len(encoded), *encoded)
        self._check_keys(fences, keys)
        return _Request(WRITE if once is None else WRITE_ONCE, keys, parts, once)

    def _script_request(
        self, fence: Fence, lua: str, keys: Sequence[Any], args: Sequence[Any], once: str | None
    ) -> _Request:
        if not isinstance(lua, str):
            raise TypeError(f"the Lua is a str, not {type(lua).__name__}")
        if isinstance(keys, (str, bytes)) or isinstance(args, (str, bytes)):
            raise TypeError("keys and args are lists; write keys=[key]")
        names = [encode(key) for key in keys]
        self._check_keys([fence], names)
        script = checked_script(lua, once is not None)
        return _Request(script, names, [encode(argument) for argument in args], once)

    def _check_keys(self, fences: Sequence[Fence], keys: Sequence[bytes]) -> None:
        check_keys((fence.resource for fence in fences), keys, one_slot=self._cluster)

    # Blocks

    def _plan_begin(self, holders: Sequence[Holder], claim: bool, once: str | None) -> Plan[dict[Fence, str]]:
        if once is not None:
            check_once(once, holders)
        fences = sorted_fences(holders)
        self._check_keys(fences, ())
        deadline = time.monotonic() + wait_seconds(holders, self._timeout)
        last = {fence: self._continuity.last(holder, fence) for fence, holder in self._pairs(holders)}
        if claim:
            states = yield from self._plan_claim(holders, deadline - time.monotonic())
        else:
            states = yield from self._plan_states(fences, deadline)
            for fence, state in states.items():
                check(last[fence], fence, state.mark.seq, state.writes)
        newest = {fence: states[fence].writes[0] for fence in fences}
        if once is not None:
            yield from self._plan_inspect(holders[0], newest, once)
        return newest

    def _plan_inspect(self, holder: Holder, newest: dict[Fence, str], once: str) -> Plan[None]:
        """Raise AlreadyDone or TooOld before a block that would be refused at its end."""
        key = done_key(next(iter(newest)).resource)
        before, floor = yield from self._plan_read_of(newest, [b"HMGET", key, once, b""], [key.encode()])
        if before is not None:
            raise self._refused_once(holder, once, b"done", before)
        if floor is not None and once.encode() <= floor:
            raise self._refused_once(holder, once, b"too old", floor)

    @staticmethod
    def _refused_once(holder: Holder, once: str, why: bytes, found: bytes) -> AlreadyDone | TooOld:
        if why == b"too old":
            return TooOld(resource=as_fence(holder).resource, key=once, floor=found.decode())
        number, micros, _ = found.split()
        return already_done(holder, once, int(number), int(micros) / 1e6)

    def _plan_read(self, newest: dict[Fence, str], command: object) -> Plan[Any]:
        """Read on a server whose marks are as the block has found them: a connection may lead to a former primary."""
        parts, keys = packed_command(command, READS)
        self._check_keys(list(newest), keys)
        reply = yield from self._plan_read_of(newest, parts, keys)
        return decoded(reply) if self._decode else reply

    def _plan_read_of(self, newest: dict[Fence, str], parts: Sequence[Any], keys: Sequence[bytes]) -> Plan[Any]:
        fences = list(newest)
        names: tuple[Any, ...] = (*(mark_key(fence.resource) for fence in fences), *keys)
        arguments: list[Any] = [len(fences)]
        for fence in fences:
            arguments += (fence.number, fence.token, newest[fence])
        arguments += parts
        call = call_without_token(READ, names, tuple(arguments))
        reply = yield from self._requests.plan_repeated(call, fences[0].resource, time.monotonic() + self._timeout)
        if reply[0] == b"changed":
            fence = fences[reply[1]]
            raise self._stale_block(fence, self._present(fence, reply[2]))
        if isinstance(reply[1], RedisError):
            raise reply[1]
        return reply[1]

    def _stale_block(self, fence: Fence, state: State) -> StaleRead:
        """Return the error of a block whose mark has another state than at its begin."""
        last = self._continuity.last(fence, fence)
        is_own = last is not None and last.write_id == state.writes[0]
        return StaleRead(resource=fence.resource, hint=_OWN_WRITE if is_own else None)

    # Outcomes

    def _plan_landed(self, error: OutcomeUnknown, timeout: float | None) -> Plan[bool | None]:
        fence, writes = check_unknown(error).fence, error.recent_writes.split()
        if len(writes) < 2:
            return None
        write, expected, history = (*writes, "")[:3]
        deadline = time.monotonic() + wait_seconds((), self._timeout, timeout)
        args: list[str | int] = [fence.number, fence.token, write, expected, history, new_id()]
        reply = yield from self._plan_ask(SETTLE, [fence], args, deadline)
        if reply[0] == b"changed":
            state_of(fence.resource, reply[2])  # which raises
        landed = {b"landed": True, b"never": False}.get(reply[0])
        if landed is None and error.once is not None and (yield from self._plan_done_by(fence, error.once)) == write:
            landed = True
        if landed is not None:
            self._settle([write])
        return landed

    def _plan_done_by(self, fence: Fence, once: str) -> Plan[str | None]:
        """Return the id of the write that has done this. It is there for longer than the mark remembers it."""
        deadline = time.monotonic() + self._timeout
        call = call_without_token(READ, (done_key(fence.resource),), (0, "HGET", done_key(fence.resource), once))
        reply = yield from self._requests.plan_repeated(call, fence.resource, deadline)
        return None if reply[1] is None else str(reply[1].split()[2].decode())

    # Requests

    @staticmethod
    def _pairs(holders: Sequence[Holder]) -> list[tuple[Fence, Holder]]:
        return [(as_fence(holder), holder) for holder in holders]

    def _plan_ask(self, script: Script, fences: list[Fence], args: Sequence[str | int], deadline: float) -> Plan[Any]:
        """Run a script that may be repeated, on the marks."""
        keys = tuple(mark_key(fence.resource) for fence in fences)
        call = call_without_token(script, keys, tuple(args))
        return (yield from self._requests.plan_repeated(call, fences[0].resource, deadline))


class Written(NamedTuple):
    """The replies of a write that was accepted."""

    value: Any

"""All that can happen next in a state: what clients do, what arrives late, what goes wrong, and what that violates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fencing.kernel.effects import Claim
from fencing.kernel.fence import Fence, Mark
from fencing.locks.waiting import Wait
from fencing.redis.calls import Call
from fencing.redis.connection_factory import must_undo
from tests.explorer import believing, clients, faults
from tests.explorer.clients import Answered, Claimed, Local, Lost, NotRun
from tests.explorer.simulated_redis import Entry, Reply, Snapshot, kind_of
from tests.explorer.state import (
    CLAIM_BACK,
    KEYS,
    LOST_UPDATE,
    NAMES,
    REPAIR,
    SAME_FENCE,
    STALE_READ,
    SUPERSEDED,
    VERDICT,
    Hanging,
    Scenario,
    State,
    Step,
    allowed,
    counted,
    with_client,
)
from tests.explorer.storage import (
    Accepted,
    Answer,
    ClaimOperation,
    Conflict,
    Operation,
    Refused,
    Storage,
    WriteOperation,
)
from tests.explorer.waiting import Waiting

__all__ = ["World"]


Done = tuple[Reply, Snapshot, tuple[tuple[bytes, bytes], ...]]
"""What a script did: its reply, what Redis holds now, and what was published."""


class World:
    """The steps of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.programs = scenario.programs
        self.most_refusals = 0
        self.most_excess = -100
        self.waiting = Waiting(scenario)
        self.calls: dict[tuple[Snapshot, Call], Done] = {}
        self.operations: dict[tuple[Storage, Operation], tuple[Storage, Answer]] = {}

        self._start = tuple(
            clients.settled(client, program, Local(phase="force_release" if program.forces else "acquire"))
            for client, program in enumerate(self.programs)
        )
        earlier = [self.programs[:client] for client in range(len(self.programs))]
        self._twin = [
            max((other for other, program in enumerate(before) if program == self.programs[client]), default=None)
            for client, before in enumerate(earlier)
        ]

    def start(self) -> State:
        earlier = self.scenario.earlier
        entries = (Entry(KEYS.counter, b"%d" % earlier, None),) if earlier else ()
        mark = Mark(earlier, "Z" * 22) if earlier else None
        return State(Snapshot(entries, 1_000_000), Storage(mark), self._start, newest=mark)

    def steps(self, state: State) -> Iterator[Step]:
        """All that can happen next."""
        moved = False
        for client in range(len(self.programs)):
            for step in self._client_steps(state, client):
                moved = True
                yield step
        for index, hanging in enumerate(state.hanging):
            moved = True
            yield self._land(state, index, hanging)
        for step in self.waiting.steps(state):
            moved = True
            yield step
        yield from self.waiting.rechecks_early(state)
        yield from self.waiting.pauses(state)
        yield from self._crashes(state)
        yield from faults.redis_faults(self.scenario, state)
        yield from faults.mark_faults(self.scenario, state)
        if not moved and any(local.phase not in ("done", "crashed") for local in state.clients):
            queue = list(self.waiting.time_passes(state))
            yield from queue or faults.time_passes(state)

    # What a client does

    def _client_steps(self, state: State, client: int) -> Iterator[Step]:
        if not self._may_begin(state, client):
            return
        local, name = state.clients[client], NAMES[client]
        effect = clients.effect_of(client, self.programs[client], local)
        if isinstance(effect, Call):
            yield from self._call(state, client, name, effect)
        elif isinstance(effect, Wait):
            yield from self.waiting.gives_up(state, client)
        elif isinstance(effect, Claim):
            yield from self._claim(state, client, name, ClaimOperation(effect.fences[0]))
        elif local.phase == "read":
            yield self._read(state, client, name)
        elif local.phase == "write":
            yield from self._write(state, client, name)
        elif local.phase == "apply":
            yield self._accepted(state, client, name, state.storage, self._write_of(state, client, "unguarded"))

    def _may_begin(self, state: State, client: int) -> bool:
        """Of clients that run the same program and have done nothing yet, the first goes first: they differ by their
        names alone, so whatever another one could begin with, it could too."""
        before = self._twin[client]
        return before is None or state.clients[before] != self._start[before]

    def _call(self, state: State, client: int, name: str, call: Call) -> Iterator[Step]:
        before = state
        state = self.waiting.listens(state, call)
        reply, redis, published = self._redis(state.redis, call)
        answer = partial(self._answer, client=client)
        if allowed(self.scenario, state, "refused"):
            refused = counted(answer(before, answer=NotRun()), "refused")
            yield Step(f"{name}'s {call.script.name} is refused, not run", refused)
        if kind_of(reply) == b"taken" and redis == state.redis:  # it changes nothing: who has been told, waits
            yield from self._cut_off(state, client, name, call)
            if allowed(self.scenario, state, "gave_up") and self.programs[client].timeout < float("inf"):
                given_up = answer(state, answer=Answered(reply, self.programs[client].timeout))
                yield Step(f"{name} gives up", counted(given_up, "gave_up"))
            if allowed(self.scenario, state, "polls"):
                yield Step(f"{name} is told: taken", counted(answer(state, answer=Answered(reply)), "polls"))
            return
        said = _said(name, call, reply)
        if call.script.name == "force_release":
            state = counted(state, "takeovers")
        done, overlap = self._granted(state._replace(redis=redis), client, call, reply)
        done = self.waiting.notified(done, published)
        after = answer(done, answer=Answered(reply))
        violated = self._same_fences(state, after, client) + overlap
        if self.scenario.redis.excludes:
            violated += believing.revived(state, client, call, reply)
            violated += believing.gone(state, client, call, reply)
            violated += believing.shared(after, client) if self.programs[client].both else ()
        yield Step(said, after, violated)
        if allowed(self.scenario, state, "lost"):
            withdrawn = ""
            requests, lost = self._unanswered(call, call.timeout)
            if len(requests) > 1:
                _, undone, notified = self._redis(redis, requests[1])
                done = self.waiting.notified(done._replace(redis=undone), notified)
                withdrawn = " and it is withdrawn"
            after = answer(done, answer=lost)
            yield Step(f"{said}, the reply is lost{withdrawn}", counted(after, "lost"), overlap)
        if allowed(self.scenario, state, "late"):
            requests, lost = self._unanswered(call, call.timeout)
            after = answer(self._hang(before, client, *requests), answer=lost)
            yield Step(f"{name}'s {call.script.name} hangs", counted(after, "late"))
        yield from self._cut_off(state, client, name, call)

    def _cut_off(self, state: State, client: int, name: str, call: Call) -> Iterator[Step]:
        """The connection breaks before a reply: what it was sent lands later, and the client goes on at once."""
        if allowed(self.scenario, state, "kept") and self.scenario.cut_off in ("", call.script.name):
            requests, lost = self._unanswered(call, 0.0)
            behind = ", a release behind it" if len(requests) > 1 else ""
            after = self._answer(self._hang(state, client, *requests), client, answer=lost)
            yield Step(f"{name}'s connection breaks at its {call.script.name}{behind}", counted(after, "kept"))

    def _unanswered(self, call: Call, seconds: float) -> tuple[tuple[Call, ...], Lost]:
        """Return what a client sends if it gets no reply for so long, and what its plan is told."""
        hears = self.scenario.hears
        if call.compensation is None or not must_undo(call, seconds if hears else call.timeout, interrupted=False):
            return (call,), Lost(seconds)
        return (call, call.compensation), Lost(seconds, undone=hears)

    def _granted(
        self, state: State, client: int, call: Call, reply: Reply, named: bytes | None = None
    ) -> tuple[State, tuple[str, ...]]:
        """Note a grant. ``named``: the number that a force was meant for, if the client does not have it any more."""
        if not self.scenario.redis.excludes:
            return state, ()
        if named is None:
            named = believing.meant_for(state.clients[client])
        return believing.granted(state, client, call, reply, named)

    def _claim(self, state: State, client: int, name: str, claim: ClaimOperation) -> Iterator[Step]:
        storage, verdict = self._storage(state.storage, claim)
        answer = partial(self._answer, client=client)
        if isinstance(verdict, Refused):
            after = answer(state, answer=verdict)
            refusals = after.clients[client].rejected
            self.most_refusals = max(self.most_refusals, refusals)
            causes = state.faults.resets + state.faults.expiries + state.faults.takeovers
            self.most_excess = max(self.most_excess, refusals - causes)
            beyond = refusals > causes + len(self.programs) - self.scenario.repair
            yield Step(f"{name}'s claim is refused", after, (REPAIR,) if beyond else ())
            return
        claimed, violated = self._claimed(state, storage, claim.fence)
        after = answer(claimed, answer=Claimed())
        yield Step(f"{name} claims", after, violated + self._same_fences(state, after, client))
        if allowed(self.scenario, state, "lost"):
            after = counted(answer(claimed, answer=Lost(0.0)), "lost")
            yield Step(f"{name} claims, the reply is lost", after, violated)
        if allowed(self.scenario, state, "slow"):
            after = counted(answer(claimed, answer=Claimed(10.0)), "slow")
            yield Step(f"{name} claims, but that outlasts the lease", after, violated)
        if allowed(self.scenario, state, "late"):
            after = counted(answer(self._hang(state, client, claim), answer=Lost(0.0)), "late")
            yield Step(f"{name}'s claim hangs", after)

    def _read(self, state: State, client: int, name: str) -> Step:
        local, value = state.clients[client], state.storage.value
        seq = state.storage.mark.seq if state.storage.mark else 0
        label = f"{name} reads {len(value)}"
        if local.unknown and self._update(client, local) in value:
            done = state._replace(acknowledged=state.acknowledged | {self._update(client, local)})
            return Step(f"{label}: its write has landed", self._wrote(done, client))
        if local.unknown and self.programs[client].reclaims:
            state = state._replace(denied=state.denied | {local.unknown})
        return Step(label, with_client(state, client, local._replace(phase="write", base=value, seq=seq)))

    def _write(self, state: State, client: int, name: str) -> Iterator[Step]:
        program, local = self.programs[client], state.clients[client]
        form = "check" if program.write == "two steps" else program.write
        write = self._write_of(state, client, form)
        storage, verdict = self._storage(state.storage, write)
        if isinstance(verdict, Refused):
            yield Step(f"{name}'s write is refused", self._leave(state, client))
        elif isinstance(verdict, Conflict):
            yield Step(f"{name}'s write is refused: seq", with_client(state, client, _again(local)))
        elif form == "check":
            after = with_client(state._replace(storage=storage), client, local._replace(phase="apply"))
            yield Step(f"{name}'s check is passed", after)
        else:
            accepted = self._accepted(state, client, name, storage, write)
            yield accepted
            if allowed(self.scenario, state, "lost"):
                still = state._replace(storage=accepted.state.storage, newest=accepted.state.newest)
                unknown = self._unknown(still, client)
                lost = [kind for kind in accepted.violated if kind != LOST_UPDATE or self._loses(unknown)]
                yield Step(f"{accepted.label}, the reply is lost", counted(unknown, "lost"), tuple(lost))
        if allowed(self.scenario, state, "late_writes"):
            after = self._unknown(self._hang(state, client, write), client)
            yield Step(f"{name}'s write of {len(local.base) + 1} hangs", counted(after, "late_writes"))

    # What its requests do at the other end

    def _accepted(self, state: State, client: int, name: str, storage: Storage, write: WriteOperation) -> Step:
        """The write is done and acknowledged."""
        if write.form == "unguarded":
            storage, _ = self._storage(state.storage, write)
        violated = self._write_violations(state, write)
        if write.form == "claiming":
            state, more = self._claimed(state, storage, write.fence)
            violated += more
        after = state._replace(storage=storage, acknowledged=state.acknowledged | {write.update})
        if self._loses(after):
            violated += (LOST_UPDATE,)
        return Step(f"{name} writes {len(write.base) + 1}", self._wrote(after, client), violated)

    def _write_violations(self, state: State, write: WriteOperation) -> tuple[str, ...]:
        violated: tuple[str, ...] = ()
        if state.newest is None or not state.newest.is_of(write.fence):
            violated += (SUPERSEDED,)
        if write.base != state.storage.value:
            violated += (STALE_READ,)
        return violated

    def _claimed(self, state: State, storage: Storage, fence: Fence) -> tuple[State, tuple[str, ...]]:
        newest, mark = state.newest, Mark(fence.number, fence.token)
        back = newest is not None and not newest.is_of(fence) and newest.number >= fence.number
        return state._replace(storage=storage, newest=mark), (CLAIM_BACK,) if back else ()

    def _land(self, state: State, index: int, hanging: Hanging) -> Step:
        """A request that hung is executed at last; nobody reads the reply."""
        name, (request, *rest) = NAMES[hanging.client], hanging.requests
        left = list(state.hanging)
        left[index : index + 1] = [hanging._replace(requests=tuple(rest))] if rest else []
        state = state._replace(hanging=tuple(left))
        if isinstance(request, Call):
            reply, redis, published = self._redis(state.redis, request)
            said = _word(reply)
            state, overlap = self._granted(state._replace(redis=redis), hanging.client, request, reply, hanging.named)
            state = self.waiting.notified(state, published)
            return Step(f"{name}'s {request.script.name} lands: {said}", state, overlap)
        storage, verdict = self._storage(state.storage, request)
        if not isinstance(verdict, Accepted):
            return Step(f"{name}'s old request lands and is refused", state)
        if isinstance(request, ClaimOperation):
            after, violated = self._claimed(state, storage, request.fence)
            return Step(f"{name}'s old claim lands", after, violated)
        violated = self._write_violations(state, request)
        if request.fence in state.denied:
            violated += (VERDICT,)
        after = state._replace(storage=storage)
        if self._loses(after):
            violated += (LOST_UPDATE,)
        return Step(f"{name}'s old write of {len(request.base) + 1} lands", after, violated)

    # What goes wrong

    def _crashes(self, state: State) -> Iterator[Step]:
        for kind, word in (("crashes", "crashes"), ("freezes", "freezes")):
            if not allowed(self.scenario, state, kind):
                continue
            for client, local in enumerate(state.clients):
                if local.phase not in ("done", "crashed") and self._may_begin(state, client):
                    gone = with_client(state, client, Local(phase="crashed", rejected=local.rejected))
                    gone = gone._replace(inbox=tuple(each for each in gone.inbox if each[0] != client))
                    gone = believing.without(gone, client)
                    if kind == "crashes":
                        gone = self.waiting.silenced(gone, client)
                    yield Step(f"{NAMES[client]} {word}", counted(gone, kind))

    # Small changes to a state

    def _answer(self, state: State, client: int, answer: clients.Answer) -> State:
        local = clients.answered(client, self.programs[client], state.clients[client], answer)
        after = with_client(state, client, local)
        if local.phase in ("release", "done") and state.clients[client].phase != local.phase:
            after = believing.without(after, client)
        return self.waiting.settled(after, client)

    def _hang(self, state: State, client: int, *requests: Call | Operation) -> State:
        forces = isinstance(requests[0], Call) and requests[0].script.name == "force_release"
        named = believing.meant_for(state.clients[client]) if forces else b""
        return state._replace(hanging=(*state.hanging, Hanging(client, requests, named)))

    def _update(self, client: int, local: Local) -> tuple[int, int]:
        return client, (local.round - 1) * self.programs[client].writes + local.writes

    def _write_of(self, state: State, client: int, form: str) -> WriteOperation:
        local = state.clients[client]
        assert local.fence is not None
        seq = local.seq if self.programs[client].order and form == "guarded" else None
        return WriteOperation(local.fence, self._update(client, local), local.base, seq, form)  # type: ignore[arg-type]

    def _unknown(self, state: State, client: int) -> State:
        """The outcome of its write is unknown: it reads again, once it has reclaimed its lease if it does so."""
        program, local = self.programs[client], state.clients[client]
        after = _again(local, unknown=local.fence)
        if program.reclaims:
            after = clients.settled(client, program, after._replace(phase="reclaim"))
        return with_client(state, client, after)

    def _wrote(self, state: State, client: int) -> State:
        local = state.clients[client]
        if local.writes + 1 < self.programs[client].writes:
            return with_client(state, client, _again(local, writes=local.writes + 1))
        return self._leave(state, client)

    def _leave(self, state: State, client: int) -> State:
        local = state.clients[client]
        after = local._replace(phase="release", base=frozenset(), seq=0, unknown=None, writes=0)
        after = clients.settled(client, self.programs[client], after)
        return believing.without(with_client(state, client, after), client)

    def _loses(self, state: State) -> bool:
        return not state.acknowledged <= state.storage.value

    def _same_fences(self, before: State, after: State, client: int) -> tuple[str, ...]:
        fence = after.clients[client].fence
        if fence is None or before.clients[client].fence is not None:
            return ()
        others = [local.fence for index, local in enumerate(after.clients) if index != client]
        return (SAME_FENCE,) if fence in others else ()

    def _redis(self, snapshot: Snapshot, call: Call) -> Done:
        key = (snapshot, call)
        found = self.calls.get(key)
        if found is None:
            redis = self.scenario.redis(snapshot)
            reply = redis.run(call.script.name, call.keys, call.args)
            found = self.calls[key] = (reply, redis.snapshot(), tuple(redis.published))
        return found

    def _storage(self, storage: Storage, operation: Operation) -> tuple[Storage, Answer]:
        key = (storage, operation)
        found = self.operations.get(key)
        if found is None:
            found = self.operations[key] = self.scenario.backend.run(storage, operation)
        return found


def _again(local: Local, *, unknown: Fence | None = None, writes: int | None = None) -> Local:
    return local._replace(
        phase="read", base=frozenset(), seq=0, unknown=unknown, writes=local.writes if writes is None else writes
    )


def _said(name: str, call: Call, reply: Reply) -> str:
    """A step at Redis in words."""
    number = reply.decode() if isinstance(reply, bytes) and call.script.name != "renew" else ""
    if call.script.name == "acquire":
        return f"{name} acq {number}" if number else f"{name} is {_word(reply)}"
    if call.script.name == "remint" and number:
        return f"{name} remints {number}"
    if call.script.name == "force_release":
        return f"{name} takes the lock away {number}"
    if call.script.name == "release":
        return f"{name} releases" if reply != 0 else f"{name}'s release is too late"
    return f"{name}'s {call.script.name}: {_word(reply) or 'nobody'}"


def _word(reply: Reply) -> str:
    return kind_of(reply).decode() or (reply.decode() if isinstance(reply, bytes) else str(reply))

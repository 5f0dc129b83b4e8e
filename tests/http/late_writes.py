"""A model of holders that write one datum over HTTP. Requests may arrive late, after their sender gave up, or twice.

The service applies the library's own rule (``fencing/kernel/admission.py``), and compares versions if the scenario says
so. The lock grants to anybody at any time, so nothing here relies on it. The search is breadth first, so a violation is
a shortest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from fencing.kernel.admission import admit_claim, admit_write
from fencing.kernel.errors import StaleFence, UnclaimedFence
from fencing.kernel.fence import Fence, Mark

LOST = "an acknowledged update is lost"
VERDICT = "a write that was found not to have happened happens"


@dataclass(frozen=True)
class Scenario:
    """The rules that hold, the faults that happen, and the bounds.

    Args:
        holders: how many holders there are, each with its own fence.
        threads: how many threads the first holder has, which share its lease.
        writes: how many writes each thread wants to have acknowledged.
        unknown: how many answers each thread gives up waiting for.
        repeats: how many requests a proxy delivers twice.
        condition: whether a write has a version as its condition. ``"before"``: asked for before the read, or with it;
            ``"after"``: after the read, which is wrong; None: it has none.
        reclaims: whether a new fence is claimed after an unknown outcome, before the read.
        waits_for_claim: whether the answer to that claim is awaited before the read.
    """

    holders: int = 1
    threads: int = 1
    writes: int = 2
    unknown: int = 1
    repeats: int = 0
    condition: str | None = "before"
    reclaims: bool = True
    waits_for_claim: bool = True


class Request(NamedTuple):
    """A write on its way. ``copies``: how often it can still arrive."""

    thread: int
    update: int
    fence: Fence
    version: int | None
    value: tuple[int, ...]
    copies: int


class Thread(NamedTuple):
    """A thread of a holder: what it does next, and what it knows."""

    holder: int
    phase: str  # claim, read, version, write, wait, done
    fence: Fence | None = None
    value: tuple[int, ...] = ()
    version: int | None = None
    update: int = 0  # of the write that it sends, or whose outcome it does not know; 0: none
    is_unknown: bool = False
    acknowledged: int = 0
    gave_up: int = 0


class State(NamedTuple):
    """All there is."""

    value: tuple[int, ...]
    version: int
    mark: Mark | None
    threads: tuple[Thread, ...]
    network: frozenset[Request]
    claims: frozenset[Fence]  # on their way, where nobody waits for the answer
    acknowledged: frozenset[int]
    denied: frozenset[int]  # updates whose sender has found that they did not happen
    minted: int
    sent: int
    repeats: int


class Step(NamedTuple):
    label: str
    state: State
    violated: str | None = None


def explore(scenario: Scenario, *, watched: tuple[str, ...] = (LOST, VERDICT)) -> tuple[int, str | None, list[str]]:
    """Return how many states there are, and the first violation with its trace."""
    holders = [0] * scenario.threads + list(range(1, scenario.holders))
    threads = tuple(Thread(holder, "claim") for holder in holders)
    nothing: frozenset[Any] = frozenset()
    start = State((), 0, None, threads, nothing, nothing, nothing, nothing, 0, 0, scenario.repeats)
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    level = [start]
    while level:
        following = []
        for state in level:
            for step in _steps(scenario, state):
                if step.violated in watched:
                    return len(came_from), step.violated, [*_trace(came_from, state), step.label]
                if step.state not in came_from:
                    came_from[step.state] = state, step.label
                    following.append(step.state)
        level = following
    return len(came_from), None, []


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    labels: list[str] = []
    while (before := came_from[state]) is not None:
        state, label = before
        labels.append(label)
    return labels[::-1]


def _steps(scenario: Scenario, state: State) -> Iterator[Step]:
    for index, thread in enumerate(state.threads):
        yield from _act(scenario, state, index, thread)
    for request in state.network:
        yield from _arrive(scenario, state, request)
    for fence in state.claims:
        rest = state._replace(claims=state.claims - {fence})
        try:
            yield Step(f"claim {fence.number} arrives", rest._replace(mark=admit_claim(state.mark, fence)))
        except StaleFence:
            yield Step(f"claim {fence.number} is refused", rest)


def _with(state: State, index: int, thread: Thread) -> State:
    return state._replace(threads=(*state.threads[:index], thread, *state.threads[index + 1 :]))


def _act(scenario: Scenario, state: State, index: int, thread: Thread) -> Iterator[Step]:
    name = f"{'ABCD'[thread.holder]}{index if scenario.threads > 1 else ''}"
    match thread.phase:
        case "claim":
            yield from _claim(scenario, state, index, thread, name)
        case "version":  # wrong: asked for after the read
            yield Step(
                f"{name} asks for the version",
                _with(state, index, thread._replace(phase="write", version=state.version)),
            )
        case "read":
            version = state.version if scenario.condition == "before" else None
            after = thread._replace(
                phase="version" if scenario.condition == "after" else "write", value=state.value, version=version
            )
            read = state
            if thread.is_unknown:
                if thread.update in state.value:  # it happened
                    after = _next(scenario, after._replace(update=0, is_unknown=False))
                else:
                    read = state._replace(denied=state.denied | {thread.update})
                    after = after._replace(update=0, is_unknown=False)
            yield Step(f"{name} reads {list(state.value)}", _with(read, index, after))
        case "write":
            update = state.sent + 1
            assert thread.fence is not None
            request = Request(index, update, thread.fence, thread.version, (*thread.value, update), 1)
            sent = state._replace(sent=update, network=state.network | {request})
            yield Step(f"{name} sends {update}", _with(sent, index, thread._replace(phase="wait", update=update)))
        case "wait" if thread.gave_up < scenario.unknown:
            phase = "claim" if scenario.reclaims else "read"
            after = thread._replace(phase=phase, is_unknown=True, gave_up=thread.gave_up + 1)
            yield Step(f"{name} hears nothing", _with(state, index, after))


def _claim(scenario: Scenario, state: State, index: int, thread: Thread, name: str) -> Iterator[Step]:
    number = state.minted + 1
    fence = Fence("r", number, f"{number:022d}")
    if thread.is_unknown and not scenario.waits_for_claim:
        on_its_way = state._replace(minted=number, claims=state.claims | {fence})
        yield Step(f"{name} claims {number}, and does not wait", _share(on_its_way, index, thread, fence))
        return
    # Claim and answer in one step: what comes between them is not the subject here.
    claimed = state._replace(minted=number, mark=admit_claim(state.mark, fence))
    yield Step(f"{name} claims {number}", _share(claimed, index, thread, fence))


def _share(state: State, index: int, thread: Thread, fence: Fence) -> State:
    """Give the fence to all threads of the holder: they share the lease."""
    threads = tuple(
        other._replace(fence=fence, phase="read" if other.phase == "claim" and not other.is_unknown else other.phase)
        if other.holder == thread.holder
        else other
        for other in state.threads
    )
    return _with(state._replace(threads=threads), index, thread._replace(fence=fence, phase="read"))


def _next(scenario: Scenario, thread: Thread) -> Thread:
    done = thread.acknowledged + 1
    return thread._replace(acknowledged=done, phase="done" if done == scenario.writes else "read")


def _arrive(scenario: Scenario, state: State, request: Request) -> Iterator[Step]:
    gone = state._replace(network=state.network - {request})
    if state.repeats and request.copies == 1:
        twice = gone._replace(repeats=state.repeats - 1, network=gone.network | {request._replace(copies=2)})
        yield Step(f"{request.update} is doubled", twice)
    if request.copies > 1:
        gone = gone._replace(network=gone.network | {request._replace(copies=request.copies - 1)})
    thread = state.threads[request.thread]
    is_awaited = thread.phase == "wait" and thread.update == request.update
    try:
        mark = admit_write(state.mark, request.fence)
    except StaleFence:
        refused = thread._replace(phase="done", update=0)  # stop
        yield Step(f"{request.update} is stale", _with(gone, request.thread, refused) if is_awaited else gone)
        return
    except UnclaimedFence:
        return
    if request.version is not None and request.version != state.version:
        again = thread._replace(phase="read", update=0)
        yield Step(
            f"{request.update} meets another version", _with(gone, request.thread, again) if is_awaited else gone
        )
        return
    after = gone._replace(value=request.value, version=state.version + 1, mark=mark)
    if is_awaited:
        after = _with(after, request.thread, _next(scenario, thread._replace(update=0)))
        after = after._replace(acknowledged=after.acknowledged | {request.update})
    violated = None
    if not after.acknowledged <= set(after.value):
        violated = LOST
    elif request.update in state.denied and request.update not in state.value:
        violated = VERDICT
    yield Step(f"{request.update} arrives", after, violated)

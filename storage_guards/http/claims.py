"""Claims and marks over HTTP, without I/O: what a request asks for, and what its answer is.

``POST`` claims the fences of the header. ``GET ?resource=…`` reads a mark. A claim can be repeated, so a client may do
so after a lost reply. Both answers name their version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from fencing.kernel.admission import sorted_fences
from fencing.kernel.effects import Plan
from fencing.kernel.errors import FencingError, GuardUnavailable, OutcomeUnknown
from fencing.kernel.fence import Fence, Mark, check_resource
from storage_guards.http.header import GATE_KEY, SCOPE_KEY, FenceRequired
from storage_guards.http.problems import Problem, answer, problem, problem_of

MAX_QUERY = 4096

VERSION = 1
"""Of both answers. An earlier service names none, and its claims mean the same."""

SAFE_METHODS = ("GET", "HEAD", "OPTIONS", "TRACE")
"""The methods that change nothing (RFC 9110, 9.2.1): a gate lets them pass."""


class ClaimAll(NamedTuple):
    """The effect: claim these fences at the guard, all or none."""

    fences: tuple[Fence, ...]


class ReadMark(NamedTuple):
    """The effect: read the mark of a resource at the guard."""

    resource: str


def check_path(path: object) -> str | None:
    """Return ``path`` if it is a path from the root, or None. Raise TypeError or ValueError otherwise."""
    if path is None:
        return None
    if not isinstance(path, str):
        raise TypeError(f"claims_path must be a str, not {type(path).__name__}")
    if not path.startswith("/"):
        raise ValueError(f"claims_path must begin with '/', not {path[:80]!r}")
    return path


def check_gate(gate: object, guard: object) -> bool:
    """Return ``gate``, if this guard can hold the mark while a handler runs. Raise TypeError otherwise."""
    if not isinstance(gate, bool):
        raise TypeError(f"gate must be True or False, not {type(gate).__name__}")
    if not gate:
        return gate
    name = type(guard).__name__
    if not callable(getattr(guard, "begin", None)) or not getattr(guard, "begin_locks_mark", True):
        raise TypeError(
            f"gate=True needs a guard whose begin() locks the mark, such as SQLAlchemyGuard; {name} has none"
        )
    return gate


def gate_blocks(guard: object, fences: Sequence[Fence]) -> list[tuple[Fence, ...]]:
    """Return the fences of each block of the guard that the gate enters, in this order. Mostly it is one for all.

    Raises:
        FenceRequired: the request has none.
    """
    if not fences:
        raise FenceRequired
    if getattr(guard, "begin_takes_several", True):
        return [tuple(fences)]
    return [(fence,) for fence in sorted_fences(fences)]  # as a claim locks them, so two cannot block each other


@contextmanager
def no_retry(scope_or_environ: Mapping[str, Any]) -> Iterator[None]:
    """Make an error that says "retry" one of an unknown outcome, if the handler behind the gate has begun."""
    try:
        yield
    except GuardUnavailable as error:
        if GATE_KEY not in scope_or_environ:
            raise
        raise OutcomeUnknown(fence=scope_or_environ[SCOPE_KEY][0], seq=0) from error


def plan_answer(method: str, query: str, found: tuple[Fence, ...]) -> Plan[Problem]:
    """Answer a request to the claims path."""
    try:
        if method == "POST":
            if not found:
                raise FenceRequired
            yield ClaimAll(found)
            return answer(200, {"version": VERSION, "claimed": numbers_of(found)})
        if method == "GET":
            resource = _resource_in(query)
            if resource is None:
                return problem(400, "about:blank", "Bad Request", "one parameter is needed: resource", {})
            return answer(200, _content_of(resource, (yield ReadMark(resource))))
    except (FencingError, FenceRequired) as error:
        refused = problem_of(error, {SCOPE_KEY: found})
        if refused is None:
            raise
        return refused
    return problem(405, "about:blank", "Method Not Allowed", "POST claims, GET reads a mark", {"Allow": "GET, POST"})


def numbers_of(found: Iterable[Fence]) -> dict[str, int]:
    """Return the number of each fence, by resource: how a claim is acknowledged."""
    return {fence.resource: fence.number for fence in found}


def _resource_in(query: str) -> str | None:
    try:
        if len(query) > MAX_QUERY:
            return None
        [resource] = parse_qs(query, strict_parsing=True, errors="strict", max_num_fields=1)["resource"]
        return check_resource(resource)
    except (KeyError, ValueError):
        return None


def _content_of(resource: str, mark: Mark | None) -> dict[str, Any]:
    number, seq, readers = (None, None, 0) if mark is None else (mark.number, mark.seq, mark.readers)
    return {"version": VERSION, "resource": resource, "number": number, "seq": seq, "readers": readers}

"""Answers to refused requests, as problem details (RFC 9457), and the errors that a client makes of them.

No answer has a token: it would let its reader pass for the holder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

from fencing.kernel.errors import (
    FencingError,
    GuardNotEnforceable,
    GuardUnavailable,
    MarkImplausible,
    StaleFence,
    UnclaimedFence,
)
from fencing.kernel.fence import MAX_NUMBER, Fence, Mark
from storage_guards.http.header import (
    GATE_KEY,
    HEADER,
    MAX_HEADER,
    MOST_SHOWN,
    SCOPE_KEY,
    FenceRequired,
    SignatureRequired,
)

PROBLEM_JSON = "application/problem+json"

RETRY_AFTER_SECONDS = 1

UNKNOWN_TOKEN = "not-sent-by-the-service"
"""The token of a mark that a service answered. No lock mints it, so such a mark is of no fence."""

REFUSED = (401, 412, 422)
"""The statuses of refusals that a client makes an error of."""

CHALLENGE = "FencingSignature"
"""In ``WWW-Authenticate``, which an answer with status 401 must have (RFC 9110, 15.5.2)."""

_STALE, _UNCLAIMED = "urn:fencing:stale", "urn:fencing:unclaimed"
_UNSIGNED, _IMPLAUSIBLE = "urn:fencing:unsigned", "urn:fencing:implausible"


class Problem(NamedTuple):
    """An answer to send, for any framework.

    Args:
        status: the HTTP status.
        headers: names and values, with the type and the length of the body.
        body: JSON.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def answer(status: int, content: Mapping[str, Any], kind: str = "application/json", **headers: str) -> Problem:
    """Return an answer with a JSON body. No cache may store it."""
    body = json.dumps(content).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Problem(
        status,
        (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store"), *named),
        body,
    )


def problem(status: int, kind: str, title: str, detail: str, headers: Mapping[str, str], **members: Any) -> Problem:
    """Return the answer of a refused request; members that are None are left out."""
    content = {"type": kind, "title": title, "status": status, "detail": detail}
    content.update({name: value for name, value in members.items() if value is not None})
    return answer(status, content, PROBLEM_JSON, **headers)


MALFORMED_TYPE = "urn:fencing:malformed"

MALFORMED = problem(
    400,
    MALFORMED_TYPE,
    "Malformed fencing token",
    f"the header {HEADER} must be a list of fences, each of another resource, of {MAX_HEADER} characters at most; "
    f"signatures are taken only where the middleware has keys (pass keys=[key] to it, or no key to the client), and no "
    f"other parameters; a newer client? upgrade the service",
    {},
)


def problem_of(error: BaseException, scope_or_environ: Mapping[str, Any]) -> Problem | None:
    """Return the answer for an error of a guard; None: it is not about this request, so let it propagate.

    The middlewares call it. Call it yourself where a framework turns exceptions into answers before a middleware sees
    them, as Django and Flask do.

    Args:
        error: what the handler raised.
        scope_or_environ: the ASGI scope, or the WSGI environ. A refused fence that the request did not send is an
            error of the service. Behind a gate, no answer says "retry".
    """
    if isinstance(error, SignatureRequired):
        return problem(
            401,
            _UNSIGNED,
            "Signature required",
            str(error),
            {"WWW_Authenticate": CHALLENGE},
            resource=error.resource,
            path=error.path[:MOST_SHOWN],
        )
    if isinstance(error, FenceRequired):
        return problem(428, "urn:fencing:required", "Fencing token required", str(error), {}, resource=error.resource)
    if isinstance(error, GuardUnavailable) and GATE_KEY not in scope_or_environ:
        return problem(
            503,
            "urn:fencing:unavailable",
            "Storage unavailable",
            "the storage did not answer, or a mark stayed locked; retry",
            {"Retry_After": str(RETRY_AFTER_SECONDS)},
            resource=error.resource,
        )
    sent = scope_or_environ.get(SCOPE_KEY, ())
    if isinstance(error, MarkImplausible) and (error.resource, error.number) in {(f.resource, f.number) for f in sent}:
        return problem(
            422,
            _IMPLAUSIBLE,
            "Implausible number",
            str(error),
            {},
            resource=error.resource,
            number=error.number,
            ceiling=error.ceiling,
        )
    if not isinstance(error, (StaleFence, UnclaimedFence)) or error.fence not in sent:
        return None
    is_stale = isinstance(error, StaleFence)
    return problem(
        412,
        _STALE if is_stale else _UNCLAIMED,
        "Stale fence" if is_stale else "Unclaimed fence",
        str(error),
        {},
        resource=error.fence.resource,
        number=error.fence.number,
        newest=error.mark.newest if error.mark else None,
        floor=getattr(error, "floor", None),
        acknowledged=getattr(error, "acknowledged", None),
    )


def error_of(
    status: int, content_type: str, body: bytes, sent: Iterable[Fence], path: str = "", is_signed: bool = False
) -> FencingError | None:
    """Return the error of an answer by :func:`problem_of`; None: the answer is not of ours, or of no fence sent.

    Args:
        status: the HTTP status.
        content_type: the header of that name.
        body: the body.
        sent: the fences of the request.
        path: of the request, percent-decoded.
        is_signed: whether the fences were signed for that path.
    """
    if status not in REFUSED or content_type.partition(";")[0].strip().lower() != PROBLEM_JSON:
        return None
    content = json_object(body)
    if status == 401:
        return _unsigned(content, path, is_signed) if content.get("type") == _UNSIGNED else None
    for fence in sent:
        if (content.get("resource"), content.get("number")) == (fence.resource, fence.number):
            try:
                return _refusal(content, fence) if status == 412 else _implausible(content, fence)
            except (TypeError, ValueError):
                return None
    return None


def _unsigned(content: Mapping[str, Any], path: str, is_signed: bool) -> GuardNotEnforceable:
    """Return the error of a claim whose signature was not accepted: a fault of the set-up."""
    seen = content.get("path")
    if not is_signed:
        text = "the service takes signed claims only: pass one of its keys as key= of HTTPGuard, fenced or header_of"
    elif isinstance(seen, str) and seen != path[:MOST_SHOWN]:
        text = (
            f"the claim was signed for the path {path[:MOST_SHOWN]!r}, and the service sees {seen[:MOST_SHOWN]!r}: let "
            f"no proxy change the path, or give the server its prefix (root_path, SCRIPT_NAME)"
        )
    else:
        text = (
            "the service does not have the key that signed the claim: give its middleware and this client the same one"
        )
    return GuardNotEnforceable(f"{text}; nothing was claimed")


def _implausible(content: Mapping[str, Any], fence: Fence) -> MarkImplausible | None:
    ceiling = content.get("ceiling")
    if content.get("type") != _IMPLAUSIBLE or type(ceiling) is not int or not 0 <= ceiling < fence.number:
        return None
    return MarkImplausible(resource=fence.resource, number=fence.number, ceiling=ceiling)


def _refusal(content: Mapping[str, Any], fence: Fence) -> FencingError | None:
    newest, floor, acknowledged = content.get("newest"), content.get("floor"), content.get("acknowledged")
    mark = None if newest is None else Mark(newest, UNKNOWN_TOKEN)
    if acknowledged is not None and not _is_number(acknowledged):
        return None
    if content.get("type") == _UNCLAIMED:
        return UnclaimedFence(fence=fence, mark=mark, acknowledged=acknowledged)
    admitted = newest if mark is not None else floor
    if content.get("type") != _STALE or not _is_number(admitted) or admitted < fence.number:
        return None
    return StaleFence(fence=fence, mark=mark, floor=floor if mark is None else None)


def _is_number(value: Any) -> TypeGuard[int]:
    """Return whether a value of JSON is an integer that a mark can have."""
    return type(value) is int and 0 <= value <= MAX_NUMBER


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body; an empty one if there is none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

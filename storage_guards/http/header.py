"""The header ``Fencing-Token``: how fences cross a service boundary.

It is a structured field (RFC 9651): a list of strings, each of them ``str(fence)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fencing.kernel.admission import sorted_fences
from fencing.kernel.fence import Fence, HasFence

HEADER = "Fencing-Token"

MAX_HEADER = 8192
"""The longest value of the header, in characters: what common servers and proxies accept as one line."""

SCOPE_KEY = "fencing.fences"
"""Where the middlewares put the fences of a request: in an ASGI scope, or in a WSGI environ."""

GATE_KEY = "fencing.gate"
"""There from when the handler behind a gate begins. Its effects are elsewhere, so nobody knows what it has done."""

_LIST = re.compile(r' *"[^"\\]*"(?:[ \t]*,[ \t]*"[^"\\]*")* *')
_ITEM = re.compile(r'"([^"]*)"')

Headers = Mapping[Any, Any] | Iterable[tuple[Any, Any]]


class FenceRequired(LookupError):
    """A request without a fence of the resource that it would change. Nothing was written; the client must send it.

    Attributes:
        resource: the resource whose fence is needed; None: any.
    """

    def __init__(self, resource: str | None = None) -> None:
        self.resource = resource
        of_resource = f" of {resource!r}" if resource is not None else ""
        super().__init__(f"the request has no fence{of_resource}: send the holder's in the header {HEADER}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.resource,)


def header_of(*holders: Fence | HasFence) -> str:
    """Return the value of the header ``Fencing-Token`` for these holders::

        client.post(url, headers={"Fencing-Token": header_of(lease)})

    Args:
        holders: leases or fences of different resources.

    Raises:
        LeaseLost: a lease was released or detached here. Stop; acquire again.
        ValueError: the value would have more than 8192 characters. Send fewer fences at once.
    """
    value = ", ".join(f'"{fence}"' for fence in sorted_fences(holders))
    if len(value) > MAX_HEADER:
        raise ValueError(f"the header {HEADER} would have {len(value)} characters, more than {MAX_HEADER}: send fewer")
    return value


def fences(headers: Headers) -> tuple[Fence, ...]:
    """Return the fences in the headers of a request, strictly parsed; an empty tuple if there is no such header.

    They are **not checked**: any client can send any fence. Only the guard, in the transaction that writes, refuses a
    stale one. For a handler, :func:`fence_for` also sees to it that the fence is of the right resource.

    Args:
        headers: a mapping, or pairs of name and value, as str or bytes: the headers of an ASGI scope, of Starlette,
            Django, Flask, httpx2. A header that was sent twice counts as one list, as RFC 9651 says.

    Raises:
        ValueError: the header is longer than 8192 characters, is no list of fences, or has two of one resource. Answer
            with status 400. The message quotes the header, so log it, and do not send it back.
    """
    items: Any = getattr(headers, "items", None)
    pairs: Iterable[tuple[Any, Any]] = items() if callable(items) else headers
    lines = [value for name, value in pairs if len(name) == len(HEADER) and _text(name).lower() == HEADER.lower()]
    if not lines:
        return ()
    if (size := sum(map(len, lines))) > MAX_HEADER:
        raise ValueError(f"the header {HEADER} has {size} characters, more than {MAX_HEADER}")
    value = ", ".join(map(_text, lines))
    if not _LIST.fullmatch(value):
        raise ValueError(f"the header {HEADER} is no list of strings, as RFC 9651 has them: {value[:80]!r}")
    found = tuple(Fence.parse(text) for text in _ITEM.findall(value))
    if len({fence.resource for fence in found}) < len(found):
        raise ValueError(f"the header {HEADER} has two fences of one resource: {value[:80]!r}")
    return found


def fence_for(scope_or_environ: Mapping[str, Any], resource: str) -> Fence:
    """Return the fence that a request carries for this resource, behind one of the middlewares::

        fence = fence_for(request.scope, f"orders:{order_id}")
        with guard.begin(fence) as connection:
            ...

    It does **not check** the fence. The guard does, in the transaction that writes.

    Args:
        scope_or_environ: the ASGI scope, or the WSGI environ.
        resource: what the handler is about to change. The fence of another resource would not protect it.

    Raises:
        FenceRequired: there is no fence of that resource. The middleware answers with status 428.
        RuntimeError: the request did not pass a middleware. Add one to the application.
    """
    found = scope_or_environ.get(SCOPE_KEY)
    if found is None:
        raise RuntimeError(
            f"there is no {SCOPE_KEY!r} here: wrap the application in FencingMiddleware, or its WSGI twin"
        )
    for fence in found:
        if fence.resource == resource:
            return fence  # type: ignore[no-any-return]
    raise FenceRequired(resource)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

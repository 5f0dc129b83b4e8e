"""The header ``Fencing-Token``: how fences cross a service boundary.

It is a structured field (RFC 9651): a list of strings, each of them ``str(fence)``. A string may have one parameter,
``sig``: the signature of a claim, as a byte sequence. A newer version may send other parameters. This one refuses them:
a fence must not be taken for one that means less.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fencing.kernel.admission import sorted_fences
from fencing.kernel.fence import Fence, HasFence
from storage_guards.http.signatures import check_key, sign

HEADER = "Fencing-Token"

MAX_HEADER = 8192
"""The longest value of the header, in characters: what common servers and proxies accept as one line."""

MOST_SHOWN = 200
"""The most characters of a path in a message."""

SCOPE_KEY = "fencing.fences"
"""Where the middlewares put the fences of a request: in an ASGI scope, or in a WSGI environ."""

GATE_KEY = "fencing.gate"
"""There from when the handler behind a gate begins. Its effects are elsewhere, so nobody knows what it has done."""

SIGNED_KEY = "fencing.signed"
"""There where the middleware has keys: which fences of the request are signed, as a :class:`Signed`."""

_ITEM = re.compile(r'"([^"\\]*)"(?:; *sig=:([A-Za-z0-9+/]{43}=):)?')
_LIST = re.compile(rf" *{_ITEM.pattern}(?:[ \t]*,[ \t]*{_ITEM.pattern})* *")

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


class SignatureRequired(FenceRequired):
    """A claim without a signature that this service accepts. Nothing was claimed; the client must sign it.

    Attributes:
        resource: the resource of the claim.
        path: the path for which it must be signed, as this service sees it.
    """

    def __init__(self, resource: str, path: str) -> None:
        self.resource, self.path = resource, path
        LookupError.__init__(
            self,
            f"the claim of {resource!r} has no signature that this service accepts: sign it with a key of the service, "
            f"for the path {path[:MOST_SHOWN]!r}; HTTPGuard and fenced do so with key=",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.resource, self.path)


class Item(NamedTuple):
    """A fence of the header, with its signature in base64; None: it has none."""

    fence: Fence
    signature: str | None


class Signed(NamedTuple):
    """The fences of a request whose signatures are right, and the path for which they are."""

    path: str
    fences: tuple[Fence, ...]


def header_of(*holders: Fence | HasFence, key: bytes | None = None, path: str | None = None) -> str:
    """Return the value of the header ``Fencing-Token`` for these holders::

        client.post(url, headers={"Fencing-Token": header_of(lease)})

    Args:
        holders: leases or fences of different resources.
        key: signs each fence, for a service whose middleware has ``keys``. None: they are not signed.
        path: the path of the request that is signed: of its URL, percent-decoded, without the query.

    Raises:
        LeaseLost: a lease was released or detached here. Stop; acquire again.
        ValueError: the value would have more than 8192 characters. Send fewer fences at once.
        TypeError, ValueError: ``key`` is no key, or has no ``path``.
    """
    if (key is None) != (path is None):
        raise TypeError("a signature is of a key, for one path: pass key= and path= together, or neither")
    found = sorted_fences(holders)
    texts = [f'"{fence}"' for fence in found]
    if key is not None and path is not None:
        check_key(key)
        texts = [f"{text};sig=:{sign(key, fence, path)}:" for text, fence in zip(texts, found, strict=True)]
    value = ", ".join(texts)
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
        ValueError: the header is longer than 8192 characters, is no list of fences, has parameters, or has two fences
            of one resource. Answer with status 400. The message quotes the header, so log it, and do not send it back.
    """
    found = items(headers)
    if any(item.signature is not None for item in found):
        raise ValueError(f"the header {HEADER} has parameters, which only a middleware with keys reads")
    return tuple(item.fence for item in found)


def items(headers: Headers) -> tuple[Item, ...]:
    """Return the fences in the headers of a request, as :func:`fences`, with signatures. Nothing is checked."""
    method: Any = getattr(headers, "items", None)
    pairs: Iterable[tuple[Any, Any]] = method() if callable(method) else headers
    lines = [value for name, value in pairs if len(name) == len(HEADER) and _text(name).lower() == HEADER.lower()]
    if not lines:
        return ()
    if (size := sum(map(len, lines))) > MAX_HEADER:
        raise ValueError(f"the header {HEADER} has {size} characters, more than {MAX_HEADER}")
    value = ", ".join(map(_text, lines))
    if not _LIST.fullmatch(value):
        raise ValueError(
            f"the header {HEADER} is no list of strings, as RFC 9651 has them, or has parameters that this version "
            f"does not know; a newer client? upgrade the service: {value[:80]!r}"
        )
    found = tuple(Item(Fence.parse(text), signature or None) for text, signature in _ITEM.findall(value))
    if len({item.fence.resource for item in found}) < len(found):
        raise ValueError(f"the header {HEADER} has two fences of one resource: {value[:80]!r}")
    return found


def fence_for(scope_or_environ: Mapping[str, Any], resource: str, *, claim: bool = False) -> Fence:
    """Return the fence that a request carries for this resource, behind one of the middlewares::

        fence = fence_for(request.scope, f"orders:{order_id}")
        with guard.begin(fence) as connection:
            ...

    It does **not check** the fence. The guard does, in the transaction that writes.

    Args:
        scope_or_environ: the ASGI scope, or the WSGI environ.
        resource: what the handler is about to change. The fence of another resource would not protect it.
        claim: whether the handler claims the fence itself, as ``begin(fence, claim=True)`` does. Say so: a claim raises
            the mark, so the fence must then be signed where the middleware has ``keys``.

    Raises:
        FenceRequired: there is no fence of that resource. The middleware answers with status 428.
        SignatureRequired: the fence would be claimed, and is not signed. The middleware answers with status 401.
        RuntimeError: the request did not pass a middleware. Add one to the application.
    """
    found = scope_or_environ.get(SCOPE_KEY)
    if found is None:
        raise RuntimeError(
            f"there is no {SCOPE_KEY!r} here: wrap the application in FencingMiddleware, or its WSGI twin"
        )
    for fence in found:
        if fence.resource == resource:
            signed: Signed | None = scope_or_environ.get(SIGNED_KEY)
            if claim and signed is not None and fence not in signed.fences:
                raise SignatureRequired(resource, signed.path)
            return fence  # type: ignore[no-any-return]
    raise FenceRequired(resource)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value

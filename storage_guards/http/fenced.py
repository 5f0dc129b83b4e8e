"""Requests that carry the fence of their holder."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple
from weakref import WeakKeyDictionary

import httpx2

from fencing.kernel.admission import sorted_fences
from fencing.kernel.errors import GuardNotEnforceable
from fencing.kernel.fence import Fence, HasFence
from fencing.kernel.waking import safe_lock
from storage_guards.blocks import block
from storage_guards.http.header import HEADER, header_of, items
from storage_guards.http.problems import REFUSED, error_of
from storage_guards.http.signatures import check_key

Holders = tuple[Fence | HasFence, ...]


class _Sent(NamedTuple):
    """What the requests of a block carry: fences, and signatures of this key."""

    holders: Holders = ()
    key: bytes | None = None


_ORIGIN = "fencing.origin"
"""The extension of a request that has the origin to which the caller sent it: scheme, host and port."""


class _Hooks:
    """The event hooks of one client. They stay, and do nothing outside :func:`fenced`."""

    def add_header(self, request: httpx2.Request) -> None:
        holders, key = self._sent()
        is_own = HEADER not in request.headers or _ORIGIN in request.extensions  # a redirection keeps both
        if not holders or not is_own:  # such as a guard's claim of another fence
            return
        origin = request.extensions.setdefault(_ORIGIN, request.url.origin)
        if origin != request.url.origin:
            shown = request.url.copy_with(username=None, password=None, query=None, fragment=None)
            raise GuardNotEnforceable(
                f"the service redirects to another one, {shown}, which must not get the fence; nothing was sent there; "
                f"send the request to the right address"
            )
        if key is not None:  # also after a redirection, which is to another path
            request.headers[HEADER] = header_of(*holders, key=key, path=request.url.path)
        elif HEADER not in request.headers:
            request.headers[HEADER] = header_of(*holders)

    def raise_refusal(self, response: httpx2.Response) -> None:
        if response.status_code in REFUSED and self._sent().holders:
            response.read()
            _raise_refusal(response)

    async def add_header_async(self, request: httpx2.Request) -> None:
        self.add_header(request)

    async def raise_refusal_async(self, response: httpx2.Response) -> None:
        if response.status_code in REFUSED and self._sent().holders:
            await response.aread()
            _raise_refusal(response)

    def _sent(self) -> _Sent:
        """Return what the innermost block for this client sends; nothing outside a block."""
        return next((sent for hooks, sent in reversed(_blocks.get()) if hooks is self), _Sent())


_blocks: ContextVar[tuple[tuple[_Hooks, _Sent], ...]] = ContextVar("fencing_http_blocks", default=())
_hooks_of: WeakKeyDictionary[httpx2.Client | httpx2.AsyncClient, _Hooks] = WeakKeyDictionary()
_lock = safe_lock()


@block
def fenced(
    client: httpx2.Client | httpx2.AsyncClient, *holders: Fence | HasFence, key: bytes | None = None
) -> Iterator[None]:
    """Send the fences with each request of ``client`` in the block, and raise the refusals of the service::

        with coordinator.hold("orders:42", timeout=5) as lease, fenced(client, lease):
            total = client.get("/orders/42").json()["total"]
            client.put("/orders/42", json={"total": total + 1}).raise_for_status()

    It does **not** make the service check them: its handlers do. An answer of another status, 503 too, is returned.
    After a 503 of the service nothing was written. After a lost reply, or a 500, the request may have been done.

    It works on the requests of this thread or task, and of tasks that it starts. The client may be shared: other
    threads and tasks send no fence, or their own. A request that has the header is left as it is. Of two blocks for
    one client, the inner one alone counts. In async code, write ``with``, not ``async with``.

    Args:
        client: an httpx2 client, sync or async. It keeps two event hooks.
        holders: leases or fences of different resources.
        key: signs each fence for the path of its request. It is needed for handlers that claim by themselves, where the
            service has ``keys``. None: they are not signed.

    Raises:
        StaleFence: the service refused a request, because a newer fence was claimed. Stop.
        UnclaimedFence: this fence was not claimed at the service. Pass ``guards=[HTTPGuard(…)]`` to the lock.
        LeaseLost: a request was sent after the lease was released. Acquire again.
        GuardNotEnforceable: the client follows redirections, and the service redirects to another one. Correct the URL.
            Or the service did not accept a signature. The text says what to change.
        MarkImplausible: the number is too far ahead of the service's clock. Tell an operator.
    """
    if not isinstance(client, (httpx2.Client, httpx2.AsyncClient)):
        raise TypeError(f"a client of httpx2 is needed, not {type(client).__name__}")
    sorted_fences(holders)
    sent = _Sent(holders, None if key is None else check_key(key))
    reset = _blocks.set((*_blocks.get(), (_hooks_on(client), sent)))
    try:
        yield
    finally:
        _blocks.reset(reset)


def _hooks_on(client: httpx2.Client | httpx2.AsyncClient) -> _Hooks:
    """Return the hooks of this client. They are its first ones, so that a ``raise_for_status`` comes after them."""
    with _lock:
        hooks = _hooks_of.get(client)
        if hooks is None:
            hooks = _hooks_of[client] = _Hooks()
        is_async = isinstance(client, httpx2.AsyncClient)
        add = hooks.add_header_async if is_async else hooks.add_header
        check = hooks.raise_refusal_async if is_async else hooks.raise_refusal
        for event, hook in (("request", add), ("response", check)):
            if hook not in client.event_hooks[event]:  # the caller may have replaced them
                client.event_hooks[event].insert(0, hook)
    return hooks


def _raise_refusal(response: httpx2.Response) -> None:
    try:
        sent = items(response.request.headers)
    except ValueError:  # of the caller's own making
        return
    if error := error_of(
        response.status_code,
        response.headers.get("Content-Type", ""),
        response.content,
        [item.fence for item in sent],
        response.request.url.path,
        any(item.signature is not None for item in sent),
    ):
        raise error

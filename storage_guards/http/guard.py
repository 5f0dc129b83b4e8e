# Made from guard_async.py by `make faces`: change that file, not this one.
"""The sync guard of a service: claims go to it over HTTP."""

from __future__ import annotations

import time
from functools import partial

import httpx2

from fencing.kernel.effects import run
from fencing.kernel.errors import OutcomeUnknown
from fencing.kernel.fence import Fence, HasFence, Mark
from fencing.kernel.helping import Helpers, Overdue
from storage_guards.bounds import check_unknown
from storage_guards.http.base import MOST_BYTES, Call, HTTPBase, Reply, check_client, checked, failure_of


class HTTPGuard(HTTPBase):
    """A guard whose marks are in another service, behind a ``FencingMiddleware``. It claims and reads marks there.

    It does **not** write, and checks nothing by itself. The service protects its data only if its handlers write in
    ``guard.begin(fence)``. Send them the fence with each request: see :func:`~storage_guards.fenced`.

        url: the ``claims_path`` of the service, absolute or relative to the client's ``base_url``. It must be the final
        one: redirects are refused. client: an httpx2 client, with your authentication and TLS. You close it. timeout:
        seconds: the longest wait for an answer. A lease that ends earlier shortens it. A lost reply is asked for again
        within it. Give the guard of the service less than half of it. key: 16 random bytes or more, one of the
        service's ``keys``. It signs each claim, for the path of ``url``. None: claims are not signed.

    Raises:
        TypeError: ``client`` is no sync client of httpx2, ``timeout`` is no number, or ``key`` is no bytes.
        ValueError: ``url`` is not of HTTP, ``timeout`` is not finite and above 0, or ``key`` is too short.
    """

    __module__ = "storage_guards"

    #     Each wait has a bound. A helper thread makes each request, in the context (``contextvars``) of the call: no
    #     time-out of httpx2 bounds a reply that comes byte by byte.
    #
    #     Args:

    def __init__(
        self, url: str | httpx2.URL, client: httpx2.Client, *, timeout: float = 10.0, key: bytes | None = None
    ) -> None:
        check_client(client, httpx2.Client, httpx2.AsyncClient, "AsyncHTTPGuard")
        super().__init__(url, client, timeout, key)
        self._client = client
        self._helpers = Helpers("fencing-http")

    def claim(self, *holders: Fence | HasFence, timeout: float | None = None) -> None:
        """Raise the mark of the service to each fence, all or none. A lock with ``guards=[guard]`` calls this.

        It protects what is read at the service **after** it has returned. It may be repeated after an error.

        Args:
            holders: leases or fences of different resources.
            timeout: seconds to wait, at most the guard's own. None: what the leases and the guard allow.

        Raises:
            StaleFence: a newer fence was claimed, and nothing was changed. Stop. The service does not send the token of
                the mark.
            UnclaimedFence: the storage was restored, and has lost what it had acknowledged. Acquire again.
            GuardUnavailable: the service did not answer. Retry; the claim may have happened.
            GuardNotEnforceable: the answer is not of a ``FencingMiddleware``, or the service does not accept the
                signature. The text says what to change.
            MarkImplausible: the number is too far ahead of the service's clock, and nothing was changed. Tell an
                operator.
            ValueError: the fences do not fit the header. Claim fewer at once.
        """
        run(self._plan_claim(holders, timeout), self._perform)

    def mark(self, resource: str) -> Mark | None:
        """Return the newest fence claimed for ``resource``, or None. It is for people and tests: do not base a write on
        it.

        The service does not send the token. The mark has a placeholder, so ``is_of`` is always False.

        Raises:
            GuardUnavailable, GuardNotEnforceable: as :meth:`claim`.
        """
        return run(self._plan_mark(resource), self._perform)

    def landed(self, error: OutcomeUnknown, timeout: float | None = None) -> bool | None:
        """Return None: this guard writes nothing, so the error came from another one.

        Raises:
            TypeError: ``error`` is no OutcomeUnknown. Pass the error that a ``write`` or ``begin`` raised.
        """
        check_unknown(error)
        return None

    def _perform(self, call: Call) -> Reply:
        try:
            return self._helpers.call(partial(self._exchange, call), call.timeout)
        except (httpx2.RequestError, Overdue) as error:
            raise failure_of(error) from error

    def _exchange(self, call: Call) -> Reply:
        deadline = time.monotonic() + call.timeout
        try:
            stream = self._client.stream(
                call.method, call.url, headers=call.headers, timeout=call.timeout, follow_redirects=False
            )
            with stream as response:
                body = b""
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        break
                    if time.monotonic() > deadline:
                        raise httpx2.ReadTimeout("the reply took too long")
                return checked(response.status_code, response.headers.get("Content-Type", ""), body)
        except httpx2.HTTPStatusError as error:  # of an event hook of the client that calls raise_for_status
            return checked(error.response.status_code, "", b"")

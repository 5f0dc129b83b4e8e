"""The middleware of WSGI applications: Django, Flask, Pyramid, Bottle."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

from fencing.kernel.effects import run
from fencing.kernel.errors import FencingError
from fencing.kernel.guard import Guard, check_guards
from storage_guards.http.claims import (
    SAFE_METHODS,
    ClaimAll,
    ReadMark,
    check_gate,
    check_path,
    gate_blocks,
    no_retry,
    plan_answer,
)
from storage_guards.http.header import GATE_KEY, HEADER, SCOPE_KEY, FenceRequired
from storage_guards.http.problems import Problem, problem_of
from storage_guards.http.screening import Screening

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

_VARIABLE = "HTTP_FENCING_TOKEN"


class WSGIFencingMiddleware:
    """A WSGI middleware: it parses fences, answers claims, and turns refusals into answers.

    It does **not check** a fence. A check here, before the handler writes, would be too early: a newer holder can claim
    between them. The handler's own transaction checks: ``with guard.begin(fence_for(request.environ, "orders:42"))``.

    Without ``keys`` it does **not authenticate**: any caller can claim, and so shut out the holders of a resource. Pass
    ``keys``, or let only known callers reach ``claims_path``. A handler that claims by itself must ask for a signed
    fence: ``fence_for(environ, resource, claim=True)``.

    It does the same as :class:`FencingMiddleware`, with ``environ["fencing.fences"]``. An error that the body of a
    response raises while it is sent propagates. Django and Flask answer exceptions with a 500 before a middleware sees
    them: there, call :func:`~storage_guards.http.problem_of` (docs/guards/http.md).

    With ``gate=True`` it checks all fences of a request, and holds their marks locked until the handler has ended, as
    :class:`FencingMiddleware` does, with the same limits.

    Args:
        app: the application.
        guard: the sync guard at which clients claim.
        claims_path: the path of claims, with the prefix of a mounted application. None: no claims are answered.
        gate: whether requests are checked, and their marks locked, while the handler runs. It needs a guard whose
            ``begin`` locks the mark.
        keys: one or two, of 16 random bytes or more. A claim must be signed with one of them (401). Two are for the
            time in which they rotate. None: any caller may claim, and signatures are refused.
        max_ahead: seconds: how far ahead of this clock a number may be (422). None: 2^49 µs, which is 17 years. It can
            only be less. Numbers of some coordinators run days ahead.

    Raises:
        TypeError, ValueError: ``guard`` is no sync guard, or cannot be a gate; or another argument is wrong. The
            text says which.
    """

    __module__ = "storage_guards"

    def __init__(
        self,
        app: App,
        guard: Guard,
        *,
        claims_path: str | None = "/fencing/claims",
        gate: bool = False,
        keys: Iterable[bytes] | None = None,
        max_ahead: float | None = None,
    ) -> None:
        check_guards([guard], asynchronous=False)
        self._app = app
        self._guard: Any = guard
        self._claims_path = check_path(claims_path)
        self._gate = check_gate(gate, guard)
        self._screening = Screening(keys, max_ahead)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request."""
        headers = [(HEADER, environ[_VARIABLE])] if _VARIABLE in environ else []
        path, method = _path_of(environ), environ["REQUEST_METHOD"]
        at_claims = path == self._claims_path
        received = self._screening.received(headers, path, environ, is_claim=at_claims and method == "POST")
        if isinstance(received, Problem):
            return _send(start_response, received)
        if at_claims:
            plan = plan_answer(method, environ.get("QUERY_STRING", ""), received[SCOPE_KEY])
            return _send(start_response, run(plan, self._perform))
        environ.update(received)
        try:
            if self._gate and method not in SAFE_METHODS:
                return self._gated(environ, start_response)
            return self._app(environ, start_response)
        except (FencingError, FenceRequired) as error:
            refused = problem_of(error, environ)
            if refused is None:
                raise
            return _send(start_response, refused, sys.exc_info())  # with it, the server raises if headers were sent

    def _gated(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Run the handler while the marks are locked, and return its answer, which counts if the lock held."""
        started: list[tuple[Any, ...]] = []
        written: list[bytes] = []

        def hold_back(*arguments: Any) -> Callable[[bytes], object]:
            started[:] = [arguments]
            return written.append

        blocks = gate_blocks(self._guard, environ[SCOPE_KEY])
        with no_retry(environ), ExitStack() as stack:
            for some in blocks:
                stack.enter_context(self._guard.begin(*some))
            environ[GATE_KEY] = True
            body = self._app(environ, hold_back)
            try:
                written.extend(body)
            finally:
                close = getattr(body, "close", None)
                if close is not None:
                    close()
        start_response(*started[0])
        return written

    def _perform(self, effect: ClaimAll | ReadMark) -> Any:
        if isinstance(effect, ClaimAll):
            return self._guard.claim(*effect.fences)
        return self._guard.mark(effect.resource)


def _path_of(environ: Environ) -> str:
    """Return the path of the request as ASGI has it: a WSGI server decodes its bytes as Latin-1 (PEP 3333)."""
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return path.encode("latin-1", "replace").decode("utf-8", "replace")


def _send(start_response: StartResponse, answer: Problem, *exc_info: Any) -> list[bytes]:
    start_response(f"{answer.status} {HTTPStatus(answer.status).phrase}", list(answer.headers), *exc_info)
    return [answer.body]

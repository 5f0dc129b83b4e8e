"""The middleware of ASGI applications: Starlette, FastAPI, Quart, Litestar."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any
from weakref import WeakValueDictionary

from fencing.kernel import process
from fencing.kernel.effects import finish, run_async
from fencing.kernel.errors import FencingError, GuardUnavailable
from fencing.kernel.guard import AsyncGuard, Guard, check_guards
from fencing.kernel.workers import PerLoop
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
from storage_guards.http.header import GATE_KEY, SCOPE_KEY, FenceRequired
from storage_guards.http.problems import Problem, problem_of
from storage_guards.http.screening import Screening

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

MOST_THREADS = 32
"""How many claims and questions run at the same time at a sync guard, in threads that nothing else uses."""

TURN_SECONDS = 10.0
"""How long a claim waits for those of the same resource before it. That is also a guard's own bound by default."""


class _Turns:
    """Claims of the same resource, made one after another: they would wait for each other at the storage anyway.

    There they would have all threads, or all connections, and the claims of other resources would wait with them.
    """

    def __init__(self) -> None:
        self._of_loops: PerLoop[WeakValueDictionary[str, asyncio.Lock]] = PerLoop(lambda _: WeakValueDictionary())

    async def wait(self, resources: set[str], stack: AsyncExitStack) -> None:
        """Wait for the turn of each resource. The stack gives them back.

        Raises:
            GuardUnavailable: one did not come in time.
        """
        locks = self._of_loops[asyncio.get_running_loop()]
        try:
            async with asyncio.timeout(TURN_SECONDS):
                for resource in sorted(resources):  # in one order, so that two claims cannot wait for each other
                    turn = locks.get(resource) or locks.setdefault(resource, asyncio.Lock())
                    await stack.enter_async_context(turn)
        except TimeoutError as error:
            text = f"other claims of {resource!r} took more than {TURN_SECONDS:g} s; retry"
            raise GuardUnavailable(text, resource=resource) from error


class FencingMiddleware:
    """An ASGI middleware: it parses fences, answers claims, and turns refusals into answers.

    It does **not check** a fence. A check here, before the handler writes, would be too early: a newer holder can claim
    between them. The handler's own transaction checks: ``with guard.begin(fence_for(request.scope, "orders:42"))``.

    Without ``keys`` it does **not authenticate**: any caller can claim, and so shut out the holders of a resource. Pass
    ``keys``, or let only known callers reach ``claims_path``, with a middleware around this one. A handler that claims
    by itself must ask for a signed fence: ``fence_for(scope, resource, claim=True)``.

    - The fences of a request are in ``scope["fencing.fences"]``. A malformed header is answered with 400, a wrong
      signature with 401, and a number that is far ahead of the clock with 422.
    - A claim at ``claims_path`` is made at the guard.
    - A guard's error that the handler raises becomes a problem (RFC 9457). StaleFence and UnclaimedFence of a fence
      that the request carries: 412. FenceRequired: 428. GuardUnavailable: 503. If the response has begun, and for all
      other errors, the exception propagates.

    With ``gate=True`` it checks all fences of a request, and holds their marks locked until the handler has ended: for
    handlers whose effects are elsewhere, where no transaction can check. Then no newer holder can claim in between.
    That is right **while this process lives**. If it dies, the marks are free, and a call that it has already sent may
    still arrive. A request that is cancelled waits for its handler, which is not cancelled: an effect that it has begun
    would go on. Once the handler has begun, no answer says "retry": a GuardUnavailable becomes an OutcomeUnknown, which
    propagates. Requests without a fence get 428, except GET and other safe ones, which pass unchecked. The answer is
    sent after the marks were released, so its body is in memory. The handler must not use the guard for the same
    resource: it would wait for itself. See docs/guards/http.md.

    In Starlette and FastAPI, add it with ``app.add_middleware(FencingMiddleware, guard=guard)``.

    Args:
        app: the application.
        guard: the guard at which clients claim. A sync one is called in a thread.
        claims_path: the path of claims, with the prefix of a mounted application. None: no claims are answered.
        gate: whether requests are checked, and their marks locked, while the handler runs. It needs an async guard
            whose ``begin`` locks the mark.
        keys: one or two, of 16 random bytes or more. A claim must be signed with one of them (401). Two are for the
            time in which they rotate. None: any caller may claim, and signatures are refused.
        max_ahead: seconds: how far ahead of this clock a number may be (422). None: 2^49 µs, which is 17 years. It can
            only be less. Numbers of some coordinators run days ahead.

    Raises:
        TypeError, ValueError: ``guard`` is no guard, or cannot be a gate; or another argument is wrong. The text says
            which.
    """

    __module__ = "storage_guards"

    def __init__(
        self,
        app: App,
        guard: Guard | AsyncGuard,
        *,
        claims_path: str | None = "/fencing/claims",
        gate: bool = False,
        keys: Iterable[bytes] | None = None,
        max_ahead: float | None = None,
    ) -> None:
        self._is_async = inspect.iscoroutinefunction(getattr(guard, "claim", None))
        check_guards([guard], asynchronous=self._is_async)
        self._app = app
        self._guard: Any = guard
        self._claims_path = check_path(claims_path)
        self._gate = check_gate(gate, guard)
        self._screening = Screening(keys, max_ahead)
        self._turns = _Turns()
        self._reset()
        process.after_fork(self._reset)
        if gate and not self._is_async:
            raise TypeError("gate=True needs an async guard here; or use WSGIFencingMiddleware with a sync one")

    def _reset(self) -> None:
        self._threads = ThreadPoolExecutor(MOST_THREADS, "fencing-claims")  # it starts them when they are needed

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request. A websocket or a lifespan is passed on as it is."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path, method = scope["path"], scope["method"]
        at_claims = path == self._claims_path
        received = self._screening.received(scope["headers"], path, scope, is_claim=at_claims and method == "POST")
        if isinstance(received, Problem):
            return await _send(send, received)
        if at_claims:
            plan = plan_answer(method, scope["query_string"].decode("latin-1"), received[SCOPE_KEY])
            return await _send(send, await run_async(plan, self._perform))
        await self._run({**scope, **received}, receive, send)
        return None

    async def _run(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            if self._gate and scope["method"] not in SAFE_METHODS:
                for message in await self._gated(scope, receive):
                    await noting_send(message)
            else:
                await self._app(scope, receive, noting_send)
        except (FencingError, FenceRequired) as error:
            refused = problem_of(error, scope)
            if started or refused is None:
                raise
            await _send(send, refused)

    async def _gated(self, scope: MutableMapping[str, Any], receive: Receive) -> list[Message]:
        """Run the handler while the marks are locked, and return its messages: the answer counts if the lock held."""
        messages: list[Message] = []

        async def hold_back(message: Message) -> None:
            messages.append(message)

        blocks = gate_blocks(self._guard, scope[SCOPE_KEY])
        with no_retry(scope):
            async with AsyncExitStack() as stack:
                for some in blocks:
                    await stack.enter_async_context(self._guard.begin(*some))
                scope[GATE_KEY] = True
                await finish(
                    self._handle(scope, receive, hold_back)
                )  # its effect must not go on when the marks are free
        return messages

    async def _handle(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _perform(self, effect: ClaimAll | ReadMark) -> Any:
        if not isinstance(effect, ClaimAll):
            return await self._call(self._guard.mark, effect.resource)
        async with AsyncExitStack() as stack:
            await self._turns.wait({fence.resource for fence in effect.fences}, stack)
            # A thread goes on when its request is cancelled. So the next claim waits for it.
            return await finish(self._call(self._guard.claim, *effect.fences))

    async def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        if self._is_async:
            return await call(*arguments)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, context.run, call, *arguments)


async def _send(send: Send, answer: Problem) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})

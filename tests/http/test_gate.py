"""``gate=True``: the marks stay locked while the handler runs. For effects that no transaction of the guard covers."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from fencing import Fence, GuardUnavailable, OutcomeUnknown
from storage_guards import (
    AsyncFileGuard,
    AsyncMemoryGuard,
    FencingMiddleware,
    FileGuard,
    MemoryGuard,
    RedisGuard,
    SQLAlchemyGuard,
    WSGIFencingMiddleware,
)
from storage_guards.http import header_of, problem_of

OLD, MINE, NEWER = (Fence("r", number, letter * 22) for number, letter in ((4, "o"), (5, "a"), (6, "b")))


class Service:
    """A gated application in this process, sync (WSGI) or async (ASGI). Its handler calls ``work``."""

    def __init__(self, asynchronous: bool, guard: Any = None) -> None:
        self.asynchronous = asynchronous
        self.guard: Any = guard or (AsyncMemoryGuard if asynchronous else MemoryGuard)(timeout=0.05)
        self.handled = 0
        self.work: Callable[[], Any] = lambda: None
        self.rivals = [NEWER]
        self.claims: list[str] = []
        self.scope: Any = None
        """Of the last request, as its handler has it."""

    def claim(self, fence: Fence) -> None:
        done = self.guard.claim(fence)
        if self.asynchronous:
            asyncio.run(done)

    async def try_claim(self, fence: Fence) -> None:
        """What a newer holder gets while the handler runs."""
        try:
            done = self.guard.claim(fence)
            if self.asynchronous:
                await done
            self.claims.append("claimed")
        except GuardUnavailable:
            self.claims.append("waits")

    async def try_claims(self) -> None:
        for rival in self.rivals:
            await self.try_claim(rival)

    def ask(self, *fences: Fence, method: str = "POST") -> tuple[int, bytes]:
        return self._ask_asgi(fences, method) if self.asynchronous else self._ask_wsgi(fences, method)

    def _ask_asgi(self, fences: tuple[Fence, ...], method: str) -> tuple[int, bytes]:
        sent: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.handled, self.scope = self.handled + 1, scope
            await self.try_claims()
            self.work()
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"do", "more_body": True})
            await send({"type": "http.response.body", "body": b"ne"})

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"fencing-token", header_of(*fences).encode())] if fences else []
        scope = {"type": "http", "method": method, "path": "/", "query_string": b"", "headers": headers}
        asyncio.run(FencingMiddleware(app, self.guard, gate=True)(scope, None, send))  # type: ignore[arg-type]
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)

    def _ask_wsgi(self, fences: tuple[Fence, ...], method: str) -> tuple[int, bytes]:
        statuses: list[str] = []

        def app(environ: Any, start_response: Any) -> Iterator[bytes]:
            self.handled, self.scope = self.handled + 1, environ
            asyncio.run(self.try_claims())
            self.work()
            start_response("201 Created", [])
            yield b"do"
            yield b"ne"

        environ = {"REQUEST_METHOD": method, "PATH_INFO": "/", "wsgi.input": io.BytesIO()}
        if fences:
            environ["HTTP_FENCING_TOKEN"] = header_of(*fences)
        body = WSGIFencingMiddleware(app, self.guard, gate=True)(
            environ, lambda status, headers, *_: statuses.append(status)
        )
        body = list(body)
        return int(statuses[0][:3]), b"".join(body)


@pytest.fixture(params=[False, True], ids=["wsgi", "asgi"])
def service(request: pytest.FixtureRequest) -> Service:
    return Service(request.param)


def test_no_newer_holder_claims_while_the_handler_runs(service: Service) -> None:
    service.claim(MINE)
    assert service.ask(MINE) == (201, b"done")
    assert service.claims == ["waits"]
    service.claim(NEWER)


def test_a_late_request_does_not_reach_the_handler(service: Service) -> None:
    service.claim(MINE)
    assert service.ask(OLD)[0] == 412
    assert service.ask(NEWER)[0] == 412, "never claimed"
    assert service.ask()[0] == 428
    assert service.handled == 0


def test_safe_methods_pass(service: Service) -> None:
    assert service.ask(method="GET") == (201, b"done")
    assert service.claims == ["claimed"], "nothing is locked"


def test_a_handler_that_fails_frees_the_marks(service: Service) -> None:
    def fail() -> None:
        raise LookupError

    service.work = fail
    service.claim(MINE)
    with pytest.raises(LookupError):
        service.ask(MINE)
    service.claim(NEWER)


@pytest.fixture
def on_files(service: Service, tmp_path: Path) -> Service:
    guard = (AsyncFileGuard if service.asynchronous else FileGuard)(tmp_path, timeout=0.05)
    return Service(service.asynchronous, guard)


def test_no_answer_says_retry_once_the_handler_has_begun(on_files: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its effect has happened. Here the disk has no room for what the guard stores at the end of its block."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    on_files.claim(MINE)
    with monkeypatch.context() as broken:
        on_files.work = lambda: broken.setattr(os, "fsync", full)
        with pytest.raises(OutcomeUnknown) as raised:
            on_files.ask(MINE)
    assert isinstance(raised.value.__cause__, GuardUnavailable)
    assert on_files.handled == 1


def test_an_error_of_the_handler_does_not_say_retry_either(service: Service) -> None:
    """Also where a framework turns it into an answer before the middleware sees it, as Django does."""

    def fail() -> None:
        answers.append(problem_of(error, service.scope))
        raise error

    answers: list[Any] = []
    error, service.work = GuardUnavailable("another storage did not answer; retry"), fail
    service.claim(MINE)
    with pytest.raises(OutcomeUnknown):
        service.ask(MINE)
    assert answers == [None]


def test_a_request_that_found_the_mark_locked_is_retried(on_files: Service) -> None:
    """Its handler has not begun."""
    on_files.claim(MINE)
    with FileGuard(on_files.guard._folder).begin(MINE):
        assert on_files.ask(MINE)[0] == 503
    assert on_files.handled == 0
    assert on_files.ask(MINE) == (201, b"done")


def test_a_gate_of_several_files(on_files: Service) -> None:
    """A block of FileGuard is of one resource, so the gate enters one for each fence."""
    other = Fence("a", 5, "c" * 22)
    on_files.claim(MINE)
    assert on_files.ask(MINE, other)[0] == 412, "never claimed"
    assert on_files.handled == 0
    on_files.claim(other)
    newer = Fence("a", 6, "d" * 22)
    on_files.rivals.append(newer)
    assert on_files.ask(MINE, other) == (201, b"done")
    assert on_files.claims == ["waits", "waits"]
    on_files.claim(newer)


def test_a_cancelled_request_keeps_the_marks_until_its_handler_has_ended() -> None:
    """What the handler has begun goes on after a cancellation: here a thread."""
    guard = AsyncMemoryGuard(timeout=0.05)
    begun, end = threading.Event(), threading.Event()
    effects: list[str] = []

    def effect() -> None:
        begun.set()
        end.wait(10)
        effects.append("done")

    async def app(_: Any, __: Any, send: Any) -> None:
        await asyncio.to_thread(effect)
        await send({"type": "http.response.start", "status": 204, "headers": []})

    async def send(message: Any) -> None:
        effects.append(message["type"])

    async def main() -> None:
        await guard.claim(MINE)
        headers = [(b"fencing-token", header_of(MINE).encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        request = asyncio.ensure_future(FencingMiddleware(app, guard, gate=True)(scope, None, send))  # type: ignore[arg-type]
        await asyncio.to_thread(begun.wait, 10)
        try:
            for _ in range(2):  # also if it is cancelled again
                request.cancel()
                with pytest.raises(GuardUnavailable):
                    await guard.claim(NEWER)
        finally:
            end.set()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert effects == ["done"], "nobody is there to be answered"
        await guard.claim(NEWER)

    asyncio.run(main())


def test_an_answer_counts_only_if_the_lock_held(postgres_url: str) -> None:
    """The database ends the session while the handler runs: a newer holder may have claimed, so it is no success."""
    engine, other = create_engine(postgres_url), create_engine(postgres_url, poolclass=NullPool)
    guard = SQLAlchemyGuard(engine, timeout=5)
    guard.create_tables()
    guard.claim(MINE)
    service = Service(asynchronous=False, guard=guard)
    release = threading.Event()

    def end_session() -> None:
        with other.connect() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND state = 'idle in transaction'"
                )
            )
        release.set()

    async def no_claim(_: Fence) -> None:
        pass

    service.try_claim = no_claim  # type: ignore[method-assign,assignment]
    service.work = end_session
    try:
        status = service.ask(MINE)[0]
    except (OutcomeUnknown, SQLAlchemyError):  # the framework answers it with a 500
        status = 500
    assert status >= 500
    assert service.handled == 1
    assert release.is_set()
    engine.dispose()


def test_guards_that_cannot_be_a_gate() -> None:
    def app(*_: Any) -> Any:
        pass

    with pytest.raises(TypeError, match="locks the mark"):
        WSGIFencingMiddleware(app, RedisGuard(redis.Redis()), gate=True)

    class Claims:
        def claim(self, *_: Any, timeout: float | None = None) -> None: ...
        def mark(self, _: str) -> None: ...

    with pytest.raises(TypeError, match="locks the mark"):
        WSGIFencingMiddleware(app, Claims(), gate=True)
    with pytest.raises(TypeError, match="async guard"):
        FencingMiddleware(app, MemoryGuard(), gate=True)
    with pytest.raises(TypeError, match="True or False"):
        WSGIFencingMiddleware(app, MemoryGuard(), gate="yes")  # type: ignore[arg-type]

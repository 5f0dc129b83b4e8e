"""docs/recipes/fastapi.md: its program runs in real workers, and what the page says of locks and answers is true."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from examples.servers import RedisServer
from fencing import AsyncLease, AsyncMemoryCoordinator, CoordinatorUnavailable, Fence, MemoryCoordinator
from storage_guards import AsyncMemoryGuard, FencingMiddleware
from storage_guards.http import fence_for, header_of
from tests.support import wait_until
from tests.support.web_shop import INSIDE, Server, Shop, add_at_once, shop_of

ROOT = Path(__file__).resolve().parents[2]
SHOP, STREAM, STARLETTE = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/recipes/fastapi.md").read_text("utf-8"), re.DOTALL
)
LOCK = "    async with request.state.coordinator.hold("
GUARDED = "    async with request.state.guard.begin(lease) as connection:"
UVICORN = ("uvicorn", "shop:app", "--log-level", "warning")
UNLOCKED = """
import asyncio

engine = create_async_engine(os.environ["DATABASE_URL"])
both = asyncio.Barrier(2)


@asynccontextmanager
async def unlocked(*_: object, **__: object) -> AsyncIterator[None]:
    yield
"""
ROUTE = """
from starlette.routing import Route

app.router.routes.insert(0, Route("/orders/{order_id:int}/export", Export()))
"""
SERVE = (*UVICORN, "--port={port}")


def changed(program: str, **replacements: str) -> str:
    """Return the program of the page with some of its words replaced."""
    words = {"ttl": 'prefix="shop:")', "timeout": "timeout=2", "guarded": GUARDED, "lines": "for number in range(3)"}
    for name, text in replacements.items():
        assert words[name] in program
        program = program.replace(words[name], text)
    return program


@pytest.fixture
def shop(tmp_path: Path, postgres_url: str, any_redis: RedisServer) -> Iterator[Shop]:
    with shop_of(SHOP, tmp_path, postgres_url, any_redis.url) as made:
        yield made


@pytest.mark.thorough
def test_four_workers_lose_no_update(shop: Shop) -> None:
    shop.write(SHOP + STREAM + STARLETTE + ROUTE.replace("/orders", "/starlette/orders"))
    server = shop.start(*UVICORN, "--workers=4", "--port={port}")
    add_at_once(server, 24)
    assert shop.total() == 24
    for path in ("", "/starlette"):
        assert len(httpx2.get(f"{server.url}{path}/orders/1/export", timeout=60).text.splitlines()) == 3


@pytest.mark.thorough
def test_without_lock_and_guard_one_is_lost(shop: Shop) -> None:
    program = changed(SHOP + UNLOCKED, guarded="    async with engine.begin() as connection:")
    read = '{"id": order_id})).scalar_one() + 1\n'
    assert read in program
    shop.write(program.replace(read, read + "        await both.wait()\n").replace(LOCK, "    async with unlocked("))
    server = shop.start(*SERVE)
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(server.add, [1, 1]))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert shop.total() == 1


@pytest.fixture
def paused(shop: Shop, tmp_path: Path) -> Server:
    """A server whose handler stays before its transaction, as long as the file ``paused`` is there."""
    (tmp_path / "paused").touch()
    program = changed(SHOP, guarded=f"    await inside()\n{GUARDED}", ttl='prefix="shop:", ttl=2)')
    shop.write(f"import asyncio\n{program}\n{INSIDE}")
    return shop.start(*SERVE, PAUSED=str(tmp_path / "paused"))


@pytest.mark.thorough
def test_a_worker_that_was_frozen_is_refused(shop: Shop, paused: Server, tmp_path: Path) -> None:
    second = shop.start(*SERVE)
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(paused.add)
        wait_until(paused.is_inside)
        os.killpg(paused.process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: second.add().status_code == 200)
        finally:
            (tmp_path / "paused").unlink()
            os.killpg(paused.process.pid, signal.SIGCONT)
        assert late.result().status_code == 500
    assert shop.total() == 1
    wait_until(lambda: "fencing.StaleFence" in paused.log())  # the server logs it behind its answer


@pytest.mark.thorough
def test_sigterm_lets_a_request_end_with_its_lock(shop: Shop, paused: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(paused.add)
        wait_until(paused.is_inside)
        paused.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not paused.answers())
        assert shop.coordinator.holder("orders:1") is not None
        (tmp_path / "paused").unlink()
        assert running.result().json() == {"total": 1}
    paused.process.wait(60)
    assert shop.coordinator.holder("orders:1") is None


@pytest.mark.thorough
def test_a_busy_lock(shop: Shop) -> None:
    shop.write(changed(SHOP, timeout="timeout=1"))
    server = shop.start(*SERVE)
    with shop.coordinator.hold("orders:1"):
        answer = server.add()
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.json()["type"] == "urn:fencing:busy"
        assert server.add(2).status_code == 500, "another order, which is not there"
    assert server.add().json() == {"total": 1}


NUMBERS = """
import asyncio

async def numbers() -> AsyncIterator[int]:
    while True:
        yield 1
        await asyncio.sleep(0.01)
"""
STREAMS = {"FastAPI": SHOP + STREAM, "Starlette": SHOP + STREAM + STARLETTE + ROUTE}


@pytest.mark.thorough
@pytest.mark.parametrize("framework", STREAMS)
def test_a_stream_holds_its_lock(shop: Shop, framework: str) -> None:
    """Until the client hangs up. A lost lease breaks the connection off, and a busy lock comes before it."""
    program = changed(
        STREAMS[framework], ttl='prefix="shop:", ttl=2)', timeout="timeout=1", lines="async for number in numbers()"
    )
    shop.write(program + NUMBERS)
    server = shop.start(*SERVE)
    url = f"{server.url}/orders/1/export"
    with httpx2.stream("GET", url, timeout=60) as answer:
        parts = answer.iter_raw()  # kept: its end is the connection's
        next(parts)
        assert shop.coordinator.holder("orders:1") is not None
        assert httpx2.get(url).status_code == server.add().status_code == 503
    wait_until(lambda: shop.coordinator.holder("orders:1") is None)
    with httpx2.stream("GET", url, timeout=60) as answer:
        parts = answer.iter_raw()
        next(parts)
        shop.coordinator.force_release("orders:1")
        with pytest.raises(httpx2.RemoteProtocolError):
            for _ in parts:
                pass


def client_of(app: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://shop")


def test_the_handlers_of_starlette() -> None:
    """They answer a request, and raise what no retry helps."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from fencing.contrib.starlette import exception_handlers

    coordinator = AsyncMemoryCoordinator()
    caught: list[Exception] = []

    async def held(request: Request) -> PlainTextResponse:
        async with coordinator.hold("orders:1", timeout=0):
            return PlainTextResponse("done")

    async def twice(request: Request) -> PlainTextResponse:
        async with coordinator.hold("orders:2"):
            return await held_by_itself()

    async def held_by_itself() -> PlainTextResponse:
        async with coordinator.hold("orders:2", timeout=0):
            return PlainTextResponse("done")

    async def refused(request: Request) -> PlainTextResponse:
        raise CoordinatorUnavailable("a wrong password", refused=True)

    async def note(request: Request, error: Exception) -> PlainTextResponse:
        caught.append(error)
        return PlainTextResponse("", 500)

    app = Starlette(
        routes=[Route(f"/{each.__name__}", each) for each in (held, twice, refused)],
        exception_handlers={**exception_handlers(busy=409, retry_after=3), Exception: note},
    )

    async def main() -> None:
        async with client_of(app) as client:
            assert (await client.get("/held")).text == "done"
            lease = await coordinator.acquire("orders:1")  # not hold: the client calls the handler in this task
            answer = await client.get("/held")
            await lease.release()
            assert (answer.status_code, answer.headers["Retry-After"]) == (409, "3")
            assert [(await client.get(path)).status_code for path in ("/twice", "/refused")] == [500, 500]

    asyncio.run(main())
    assert "pass the lease on" in str(caught[0])
    assert "a wrong password" in str(caught[1])


@pytest.mark.thorough
@pytest.mark.parametrize(("gate", "statuses"), [(False, [409, 412, 428]), (True, [500, 412, 428])])
def test_beside_the_middleware(gate: bool, statuses: list[int]) -> None:
    """Fences are answered for as without the handlers. Behind a gate nothing says "retry"."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from fencing.contrib.starlette import exception_handlers

    guard, coordinator = AsyncMemoryGuard(), AsyncMemoryCoordinator()
    newest, late = Fence("orders:1", 7, "a" * 22), Fence("orders:1", 6, "b" * 22)

    async def write(request: Request) -> PlainTextResponse:
        fence = fence_for(request.scope, "orders:1")
        if not gate:
            async with guard.begin(fence):
                pass
        async with coordinator.hold("printer", timeout=0):
            return PlainTextResponse("written")

    app = Starlette(
        routes=[Route("/", write, methods=["PUT"])],
        middleware=[Middleware(FencingMiddleware, guard=guard, gate=gate)],
        exception_handlers=dict(exception_handlers(busy=409)),
    )

    async def main() -> None:
        await guard.claim(newest)
        lease = await coordinator.acquire("printer")
        async with client_of(app) as client:
            sent = [{"Fencing-Token": header_of(newest)}, {"Fencing-Token": header_of(late)}, {}]
            assert [(await client.put("/", headers=each)).status_code for each in sent] == statuses
        await lease.release()

    asyncio.run(main())


@pytest.mark.thorough
def test_an_error_of_a_websocket_is_raised() -> None:
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket

    from fencing import NotAcquired
    from fencing.contrib.starlette import exception_handlers

    coordinator = AsyncMemoryCoordinator()

    async def edit(websocket: WebSocket) -> None:
        async with coordinator.hold("page", timeout=0):
            raise AssertionError("it was free")

    app = Starlette(routes=[WebSocketRoute("/", edit)], exception_handlers=dict(exception_handlers()))
    scope = {"type": "websocket", "path": "/", "headers": [], "query_string": b"", "subprotocols": []}

    async def main() -> None:
        async def receive() -> Any: ...
        async def send(message: Any) -> None: ...

        lease = await coordinator.acquire("page")
        with pytest.raises(NotAcquired):
            await app(scope, receive, send)
        await lease.release()

    asyncio.run(main())


@pytest.mark.thorough
@pytest.mark.parametrize(("scope", "is_held"), [("function", False), ("request", True), (None, True)])
def test_what_runs_with_the_lock_of_a_dependency(scope: Any, is_held: bool) -> None:
    """A stream and a background task do so in the scope of the request, and not in that of the function."""
    from fastapi import Depends, FastAPI
    from fastapi.responses import Response, StreamingResponse
    from starlette.background import BackgroundTask

    coordinator = AsyncMemoryCoordinator()
    app = FastAPI()
    seen: list[tuple[str, bool]] = []

    async def note(what: str) -> None:
        seen.append((what, await coordinator.holder("orders:1") is not None))

    async def lock(order_id: int) -> AsyncIterator[AsyncLease]:
        async with coordinator.hold(f"orders:{order_id}") as lease:
            yield lease

    @app.get("/{order_id}/stream", dependencies=[Depends(lock, scope=scope)])
    async def stream() -> Any:
        async def lines() -> AsyncIterator[bytes]:
            await note("stream")
            yield b"line"

        await note("handler")
        return StreamingResponse(lines())

    @app.get("/{order_id}/task", dependencies=[Depends(lock, scope=scope)])
    async def task() -> Any:
        return Response(background=BackgroundTask(note, "task"))

    async def main() -> None:
        async with client_of(app) as client:
            for path in ("stream", "task"):
                assert (await client.get(f"/1/{path}")).status_code == 200
        await note("after")

    asyncio.run(main())
    assert seen == [("handler", True), ("stream", is_held), ("task", is_held), ("after", False)]


@pytest.mark.thorough
@pytest.mark.parametrize(("scope", "status"), [("function", 500), ("request", 200)])
def test_who_hears_of_a_lock_that_was_lost(scope: Any, status: int) -> None:
    """The client does if the dependency ends before the answer is sent."""
    from fastapi import Depends, FastAPI

    coordinator = AsyncMemoryCoordinator()
    app = FastAPI()

    async def lock() -> AsyncIterator[AsyncLease]:
        async with coordinator.hold("report") as lease:
            yield lease

    @app.get("/", dependencies=[Depends(lock, scope=scope)])
    async def report() -> None:
        await coordinator.force_release("report")

    async def main() -> None:
        async with client_of(app) as client:
            assert (await client.get("/")).status_code == status

    asyncio.run(main())


@pytest.mark.thorough
def test_a_decorated_handler() -> None:
    """Its lock is named by the converted arguments. A stream is warned of."""
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    coordinator = AsyncMemoryCoordinator()
    app = FastAPI()

    @app.get("/orders/{order_id}")
    @coordinator.locked("orders:{order_id}")
    async def ship(lease: AsyncLease, order_id: int) -> str:
        return lease.fence.resource

    @app.get("/export")
    @coordinator.locked("report")
    async def export() -> Any:
        return StreamingResponse(iter(["line"]))

    async def main() -> None:
        async with client_of(app) as client:
            assert (await client.get("/orders/042")).json() == "orders:42"
            with pytest.warns(
                RuntimeWarning, match="export returned a StreamingResponse, which is read after the lock"
            ):
                assert (await client.get("/export")).text == "line"

    asyncio.run(main())


@pytest.mark.thorough
def test_a_sync_lock_in_a_dependency_takes_the_threads_of_its_holder() -> None:
    from anyio.to_thread import current_default_thread_limiter
    from fastapi import Depends, FastAPI

    from fencing.contrib.starlette import exception_handlers

    coordinator = MemoryCoordinator()
    app = FastAPI(exception_handlers=exception_handlers())

    def lock() -> Iterator[None]:
        with coordinator.hold("report", timeout=1):
            yield

    @app.get("/dependency", dependencies=[Depends(lock, scope="function")])
    def report() -> None: ...

    @app.get("/handler")
    @coordinator.locked("report", timeout=60)
    def report_in_handler() -> None: ...

    async def main() -> None:
        current_default_thread_limiter().total_tokens = 2
        async with client_of(app) as client:
            for path, statuses in (("/dependency", {200, 503}), ("/handler", {200})):
                answers = await asyncio.gather(*(client.get(path) for _ in range(6)))
                assert {answer.status_code for answer in answers} == statuses

    asyncio.run(main())


@pytest.mark.thorough
def test_a_sync_lock_in_an_async_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    from fastapi import FastAPI

    coordinator = MemoryCoordinator()
    app = FastAPI()

    @app.get("/")
    async def wrong() -> None:
        with coordinator.hold("report"):
            pass

    @app.get("/async")
    async def worse() -> None:
        async with coordinator.hold("report"):  # type: ignore[attr-defined]
            pass

    async def main() -> None:
        async with client_of(app) as client:
            await client.get("/")

    lease = coordinator.acquire("report")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(asyncio.run, main())
        wait_until(lambda: "and stops the event loop of its thread: use an asyncio coordinator" in caplog.text)
        lease.release()
        waiting.result()
    with pytest.raises(TypeError, match="this is a sync lock"):
        asyncio.run(worse())

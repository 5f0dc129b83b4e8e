"""docs/recipes/flask.md: its program runs in forked workers of gunicorn, and its answers are those of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.servers import RedisServer
from fencing import CoordinatorUnavailable, Fence, LeaseLost, MemoryCoordinator
from storage_guards import MemoryGuard, WSGIFencingMiddleware
from storage_guards.http import fence_for, header_of
from tests.support.web_shop import Shop, add_at_once, shop_of

ROOT = Path(__file__).resolve().parents[2]
[SHOP] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/recipes/flask.md").read_text("utf-8"), re.DOTALL)

pytestmark = pytest.mark.thorough


@pytest.fixture
def shop(tmp_path: Path, postgres_url: str, any_redis: RedisServer) -> Iterator[Shop]:
    with shop_of(SHOP, tmp_path, postgres_url, any_redis.url) as made:
        yield made


def test_four_workers_that_were_forked_lose_no_update(shop: Shop) -> None:
    """The coordinator and the guard were made, and the guard was used, before the fork."""
    pytest.importorskip("gunicorn")
    server = shop.start("gunicorn", "shop:app", "--preload", "-w4", "--log-level=warning", "-b127.0.0.1:{port}")
    add_at_once(server, 40)
    assert shop.total() == 40


def test_a_busy_lock(shop: Shop) -> None:
    assert "timeout=2" in SHOP
    shop.write(SHOP.replace("timeout=2", "timeout=1"))
    server = shop.start("waitress", "--listen=127.0.0.1:{port}", "shop:app")
    with shop.coordinator.hold("orders:1"):
        answer = server.add()
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert answer.json()["type"] == "urn:fencing:busy"
        assert server.add(2).status_code == 500, "another order, which is not there"
    assert server.add().json() == {"total": 1}


def test_the_answers() -> None:
    from flask import Flask, Response, request

    from fencing.contrib.flask import register_error_handlers

    app = Flask("shop")
    register_error_handlers(app, busy=409, retry_after=3)
    guard, coordinator = MemoryGuard(), MemoryCoordinator()
    newest, late = Fence("orders:1", 7, "a" * 22), Fence("orders:1", 6, "b" * 22)
    errors = {
        "lost": LeaseLost(fence=late, reason="expired"),
        "away": CoordinatorUnavailable("no answer"),
        "refused": CoordinatorUnavailable("a wrong password", refused=True),
    }

    @app.put("/orders/1")
    def write() -> str:
        with guard.begin(fence_for(request.environ, "orders:1"), claim=False):
            return "written"

    @app.get("/report")
    @coordinator.locked("report", timeout=0)
    def report() -> str:
        return "whole"

    @app.get("/twice")
    @coordinator.locked("report")
    def twice() -> str:
        return str(report())

    @app.get("/<kind>")
    @coordinator.locked("report")
    def stream(kind: str) -> Any:
        lines = (line for line in ["streamed"])
        return lines if kind == "generator" else Response(lines)

    @app.get("/raise/<name>")
    def fail(name: str) -> str:
        raise errors[name]

    app.wsgi_app = WSGIFencingMiddleware(app.wsgi_app, guard)  # type: ignore[method-assign]
    guard.claim(newest)
    client = app.test_client()

    def put(*fences: Fence) -> int:
        return client.put("/orders/1", headers={"Fencing-Token": header_of(*fences)} if fences else {}).status_code

    assert [put(newest), put(late), put()] == [200, 412, 428]
    lease = coordinator.acquire("report")
    busy = client.get("/report")
    assert (busy.status_code, busy.headers["Retry-After"], busy.mimetype) == (409, "3", "application/problem+json")
    lease.release()
    assert client.get("/report").text == "whole"
    assert client.get("/twice").status_code == 500, "it waits for itself"
    assert [client.get(f"/raise/{name}").status_code for name in errors] == [500, 503, 500]
    for kind in ("generator", "Response"):
        with pytest.warns(
            RuntimeWarning, match=f"stream returned a {kind}, which is read after the lock has been freed"
        ):
            assert client.get(f"/{kind}").text == "streamed"


def test_async_views_are_refused_where_they_are_written() -> None:
    async def view() -> None: ...

    with pytest.raises(TypeError, match="is async: decorate it with an async coordinator's locked"):
        MemoryCoordinator().locked("report")(view)

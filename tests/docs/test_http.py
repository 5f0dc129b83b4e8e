"""docs/guards/http.md: the services of the page, in processes of their own, and its client refuse a late holder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from fencing import Fence, GuardNotEnforceable, StaleFence
from storage_guards import HTTPGuard, MemoryGuard, WSGIFencingMiddleware, fenced
from tests.support.http_servers import running_python
from tests.support.servers import Proxy

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guards/http.md").read_text("utf-8"), re.DOTALL)
[FASTAPI] = [block for block in BLOCKS if "FastAPI" in block]
[CLIENT] = [block for block in BLOCKS if "httpx2.Client" in block]
[RECLAIM] = [block for block in BLOCKS if "reclaim" in block]
[BY_HAND] = [block for block in BLOCKS if "header_of" in block]
[DJANGO] = [block for block in BLOCKS if "django" in block]
[KEYS] = [block for block in BLOCKS if "keys=" in block]
[KEY] = [block for block in BLOCKS if "key=key" in block]

LISTEN = """
import os, socket, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0))
"""
SERVE_ASGI = """
import asyncio, uvicorn
print(listener.getsockname()[1], flush=True)
asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[listener]))
"""
CONFIGURE_DJANGO = """
import sys
from urllib.parse import urlsplit
import django
from django.conf import settings
from django.urls import path

DATABASE_URL = os.environ["DATABASE_URL"].replace("+psycopg", "")
url = urlsplit(DATABASE_URL)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
            "PASSWORD": url.password or "", "HOST": url.hostname or "", "PORT": url.port or "", "ATOMIC_REQUESTS": True,
        }
    },
    MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware", "__main__.RefusalMiddleware"],
    ROOT_URLCONF="__main__", ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None,
)
"""
SERVE_WSGI = """
import waitress
urlpatterns = [path("orders/<int:order>", order)]
print(listener.getsockname()[1], flush=True)
waitress.serve(application, sockets=[listener])
"""
PROGRAMS = {
    "fastapi": LISTEN + FASTAPI + SERVE_ASGI,
    "django": LISTEN + CONFIGURE_DJANGO + DJANGO + SERVE_WSGI,
}


@pytest.fixture(params=PROGRAMS)
def url(request: pytest.FixtureRequest, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int, version int DEFAULT 1)"))
        connection.execute(text("INSERT INTO orders (id, total) VALUES (42, 0)"))
    engine.dispose()
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    with ExitStack() as stack:
        _, port = stack.enter_context(running_python(["-c", PROGRAMS[request.param]]))
        yield f"http://127.0.0.1:{port}"


def test_signed_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_CLAIMS_KEY", "0f" * 32)
    storage, mine = MemoryGuard(), Fence("orders:42", 5, "a" * 22)
    names: dict[str, Any] = {
        "os": os,
        "guard": storage,
        "application": None,
        "WSGIFencingMiddleware": WSGIFencingMiddleware,
        "HTTPGuard": HTTPGuard,
    }
    exec(KEYS, names)
    transport = httpx2.WSGITransport(names["application"])
    with httpx2.Client(transport=transport, base_url="http://shop.internal") as names["client"]:
        with pytest.raises(GuardNotEnforceable):
            HTTPGuard("/fencing/claims", names["client"]).claim(mine)
        exec(KEY, names)
        names["guard"].claim(mine)
    mark = storage.mark("orders:42")
    assert mark is not None
    assert mark.is_of(mine)


@pytest.mark.thorough
def test_the_services_and_the_client(url: str, any_redis: RedisServer) -> None:
    program = CLIENT.replace("http://shop.internal", url).replace(
        "redis.Redis()", f"redis.Redis.from_url({any_redis.url!r})"
    )
    names: dict[str, Any] = {}
    for _ in range(2):
        exec(program + BY_HAND, names)
        names["client"].close()
        names["coordinator"].close()
    late: Fence = names["lease"].fence
    assert names["headers"] == {"Fencing-Token": f'"{late}"'}
    with httpx2.Client(base_url=url) as client:
        assert client.get("/orders/42").json() == {"total": 2}
        HTTPGuard("/fencing/claims", client).claim(Fence("orders:42", late.number + 1, "a" * 22))
        with pytest.raises(StaleFence), fenced(client, late):
            client.put("/orders/42", json={"total": 100}, headers={"If-Match": '"3"'})
        for headers, status in (({}, 428), ({"Fencing-Token": "?"}, 400), ({"Fencing-Token": f'"{late}"'}, 412)):
            refused = client.put("/orders/42", json={"total": 100}, headers={"If-Match": '"3"', **headers})
            assert refused.status_code == status
            assert refused.json()["type"].startswith("urn:fencing:")
        assert client.get("/orders/42").json() == {"total": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("is_carried_out", [True, False], ids=["its reply is lost", "it arrives late"])
def test_a_write_without_an_answer(url: str, any_redis: RedisServer, is_carried_out: bool) -> None:
    """The reply is lost, or the request itself arrives after the reclaim."""
    with Proxy("127.0.0.1", int(url.rpartition(":")[2])) as proxy:
        program = CLIENT.replace("http://shop.internal", f"http://{proxy.host}:{proxy.port}").replace(
            "redis.Redis()", f"redis.Redis.from_url({any_redis.url!r})"
        )
        names: dict[str, Any] = {}
        exec(program + RECLAIM, names)
        is_whole = re.compile(rb'"total": ?6').search
        if is_carried_out:
            loss = proxy.drop_reply_when(lambda request: bool(is_whole(request)))
        else:
            loss = proxy.stall_connection_when(
                lambda request: b"PUT" in request, cut_when=lambda sent: bool(is_whole(sent))
            )
        with names["coordinator"].hold("orders:42", timeout=5) as lease:
            fresh = names["add"](lease, 5)
            assert fresh.held
            assert fresh is not lease
        assert loss.fired == 1
        if not is_carried_out:
            loss.deliver()
        assert names["client"].get("/orders/42").json() == {"total": 6}
        names["client"].close()
        names["coordinator"].close()

"""A guarded service as a process of its own: it keeps numbers in SQLite, and serves them over HTTP.

It prints its port, and ends when its standard input does. Arguments: the kind of server, and the SQLite file. The kinds
are uvicorn, waitress and wsgiref; "checking" is uvicorn with the wrong middleware.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

import uvicorn
import waitress
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import Fence, OutcomeUnknown, StaleFence
from storage_guards import AsyncSQLAlchemyGuard, FencingMiddleware, SQLAlchemyGuard, WSGIFencingMiddleware
from storage_guards.http import fence_for

CREATE = text(
    "CREATE TABLE IF NOT EXISTS data "
    "(name TEXT PRIMARY KEY, value INTEGER NOT NULL, version INTEGER NOT NULL DEFAULT 1)"
)
READ = text("SELECT value, version FROM data WHERE name = :name")
WRITE = text(
    "INSERT INTO data (name, value) VALUES (:name, :value) ON CONFLICT (name) "
    "DO UPDATE SET value = :value, version = version + 1 WHERE :version IS NULL OR version = :version"
)
ANOTHER = Fence("another", 1, "a" * 22)
PATIENCE = 0.5
"""How long the guard waits for another writer, in seconds."""


def fail(how: str, fence: Fence) -> None:
    """Raise what a handler may raise."""
    if how == "stale":  # of a fence that the request did not send
        raise StaleFence(fence=ANOTHER, mark=None, floor=5)
    if how == "unknown":
        raise OutcomeUnknown(fence=fence, seq=1)


def version_in(condition: str | None) -> int | None:
    """Return the version that a write has as its condition (If-Match); None: it has none."""
    return None if condition is None else int(condition.strip('"'))


def wsgi_app(path: str) -> Any:
    engine = create_engine(f"sqlite:///{path}")
    guard = SQLAlchemyGuard(engine, timeout=PATIENCE)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"], keep_blank_values=True).items()}
        name, status, version = query["resource"], "200 OK", 0
        if environ["REQUEST_METHOD"] == "GET":
            with engine.connect() as connection:
                value, version = connection.execute(READ, {"name": name}).one_or_none() or (0, 0)
            body = b"%d" % value
        else:
            length = int(environ.get("CONTENT_LENGTH") or 0)
            value = int(environ["wsgi.input"].read(length))
            fence = fence_for(environ, name)
            fail(query.get("fail", ""), fence)
            values = {"name": name, "value": value, "version": version_in(environ.get("HTTP_IF_MATCH"))}
            with engine.begin() if "unchecked" in query else guard.begin(fence) as connection:
                is_written = connection.execute(WRITE, values).rowcount
            status, body = ("200 OK", b"written") if is_written else ("412 Precondition Failed", b"changed")
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("ETag", f'"{version}"')]
        start_response(status, headers)
        return [body]

    return WSGIFencingMiddleware(app, guard)


class CheckingMiddleware:
    """The obvious middleware, which is wrong: it checks, and then lets the handler write."""

    def __init__(self, app: Any, guard: AsyncSQLAlchemyGuard) -> None:
        self.app, self.guard = app, guard

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "PUT":
            [fence] = scope["fencing.fences"]
            mark = await self.guard.mark(fence.resource)
            if mark is None or not mark.is_of(fence):
                raise StaleFence(fence=fence, mark=mark)
            print("checked", flush=True)
        await self.app(scope, receive, send)


def asgi_app(path: str, checks_first: bool = False) -> Any:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    guard = AsyncSQLAlchemyGuard(engine, timeout=PATIENCE)

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            return
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        name, status, version = query["resource"], 200, 0
        if scope["method"] == "GET":
            async with engine.connect() as connection:
                value, version = (await connection.execute(READ, {"name": name})).one_or_none() or (0, 0)
            body = b"%d" % value
        else:
            if name == "r" and not checks_first:  # the resource of test_trace.py
                print("receiving", flush=True)
            value = int(await received(receive))
            condition = dict(scope["headers"]).get(b"if-match", b"").decode() or None
            values = {"name": name, "value": value, "version": version_in(condition)}
            if checks_first:
                async with engine.begin() as connection:
                    is_written = (await connection.execute(WRITE, values)).rowcount
            else:
                fence = fence_for(scope, name)
                fail(query.get("fail", ""), fence)
                async with guard.begin(fence) as connection:
                    is_written = (await connection.execute(WRITE, values)).rowcount
            status, body = (200, b"written") if is_written else (412, b"changed")
        headers = [(b"content-type", b"text/plain"), (b"etag", b'"%d"' % version)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    inner = CheckingMiddleware(app, guard) if checks_first else app
    return FencingMiddleware(inner, guard)


async def received(receive: Callable[[], Awaitable[Any]]) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def prepare(path: str) -> None:
    engine = create_engine(f"sqlite:///{path}")
    SQLAlchemyGuard(engine).create_tables()
    with engine.begin() as connection:
        connection.execute(CREATE)
    engine.dispose()


def main(kind: str, path: str) -> None:
    prepare(path)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # so asyncio sets TCP_NODELAY
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    if kind == "wsgiref":
        listener.close()
        with make_server("127.0.0.1", 0, wsgi_app(path), handler_class=Quiet) as server:
            print(server.server_port, flush=True)
            server.serve_forever()
    elif kind == "waitress":
        print(port, flush=True)
        waitress.serve(wsgi_app(path), sockets=[listener])
    else:
        print(port, flush=True)
        config = uvicorn.Config(asgi_app(path, kind == "checking"), log_level="critical", lifespan="off")
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main(*sys.argv[1:])

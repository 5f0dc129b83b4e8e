"""HTTP services in processes of their own, for tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import httpx2
from sqlalchemy import create_engine, text

from fencing import AsyncMemoryCoordinator, Mark, MemoryCoordinator
from fencing.testing import Contract
from storage_guards import (
    AsyncHTTPGuard,
    AsyncMemoryGuard,
    FencingMiddleware,
    HTTPGuard,
    MemoryGuard,
    SQLAlchemyGuard,
    WSGIFencingMiddleware,
)

ROOT = Path(__file__).resolve().parents[2]


class Service:
    """A running guarded service, and its SQLite file."""

    def __init__(self, kind: str, path: Path, process: subprocess.Popen[str], port: int) -> None:
        self.kind = kind
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.claims_url = f"{self.url}/fencing/claims"
        self.port = port
        self.engine = create_engine(f"sqlite:///{path}")
        self.guard = SQLAlchemyGuard(self.engine)

    def line(self) -> str:
        """Wait for the next line that it prints."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def value(self, name: str) -> int:
        """Return the committed number of that name."""
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT value FROM data WHERE name = :n"), {"n": name}).scalar() or 0)

    def put(self, name: str, value: int) -> None:
        """Store a number past the guard."""
        with self.engine.begin() as connection:
            statement = text(
                "INSERT INTO data (name, value) VALUES (:n, :v) ON CONFLICT (name) DO UPDATE SET value = :v"
            )
            connection.execute(statement, {"n": name, "v": value})

    def mark(self, name: str) -> Mark | None:
        """Return the mark, with its token."""
        return self.guard.mark(name)


@contextmanager
def running_python(arguments: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a service in a process that ends with its standard input; its first line is its port."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def running(kind: str, path: Path) -> Iterator[Service]:
    """Run ``tests.support.http_service`` with a server of this kind."""
    with running_python(["-m", "tests.support.http_service", kind, str(path)]) as (process, port):
        service = Service(kind, path, process, port)
        try:
            yield service
        finally:
            service.engine.dispose()


class RawAnswer(NamedTuple):
    """An answer as it came: its status, and all of its text."""

    status: int
    text: str
    json: Any


class HTTPSide(Contract):
    """Makes clients and guards, all sync or all async; ``call`` runs their methods, awaiting where that is needed."""

    def __init__(self, asynchronous: bool) -> None:
        self.asynchronous = asynchronous
        self._clients: list[Any] = []

    def client(self, **options: Any) -> Any:
        client = (httpx2.AsyncClient if self.asynchronous else httpx2.Client)(**options)
        self._clients.append(client)
        return client

    def guard(self, url: str, client: Any = None, **options: Any) -> Any:
        return (AsyncHTTPGuard if self.asynchronous else HTTPGuard)(url, client or self.client(), **options)

    def coordinator(self, **options: Any) -> Any:
        return (AsyncMemoryCoordinator if self.asynchronous else MemoryCoordinator)(**options)

    def close(self) -> None:
        for client in self._clients:
            self.call(client.aclose if self.asynchronous else client.close)


class LocalService:
    """A service in this process, without a socket: an ASGI application for asyncio, or else a WSGI one.

    Its marks are in memory. Its handler calls ``work`` with the scope or environ, and the resource of the query.
    """

    def __init__(self, side: HTTPSide, **options: Any) -> None:
        self.side = side
        make: Any = AsyncMemoryGuard if side.asynchronous else MemoryGuard
        self.storage = make()
        self.work: Callable[[Any, str], Any] = lambda scope, resource: None
        if side.asynchronous:
            self.middleware: Any = FencingMiddleware(self._asgi, self.storage, **options)
        else:
            self.middleware = WSGIFencingMiddleware(self._wsgi, self.storage, **options)

    def client(self, prefix: str = "", **options: Any) -> Any:
        """Return a client of this service. The server knows the prefix of an application that is mounted."""
        if self.side.asynchronous:
            transport: Any = httpx2.ASGITransport(self.middleware)
        else:
            app = self._without(prefix)
            transport = httpx2.WSGITransport(app, script_name=prefix, raise_app_exceptions=False)
        return self.side.client(transport=transport, base_url="http://service", **options)

    def _without(self, prefix: str) -> Any:
        def mounted(environ: dict[str, Any], start_response: Any) -> Any:
            return self.middleware({**environ, "PATH_INFO": environ["PATH_INFO"].removeprefix(prefix)}, start_response)

        return mounted

    def mark(self, resource: str) -> Mark | None:
        mark: Mark | None = self.side.call(self.storage.mark, resource)
        return mark

    async def _asgi(self, scope: Any, receive: Any, send: Any) -> None:
        done = self.work(scope, parse_qs(scope["query_string"].decode()).get("resource", [""])[0])
        if done is not None:
            await done
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    def _wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
        self.work(environ, parse_qs(environ["QUERY_STRING"]).get("resource", [""])[0])
        start_response("200 OK", [])
        return [b"done"]


class ScriptedService:
    """A server that gives every request the same bytes, in parts with a pause between them, and keeps requests.

    Args:
        parts: of the answer.
        pause: seconds between them.
        silent: how many requests, the first ones, get no answer; their connections stay open.
    """

    def __init__(self, *parts: bytes, pause: float = 0.0, silent: int = 0) -> None:
        self._parts, self._pause, self._silent = parts, pause, silent
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []

    def __enter__(self) -> ScriptedService:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.ExitStack() as connections:
            while not self._closed.is_set():
                connection, _ = self._listener.accept()
                connections.enter_context(connection)
                with contextlib.suppress(OSError):
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if self._closed.is_set():
            return
        self.requests.append(connection.recv(65_536))
        if len(self.requests) > self._silent:
            with connection:
                for part in self._parts:
                    connection.sendall(part)
                    if self._closed.wait(self._pause):
                        return

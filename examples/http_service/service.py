"""A service that owns accounts, in two versions. They differ in who checks the fence; copy the second.

Started by the director as ``python -m examples.http_service.service NAME``; it reports its port.
"""

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from sqlalchemy import create_engine, select, update
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.gc_pause.deposits import accounts
from examples.stage.reports import report, serve
from fencing import StaleFence
from storage_guards import FencingMiddleware, SQLAlchemyGuard
from storage_guards.http import fence_for


class CheckingMiddleware:
    """Version 1, the obvious one, which is WRONG: a middleware checks the fence, and then the handler writes."""

    def __init__(self, app: Any, guard: SQLAlchemyGuard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "PUT" and scope["path"].startswith("/checked/"):
            [fence] = scope["fencing.fences"]
            mark = await run_in_threadpool(self._guard.mark, fence.resource)
            if mark is None or not mark.is_of(fence):
                raise StaleFence(fence=fence, mark=mark)
            report("passed")  # from here on nothing checks any more
        await self._app(scope, receive, send)


def application(database: str) -> Any:
    engine = create_engine(database)
    guard = SQLAlchemyGuard(engine)

    def read(request: Request) -> JSONResponse:
        columns = accounts.c.balance, accounts.c.version  # in one statement
        statement = select(*columns).where(accounts.c.id == request.path_params["account"])
        with engine.connect() as connection:
            row = connection.execute(statement).one()
        return JSONResponse({"balance": row.balance}, headers={"ETag": f'"{row.version}"'})

    async def write_unchecked(request: Request) -> JSONResponse:
        statement = update_of(request.path_params["account"], await request.body())

        def write() -> None:
            with engine.begin() as connection:
                connection.execute(statement)

        await run_in_threadpool(write)
        return JSONResponse({})

    async def write_guarded(request: Request) -> JSONResponse:
        """Version 2: the transaction that writes checks the fence. A StaleFence becomes an answer with status 412.

        It also compares the version: a late or repeated request of the newest holder itself carries the right fence.
        """
        fence = fence_for(request.scope, request.query_params["resource"])
        report("passed")  # the header is well-formed; nothing is checked yet
        version = int(request.headers["If-Match"].strip('"'))
        statement = update_of(request.path_params["account"], await request.body())
        statement = statement.where(accounts.c.version == version)

        def write() -> bool:
            with guard.begin(fence) as connection:
                return connection.execute(statement).rowcount > 0

        is_written = await run_in_threadpool(write)
        return JSONResponse({}, status_code=200 if is_written else 412)

    routes = [
        Route("/{version}/{account:int}", read),
        Route("/checked/{account:int}", write_unchecked, methods=["PUT"]),
        Route("/guarded/{account:int}", write_guarded, methods=["PUT"]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(CheckingMiddleware, guard=guard)
    app.add_middleware(FencingMiddleware, guard=guard, claims_path="/claims")
    return app


def update_of(account: int, body: bytes) -> Any:
    values = {"balance": json.loads(body)["balance"], "version": accounts.c.version + 1}
    return update(accounts).where(accounts.c.id == account).values(values)


def set_up(database: str) -> Callable[..., None]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(database), log_level="critical", lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    report("listening", port=listener.getsockname()[1])
    return lambda: None


if __name__ == "__main__":
    serve(set_up)

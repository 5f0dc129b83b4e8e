"""The program of `http.HTTP`: ``python -m tests.torture.services.http_app PORT URL-OF-THE-DATABASE KEY``.

GET and PUT of ``/counter?name=…``: the value, a blank and the id of the last write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import waitress
from sqlalchemy import create_engine, text

from storage_guards import SQLAlchemyGuard, WSGIFencingMiddleware
from storage_guards.http import fence_for
from tests.torture.ways import READ, WRITE

__all__: list[str] = []

PATIENCE = 1.5
"""Half of what the workers' guard waits."""


def application(url: str, key: bytes) -> Any:
    engine = create_engine(url)
    guard = SQLAlchemyGuard(engine, timeout=PATIENCE)

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        name = parse_qs(environ["QUERY_STRING"])["name"][0]
        if environ["REQUEST_METHOD"] == "GET":
            with engine.connect() as connection:
                row = connection.execute(text(READ), {"name": name}).one()
            body = f"{row.value} {row.last}".encode()
        else:
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            value, _, last = body.decode().partition(" ")
            with guard.begin(fence_for(environ, name)) as connection:
                connection.execute(text(WRITE), {"name": name, "value": int(value), "last": last})
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    return WSGIFencingMiddleware(serve, guard, claims_path="/claims", keys=[key])


def main(port: int, url: str, key: bytes) -> None:
    make: Any = waitress  # its types know no create_server
    server = make.create_server(application(url, key), host="127.0.0.1", port=port, threads=8)
    print("serving", flush=True)
    server.run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], bytes.fromhex(sys.argv[3]))

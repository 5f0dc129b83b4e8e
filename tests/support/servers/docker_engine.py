"""An engine that answers as Docker does, as far as testcontainers asks. In its containers is a local server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import redis

from examples.servers import RedisServer
from examples.servers.postgres import PostgresServer
from examples.servers.proxy import Proxy


class DockerEngine:
    """A running engine. A context manager.

    Args:
        server: what is in each container: one that runs already. It is closed with the engine.

    Attributes:
        url: for DOCKER_HOST.
        images: those that need not be loaded.
        loaded: those that were loaded.
        created: what each container was made of: the body of the request.
        running: the ports of the containers that run.
        executed: what was executed in a container.
    """

    def __init__(self, server: RedisServer | PostgresServer) -> None:
        self.images: set[str] = set()
        self.loaded: list[str] = []
        self.created: list[dict[str, Any]] = []
        self.running: list[Proxy] = []
        self.executed: list[list[str]] = []
        self._inside = server
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self.url = f"tcp://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> DockerEngine:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)
        self.end()
        self._inside.close()

    def end(self) -> None:
        while self.running:
            self.running.pop().close()

    @property
    def port(self) -> str:
        [[binding]] = self.created[-1]["HostConfig"]["PortBindings"].values()
        return str(binding["HostPort"])

    def start(self) -> None:
        """Have the server on the port that the container binds."""
        self.running.append(Proxy(self._inside.host, self._inside.port, int(self.port)))

    def execute(self, command: list[str]) -> int:
        """Return the exit status: 0 where the server answers on the port of the container."""
        self.executed.append(command)
        try:
            if isinstance(self._inside, PostgresServer):
                psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres").close()
            else:
                with redis.Redis(port=int(self.port)) as client:
                    client.ping()
        except (psycopg.Error, redis.RedisError):
            return 1
        return 0

    def answer(self, method: str, path: str, query: str, body: bytes) -> tuple[int, Any]:
        """Return the status and the answer: docs.docker.com/reference/api/engine."""
        parts = [unquote(part) for part in path.split("/") if part and not part.startswith("v1.")]
        match method, parts:
            case _, ["_ping"]:
                return 200, "OK"
            case "GET", ["version"]:
                return 200, {"Version": "27.0.0", "ApiVersion": "1.46", "MinAPIVersion": "1.24"}
            case "GET", ["images", *name, "json"]:
                image = "/".join(name)
                return (200, {"Id": "sha256:1"}) if image in self.images else (404, {"message": "No such image"})
            case "POST", ["images", "create"]:
                words = dict(pair.split("=") for pair in unquote(query).split("&"))
                image = f"{words['fromImage']}:{words['tag']}"
                self.loaded.append(image)
                self.images.add(image)
                return 200, {"status": "done"}
            case "POST", ["containers", "create"]:
                self.created.append(json.loads(body))
                return 201, {"Id": "c" * 64, "Warnings": []}
            case "POST", ["containers", _, "start"]:
                self.start()
                return 204, None
            case "GET", ["containers", _, "json"]:
                ports = {name: [{"HostIp": "", "HostPort": self.port}] for name in self.created[-1]["ExposedPorts"]}
                state = {"Status": "running", "Running": True}
                return 200, {"Id": "c" * 64, "State": state, "NetworkSettings": {"Ports": ports}}
            case "POST", ["containers", _, "exec"]:
                return 201, {"Id": str(self.execute(json.loads(body)["Cmd"]))}
            case "POST", ["exec", _, "start"]:
                return 200, ""
            case "GET", ["exec", status, "json"]:
                return 200, {"ExitCode": int(status), "Running": False}
            case "DELETE", ["containers", _]:
                self.end()
                return 204, None
            case "GET", ["networks"]:
                return 200, []
        return 404, {"message": f"no {method} {path}"}


def _handler_of(engine: DockerEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, reply = engine.answer(self.command, parts.path, parts.query, body)
            text = b"" if reply is None else (reply if isinstance(reply, str) else json.dumps(reply)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(reply, str) else "application/json")
            self.send_header("Api-Version", "1.46")
            if status != 204:
                self.send_header("Content-Length", str(len(text)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler

"""The shop of the pages about web frameworks: one program on PostgreSQL and Redis, in processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
from sqlalchemy import create_engine, text

import fencing
from examples.servers.local import free_port
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]

INSIDE = """
async def inside() -> None:
    if "PAUSED" in os.environ:
        print("inside", flush=True)
        while os.path.exists(os.environ["PAUSED"]):
            await asyncio.sleep(0.01)
"""
"""A place in a handler at which a server with the variable ``PAUSED`` stays as long as that file is there."""


class Server:
    """A server of the shop, with all its processes."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    def add(self, order: int = 1) -> httpx2.Response:
        """Add an item to the order."""
        return httpx2.post(f"{self.url}/orders/{order}/items", timeout=60)

    def is_inside(self) -> bool:
        """Return whether a handler has come to the place of ``INSIDE``."""
        return "inside\n" in self.log()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def answers(self) -> bool:
        try:
            httpx2.get(self.url)
        except httpx2.TransportError:
            return False
        return True


class Shop:
    """The program, its database, and a coordinator that looks at its locks. Each server is ended with it."""

    def __init__(self, stack: ExitStack, folder: Path, database_url: str, fencing_url: str) -> None:
        self._stack, self._folder = stack, folder
        self._environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "FENCING_URL": fencing_url,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        }
        self._engine = create_engine(database_url)
        stack.callback(self._engine.dispose)
        with self._engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int)"))
            connection.execute(text("INSERT INTO orders (id, total) VALUES (1, 0)"))
        self.coordinator = stack.enter_context(fencing.connect(fencing_url, prefix="shop:"))
        self._servers: list[Server] = []

    def write(self, program: str) -> None:
        (self._folder / "shop.py").write_text(program, "utf-8")

    def start(self, *command: str, **environment: str) -> Server:
        """Start a server, such as ``uvicorn shop:app --port={port}``, and wait until it answers."""
        for _ in range(3):  # somebody may take the port meanwhile
            server = self._start(command, environment)
            wait_until(lambda server=server: server.answers() or server.process.poll() is not None, interval=0.05)  # type: ignore[misc]
            if server.process.poll() is None:
                return server
        raise AssertionError("it ends at once")

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> Server:
        port, path = free_port(), self._folder / f"log-{len(self._servers)}"
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *(each.format(port=port) for each in command)],
            env={**self._environment, **environment},
            cwd=self._folder,
            stdout=self._stack.enter_context(path.open("wb")),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        server = Server(process, port, path)
        self._servers.append(server)
        return server

    def total(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.execute(text("SELECT total FROM orders")).scalar_one())

    def logs(self) -> str:
        return "\n".join(each.log()[-4000:] for each in self._servers)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@contextmanager
def shop_of(program: str, folder: Path, database_url: str, fencing_url: str) -> Iterator[Shop]:
    """Return a shop with this program. A test that fails shows the logs of its servers."""
    with ExitStack() as stack:
        shop = Shop(stack, folder, database_url, fencing_url)
        shop.write(program)
        try:
            yield shop
        except BaseException as error:
            error.add_note(shop.logs())
            raise


def add_at_once(server: Server, times: int) -> None:
    """Add so many items, several at a time, as clients do: an answer that says so is asked for again."""

    def add(_: int) -> None:
        while (answer := server.add()).status_code == 503:
            assert int(answer.headers["Retry-After"]) == 2
        assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(times)))

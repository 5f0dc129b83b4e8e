"""Servers that load the application, and fork their workers after that."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from examples.servers import RedisServer
from examples.servers.local import free_port
from storage_guards import SQLAlchemyGuard
from tests.support import wait_until

pytestmark = pytest.mark.thorough

REQUESTS = 40
MOST_REQUESTS = 2000  # one worker may be faster than the other one
WORKERS = 2


class Orders:
    """The table that the workers write to, and what they need to know."""

    def __init__(self, redis_url: str, database: str) -> None:
        self.engine = create_engine(database)
        self.environment = {
            **os.environ,
            "ORDERS_REDIS": redis_url,
            "ORDERS_DATABASE": database,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (total integer)"))
            connection.execute(text("INSERT INTO orders VALUES (0)"))

    @property
    def total(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT total FROM orders")).scalar_one())


@pytest.fixture
def orders(any_redis: RedisServer, postgres_url: str) -> Iterator[Orders]:
    found = Orders(any_redis.url, postgres_url)
    SQLAlchemyGuard(found.engine).create_tables()
    yield found
    found.engine.dispose()


@contextmanager
def running(command: list[str], orders: Orders, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process group of its own; AssertionError with what it printed if the test fails."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=orders.environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        except BaseException as error:
            error.add_note(log.read_text(errors="replace")[-12000:])
            raise
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def get(port: int, path: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
        return dict(json.load(answer))


def is_up(port: int) -> bool:
    with closing(socket.socket()) as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def workers_of(done: list[dict[str, Any]]) -> set[int]:
    return {each["pid"] for each in done}


def check(orders: Orders, done: list[dict[str, Any]], *, preloaded: bool) -> None:
    """Each request had the lock for itself, in several workers."""
    loaded_by = {each["loaded_by"] for each in done}
    workers = workers_of(done)
    assert orders.total == len(done) - WORKERS + len(loaded_by)
    assert len({each["number"] for each in done}) == len({each["token"] for each in done}) == len(done)
    assert len(workers) == WORKERS
    assert loaded_by.isdisjoint(workers) if preloaded else loaded_by == workers


def use(orders: Orders, port: int, *, preloaded: bool = True) -> None:
    wait_until(lambda: is_up(port))
    with ThreadPoolExecutor(8) as pool:
        kept = [pool.submit(get, port, "/hold-on") for _ in range(WORKERS)]
        done = [each.result() for each in kept]
        while len(done) < WORKERS + REQUESTS or (len(workers_of(done)) < WORKERS and len(done) < MOST_REQUESTS):
            done += pool.map(get, [port] * REQUESTS, ["/add"] * REQUESTS)
    check(orders, done, preloaded=preloaded)


def test_gunicorn_that_preloads(orders: Orders, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    port = free_port()
    options = ["--preload", f"--workers={WORKERS}", "--threads=4", f"--bind=127.0.0.1:{port}", "--timeout=120"]
    command = [sys.executable, "-m", "gunicorn", *options, "tests.runtimes.orders:application"]
    with running(command, orders, tmp_path / "log"):
        use(orders, port)


@pytest.mark.parametrize(
    "options",
    [["--threads=1"], ["--threads=4", "--py-call-uwsgi-fork-hooks"], ["--threads=4", "--lazy-apps"]],
    ids=["untold", "told", "lazy"],
)
def test_uwsgi(orders: Orders, tmp_path: Path, options: list[str]) -> None:
    """By default it does not tell Python that it forks. With threads as well, its workers crash (2.0.31)."""
    uwsgi = shutil.which("uwsgi", path=os.path.dirname(sys.executable)) or shutil.which("uwsgi")
    if uwsgi is None:
        pytest.skip("no uwsgi: pip install pyuwsgi, or uwsgi, which compiles it")
    port = free_port()
    command = [uwsgi, f"--http-socket=127.0.0.1:{port}", "--module=tests.runtimes.orders", "--master", "--need-app"]
    command += [f"--processes={WORKERS}", f"--virtualenv={sys.prefix}", *options]
    with running(command, orders, tmp_path / "log"):
        use(orders, port, preloaded="--lazy-apps" not in options)


def test_celery(orders: Orders, tmp_path: Path) -> None:
    pytest.importorskip("celery")
    from celery import Celery

    orders.environment["ORDERS_BROKER"] = broker = orders.environment["ORDERS_REDIS"]
    command = [sys.executable, "-m", "celery", "-A", "tests.runtimes.celery_orders", "worker", "--pool=prefork"]
    command += [f"--concurrency={WORKERS}", "--without-mingle", "--without-gossip", f"--pidfile={tmp_path}/pid"]
    with running(command, orders, tmp_path / "log"):
        app = Celery(broker=broker, backend=broker)
        sent = [app.send_task(name) for name in ["hold_on"] * WORKERS + ["add"] * REQUESTS]
        done = [each.get(timeout=120) for each in sent]
        app.close()
    check(orders, done, preloaded=True)

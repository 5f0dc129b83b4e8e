"""docs/guide/ttl.md: its code runs as it stands, its time-outs end before the lease does, and its figures follow."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from examples.servers import RedisServer
from fencing import AsyncMemoryCoordinator, MemoryCoordinator, RedisCoordinator
from fencing.locks.holding import RENEWED_AFTER, RETRIED_AFTER
from fencing.pauses import PAUSE_SHARE
from fencing.testing import ManualClock
from storage_guards import SQLAlchemyGuard

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "ttl.md").read_text("utf-8")
RECORD, REQUESTS, PSYCOPG, ASYNCIO = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class Prices(BaseHTTPRequestHandler):
    silence = threading.Event()
    """While it is not set, the path /silent gets no answer."""

    def do_GET(self) -> None:
        if self.path == "/silent":
            self.silence.wait(60)
        price = b"%d" % (10 * int(self.path.strip("/"))) if self.path != "/silent" else b"0"
        with suppress(ConnectionError):  # a client that has given up
            self.send_response(200)
            self.send_header("Content-Length", str(len(price)))
            self.end_headers()
            self.wfile.write(price)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prices() -> Iterator[str]:
    """A service that asks ten for each unit of weight."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Prices)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    Prices.silence.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    Prices.silence.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def shop(postgres_url: str) -> dict[str, Any]:
    engine = create_engine(postgres_url)
    guard = SQLAlchemyGuard(engine)
    guard.create_tables()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, weight int, price int)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 3, 0)"))
    return {"engine": engine, "guard": guard, "DSN": postgres_url.replace("+psycopg", "", 1)}


def test_the_examples_work(any_redis: RedisServer, shop: dict[str, Any], prices: str) -> None:
    with RedisCoordinator(any_redis.client(), guards=[shop["guard"]]) as coordinator:
        names = {**shop, "coordinator": coordinator, "PRICES": prices}
        for code in (REQUESTS, PSYCOPG, ASYNCIO):
            exec(code, names)
    with shop["engine"].connect() as connection:
        assert connection.execute(text("SELECT price FROM orders")).scalar_one() == 30
    assert names["weight"] == 3

    async def ask() -> object:
        async with AsyncMemoryCoordinator() as coordinator:
            return await names["ask_for_price"](coordinator)

    assert asyncio.run(ask()) == 70


def changed(code: str, *texts: str) -> str:
    """Return code in which each text is replaced by the next one."""
    for before, after in zip(texts[::2], texts[1::2], strict=True):
        assert code.count(before) == 1
        code = code.replace(before, after)
    return code


def test_a_request_and_a_statement_end_with_the_time_that_is_left(shop: dict[str, Any], prices: str) -> None:
    names: dict[str, Any] = {}
    exec(REQUESTS.partition("with coordinator")[0], names)
    clock = ManualClock()  # what is left is the same on a busy machine
    with MemoryCoordinator(clock=clock, ttl=10) as coordinator:
        with coordinator.hold("a", timeout=5) as lease:
            reserve = lease.remaining() - 0.05
        little = f"time_left(lease, reserve={reserve})"
        code = changed(REQUESTS, "time_left(lease, reserve=1)", little, 'f"{PRICES}/{weight}"', 'f"{PRICES}/silent"')
        with pytest.raises(httpx2.ReadTimeout):
            exec(code, {**shop, "coordinator": coordinator, "PRICES": prices})
        for example, step in ((REQUESTS, "time_left(lease, reserve=3)"), (PSYCOPG, "time_left(lease, reserve=1)")):
            code = changed(example, step, little, "weight FROM orders WHERE id = 42", "pg_sleep(60)")
            with pytest.raises((OperationalError, psycopg.errors.QueryCanceled), match="statement timeout"):
                exec(code, {**shop, **names, "coordinator": coordinator})
        with coordinator.hold("a", timeout=5) as lease:
            clock.advance(2)
            with pytest.raises(TimeoutError, match="too little"):
                names["time_left"](lease, reserve=8)


def test_pauses_are_recorded_beside_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    worked = threading.Event()
    exec(RECORD, {"work": worked.set})
    assert worked.is_set()
    assert "ttl=7.5" in capsys.readouterr().out


def test_the_figures_are_those_of_the_code() -> None:
    assert f"{PAUSE_SHARE:.1%}".replace("%", " %") in PAGE
    assert f"{RENEWED_AFTER[0] * 100:g} to {RENEWED_AFTER[1] * 100:g} %" in PAGE
    assert f"{RETRIED_AFTER[0] * 100:g} to {RETRIED_AFTER[1] * 100:g} %" in PAGE
    rows = re.findall(r"(?m)^\| (\d+) s \| (\d+) s \| ([\d.]+) s \| ([\d.]+) to ([\d.]+) \| (\d+) to (\d+) \|$", PAGE)
    assert len(rows) == 5
    for ttl, blocked, pause, *requests in rows:
        assert blocked == ttl
        assert 0.95 < float(pause) / (int(ttl) * PAUSE_SHARE - 0.002) <= 1
        seldom, often = (1 / (share * int(ttl)) for share in reversed(RENEWED_AFTER))
        assert [float(each) for each in requests] == pytest.approx([seldom, often, 100 * seldom, 100 * often], rel=0.11)

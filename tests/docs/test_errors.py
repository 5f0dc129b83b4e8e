"""docs/guide/errors.md: it has every error, and its retries do a job once, whatever is lost on the way."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from examples.servers import PostgresServer, RedisServer
from fencing import Fence, FencingError, GuardUnavailable, LeaseLost, NotAcquired, RedisCoordinator, StaleRead
from fencing.kernel import errors
from storage_guards import SQLAlchemyGuard
from tests.support.servers import Proxy

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "errors.md").read_text("utf-8")
RETRY, TRY, ASK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
DEFINED = [
    name
    for name, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, FencingError) and value is not FencingError
]


@pytest.mark.parametrize("name", DEFINED)
def test_each_error_has_a_section(name: str) -> None:
    assert f"\n## {name}\n" in PAGE
    assert f"| [`{name}`](#{name.lower()}) |" in PAGE


def names_of_the_page(**names: Any) -> dict[str, Any]:
    exec(RETRY.removesuffix("run(add_one)\n"), names)
    return names


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["nothing", "reply", "request"])
def test_a_lost_commit_counts_once(
    any_redis: RedisServer,
    postgres_url: str,
    postgres_server: PostgresServer,
    proxy: Callable[[PostgresServer], Proxy],
    lost: str,
) -> None:
    direct = create_engine(postgres_url)
    with direct.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, total int)"))
        connection.execute(text("INSERT INTO orders VALUES (42, 0)"))
    network = proxy(postgres_server)
    engine = create_engine(network.url(postgres_url))
    guard = SQLAlchemyGuard(engine, timeout=20)
    guard.create_tables()
    lose = {"reply": network.drop_reply_when, "request": network.drop_request_when}.get(lost)
    with RedisCoordinator(any_redis.client(), guards=[guard]) as coordinator:
        names = names_of_the_page(coordinator=coordinator, guard=guard)
        for example, expected in (("run(add_one)", 1), (ASK, 3), (TRY, 3)):
            loss = lose(commit_of_the_write()) if lose and example is not TRY else None
            exec(example.replace("timeout=0.1", "timeout=20"), names)
            assert loss is None or loss.fired == 1
            with direct.connect() as connection:
                assert connection.execute(text("SELECT total FROM orders")).scalar_one() == expected
        assert names["outcome"] == "done"
        with coordinator.hold("orders:42"):
            exec(TRY.replace("timeout=0.1", "timeout=1"), names)
        assert names["outcome"].startswith("busy, held by ")
    engine.dispose()
    direct.dispose()


def commit_of_the_write() -> Callable[[bytes], bool]:
    """Matches the first COMMIT after an UPDATE of the data; the one before is the claim's."""
    written = False

    def matches(request: bytes) -> bool:
        nonlocal written
        written = written or b"UPDATE orders" in request
        return written and b"COMMIT" in request

    return matches


@pytest.mark.thorough
def test_a_job_is_repeated_only_while_nothing_was_written() -> None:
    names = names_of_the_page(coordinator=None, guard=None)
    fence = Fence("r", 1, "a" * 22)
    failures: list[FencingError] = [NotAcquired(resource="r", reason="held", waited=0), StaleRead(resource="r")]
    calls = []

    def job() -> str:
        calls.append(1)
        if failures:
            raise failures.pop()
        return "done"

    assert names["run"](job) == "done"
    assert len(calls) == 3
    failures.append(LeaseLost(fence=fence, reason="gone", completed=True))
    assert names["run"](job) is None
    assert len(calls) == 4
    failures.extend([GuardUnavailable("no answer")] * 2)
    with pytest.raises(GuardUnavailable):
        names["run"](job, attempts=2)
    assert len(calls) == 6

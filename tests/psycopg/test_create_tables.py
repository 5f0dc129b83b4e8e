"""The creation of the mark table, which all others wait for that begin at the same time."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from fencing import GuardUnavailable
from storage_guards import PsycopgGuard
from storage_guards.psycopg import wire
from storage_guards.sql import schema


@pytest.mark.parametrize("exists", [False, True])
def test_a_client_that_stands_still_keeps_nobody_from_creating(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """It has the advisory lock, and sends nothing more. Its session is ended after its own time-out."""
    url = postgres_url.replace("+psycopg", "")
    slow, other = PsycopgGuard(url, timeout=1.0), PsycopgGuard(url, timeout=60.0)
    if exists:
        other.create_tables()
    read_answer = schema.read_visible_tables
    has_lock, goes_on = threading.Event(), threading.Event()
    frozen: list[threading.Thread] = []

    def stand_still(*args: Any) -> Any:
        if threading.current_thread() in frozen and not has_lock.is_set():
            has_lock.set()
            assert goes_on.wait(90)
        return read_answer(*args)

    monkeypatch.setattr(wire, "read_visible_tables", stand_still)
    errors: list[BaseException] = []

    def create() -> None:
        frozen.append(threading.current_thread())
        try:
            slow.create_tables()
        except GuardUnavailable as error:
            errors.append(error)
            slow.create_tables()  # as the error says

    thread = threading.Thread(target=create)
    thread.start()
    try:
        assert has_lock.wait(90)
        other.create_tables()
    finally:
        goes_on.set()
        thread.join(90)
    [error] = errors
    assert "retry" in str(error)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM fencing_marks").fetchone() == (1,), "the floor row"

"""The code of the pages leaves its engines open, as programs do. Here they are closed at the end of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, event


@pytest.fixture(autouse=True)
def close_engines() -> Iterator[None]:
    """Close the connections of each sync engine that the test used."""
    used: list[Engine] = []

    def note(connection: Connection) -> None:
        if connection.engine not in used and not connection.dialect.is_async:
            used.append(connection.engine)

    event.listen(Engine, "engine_connect", note)
    yield
    event.remove(Engine, "engine_connect", note)
    for engine in used:
        engine.dispose()

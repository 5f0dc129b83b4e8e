"""examples/README.md: the snippet that starts servers runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.servers import PostgresServer, RedisServer

PAGE = Path(__file__).resolve().parents[2] / "examples" / "README.md"


@pytest.mark.thorough
def test_the_servers_start(
    any_redis: RedisServer, postgres_server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    # The fixtures only say that there are servers: it starts its own.
    [snippet] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    exec(snippet, {})
    assert "orders:42" in capsys.readouterr().out

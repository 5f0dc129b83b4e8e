"""Servers in containers, over an engine that answers as Docker does. No real engine was at hand."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.servers import PostgresServer, RedisServer, ServerError, start_postgres, start_redis
from examples.servers.redis import Series
from tests.support.servers.docker_engine import DockerEngine

pytestmark = pytest.mark.thorough  # it loads testcontainers


@pytest.fixture(params=["redis:8-alpine", "valkey/valkey:9-alpine", "postgres:18-alpine"])
def image(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    config: Any = pytest.importorskip("testcontainers.core.config")
    monkeypatch.setattr(config.testcontainers_config, "ryuk_disabled", True)
    here = config.ConnectionMode.docker_host  # this machine may itself be a container
    monkeypatch.setattr(config.testcontainers_config, "connection_mode_override", here)
    try:
        server = start_inside(image)
    except ServerError as error:
        pytest.skip(str(error))
    with DockerEngine(server) as made:
        monkeypatch.setenv("DOCKER_HOST", made.url)
        yield made


def start_inside(image: str) -> RedisServer | PostgresServer:
    """Start a server of this machine that an image would have."""
    if "postgres" in image:
        return start_postgres(own=True, local=True)
    return start_redis(own=True, local=True, version="valkey-9" if "valkey" in image else None)


def test_a_server_in_a_container_serves(
    engine: DockerEngine, image: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FENCING_SERVERS", "docker")
    server: RedisServer | PostgresServer
    if "postgres" in image:
        with start_postgres(own=True) as server, server.connect() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    else:
        version = "valkey-9" if "valkey" in image else "8"
        with start_redis(own=True, version=version) as server, server.client() as client:
            assert client.ping()
    assert (server.source, server.pid) == (image, None)
    assert bool(engine.executed) is not image.startswith("redis:"), "the others are asked inside whether they are ready"
    assert engine.loaded == [image]
    assert engine.created[0]["Image"] == image
    assert engine.created[0]["Cmd"][0] in ("redis-server", "valkey-server", "postgres")
    assert f"Starting {image} in Docker, which loads the image first." in capsys.readouterr().err
    assert not engine.running


@pytest.mark.parametrize("image", ["redis:8-alpine"], indirect=True)
def test_docker_is_not_reached_where_it_is_left_out(engine: DockerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for sources in ("path,wheels", ""):
        monkeypatch.setenv("FENCING_SERVERS", sources)
        with start_redis(own=True) as server:
            assert Series.of(None).has(server.kind, server.version)
    assert engine.created == []


def test_the_containers_that_the_pages_name_exist() -> None:
    pages = Path(__file__).parents[2] / "docs"
    found = 0
    for page in ("guards/your-own.md", "guide/testing.md"):
        text = (pages / page).read_text("utf-8")
        for module, name in re.findall(r"\b(redis|valkey|postgres)\.(\w+Container)\(", text):
            kind = getattr(importlib.import_module(f"testcontainers.community.{module}"), name)
            assert hasattr(kind, "get_client" if module == "redis" else "get_connection_url")
            found += 1
        for module, name in re.findall(r"from (testcontainers\.community\.\w+) import (\w+)", text):
            parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
            assert "driver" in parameters
            found += 1
    assert found >= 5

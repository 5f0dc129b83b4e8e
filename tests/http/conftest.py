"""Guarded services in processes of their own, one of each kind per run."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.http_servers import HTTPSide, ScriptedService, Service, running


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Service]]:
    """Returns the running service of a kind; it is started when it is first asked for."""
    with ExitStack() as stack:
        started: dict[str, Service] = {}

        def of_kind(kind: str) -> Service:
            if kind not in started:
                path = tmp_path_factory.mktemp(kind) / "data.sqlite"
                started[kind] = stack.enter_context(running(kind, path))
            return started[kind]

        yield of_kind


@pytest.fixture(params=["uvicorn", "waitress"])
def service(request: pytest.FixtureRequest, services: Callable[[str], Service]) -> Service:
    """An ASGI service, and a WSGI service."""
    return services(request.param)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def side(request: pytest.FixtureRequest) -> Iterator[HTTPSide]:
    """Clients and guards, all sync or all async."""
    made = HTTPSide(request.param)
    yield made
    made.close()


@pytest.fixture
def silent_service() -> Iterator[socket.socket]:
    """A port that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedService]]:
    """Starts a server that gives every request the same bytes as an answer."""
    with ExitStack() as stack:
        yield lambda *parts, **options: stack.enter_context(ScriptedService(*parts, **options))

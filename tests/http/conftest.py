"""Guarded services in processes of their own, one of each kind per run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.http_servers import Service, running


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

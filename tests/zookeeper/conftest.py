"""A ZooKeeper, shared by the run, and servers of a test's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from examples.servers import ServerError, ZooKeeperEnsemble, ZooKeeperServer, start_zookeeper
from tests.support.fixtures import missing_or_broken
from tests.support.zookeeper import ZooKeeperFactory, ZooKeeperSide


@pytest.fixture(autouse=True)
def _patient_tries(patient_tries: None) -> None:
    """Real servers answer late on a busy machine."""


@pytest.fixture
def fresh_zookeeper() -> Iterator[ZooKeeperFactory]:
    """Starts servers of the test's own, to kill and to freeze."""
    with ExitStack() as stack:

        def start(java: Sequence[str] = (), **settings: Any) -> ZooKeeperServer:
            try:
                return stack.enter_context(start_zookeeper(settings=settings, own=True, java=java))
            except ServerError as error:
                missing_or_broken("zookeeper", error)

        yield start


@pytest.fixture
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    """Three members, of the test's own."""
    with ExitStack() as stack:
        try:
            made = ZooKeeperEnsemble(stack)
        except ServerError as error:
            missing_or_broken("zookeeper", error)
        yield made


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.thorough)])
def side(request: pytest.FixtureRequest, zookeeper_server: ZooKeeperServer) -> Iterator[ZooKeeperSide]:
    """Makes coordinators of one side on the shared server."""
    made = ZooKeeperSide(request.param == "async", zookeeper_server.hosts)
    yield made
    made.close()

"""An etcd, shared by the run, and clusters of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from examples.servers import EtcdCluster, EtcdServer, ServerError, start_etcd
from tests.support.etcd import EtcdSide
from tests.support.fixtures import missing_or_broken


@pytest.fixture(autouse=True)
def _patient_tries(patient_tries: None) -> None:
    """Real servers answer late on a busy machine."""


EtcdFactory = Callable[..., EtcdServer]


@pytest.fixture
def fresh_etcd() -> Iterator[EtcdFactory]:
    """Starts servers of the test's own, to kill and to freeze."""
    with ExitStack() as stack:

        def start(extra_args: Sequence[str] = (), data: Path | None = None) -> EtcdServer:
            try:
                return stack.enter_context(start_etcd(extra_args=extra_args, own=True, data=data))
            except ServerError as error:
                missing_or_broken("etcd", error)

        yield start


@pytest.fixture
def etcd_cluster() -> Iterator[EtcdCluster]:
    """Three members, of the test's own."""
    with ExitStack() as stack:
        try:
            cluster = EtcdCluster(stack)
        except ServerError as error:
            missing_or_broken("etcd", error)
        yield cluster


@pytest.fixture(params=["sync", pytest.param("async", marks=pytest.mark.thorough)])
def etcd(request: pytest.FixtureRequest, etcd_server: EtcdServer) -> Iterator[EtcdSide]:
    """Makes coordinators of one side on the shared server."""
    side = EtcdSide(request.param == "async", [etcd_server.url])
    yield side
    side.close()

"""An etcd with TLS, shared by the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers import EtcdServer, ServerError, start_etcd
from tests.support.fixtures import missing_or_broken
from tests.support.tls import TlsOfBothSides


@pytest.fixture(scope="session")
def etcd_with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdServer, Path]]:
    """A server that asks for the certificate of a client, and the folder of the certificates."""
    tls = TlsOfBothSides(tmp_path_factory.mktemp("certificates"))
    try:
        started = start_etcd(extra_args=tls.arguments, own=True)
    except ServerError as error:
        missing_or_broken("etcd", error)
    with started as server:
        yield server, tls.folder

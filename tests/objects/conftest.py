"""Guards on real object stores: both sides and all servers between them, and every pair in the thorough run."""

from __future__ import annotations

from typing import Any

import pytest
from obstore.store import MemoryStore

from tests.support.object_guards import Place, PublicationDesk
from tests.support.sides import Side


def _pair(server: str, side: str, *marks: Any) -> Any:
    return pytest.param((server, side), id=f"{server}-{side}", marks=marks)


@pytest.fixture(
    params=[
        _pair("s3", "sync"),
        _pair("gcs", "async"),
        _pair("s3", "async", pytest.mark.thorough),
        _pair("gcs", "sync", pytest.mark.thorough),
        _pair("azure", "sync", pytest.mark.thorough),
        _pair("azure", "async", pytest.mark.thorough),
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    server, side = request.param
    return Place(Side(side == "async"), request.getfixturevalue(f"{server}_server"))


@pytest.fixture
def http(place: Place) -> PublicationDesk:
    """A guard on a new bucket of a real server."""
    return PublicationDesk(place.side, place.server.store(), place.server)


@pytest.fixture
def desk(side: Side) -> PublicationDesk:
    """A guard on a store in memory."""
    return PublicationDesk(side, MemoryStore())

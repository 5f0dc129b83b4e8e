"""Requests that a store or a credential provider could make endless, or fail for a moment only."""

from __future__ import annotations

import time
from typing import Any

import pytest
from obstore.store import S3Store

from examples.servers.objects import ObjectServer
from fencing import Fence, GuardUnavailable
from storage_guards.objects import collect
from storage_guards.objects.requests import PAGE
from tests.support.object_faults import FaultyStore
from tests.support.object_guards import guard_on
from tests.support.sides import Side

A = Fence("orders:1", 1, "a" * 22)


def test_a_listing_of_empty_pages_ends(side: Side, monkeypatch: Any) -> None:
    class Empty(FaultyStore):
        def list(self, prefix: str | None = None, **options: Any) -> Any:
            async def pages() -> Any:
                while True:
                    yield []

            return pages()

    monkeypatch.setattr(collect, "MOST_LISTED", PAGE)
    started = time.monotonic()
    text = str(side.expect(GuardUnavailable, guard_on(side, Empty(), timeout=0.1).history, "orders:1"))
    assert "did not end" in text
    assert time.monotonic() - started < 20


@pytest.mark.thorough
def test_credentials_that_fail_for_a_moment(side: Side, s3_server: ObjectServer) -> None:
    """Their own service may be out of reach. That is no refusal of the store."""
    fails = [True]

    def credentials() -> Any:
        if fails:
            raise ConnectionError("the token service does not answer")
        return {"access_key_id": "a", "secret_access_key": "b", "token": None, "expires_at": None}

    store = S3Store(
        s3_server.new_bucket(),
        endpoint=s3_server.url,
        region="us-east-1",
        client_options={"allow_http": True},
        credential_provider=credentials,
    )
    guard = guard_on(side, store)
    for method, *args in ((guard.mark, "orders:1"), (guard.verify,), (guard.claim, A)):
        assert "token service" in str(side.expect(GuardUnavailable, method, *args))
    fails.clear()
    side.call(guard.claim, A)

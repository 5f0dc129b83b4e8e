"""The contract of guards through HTTP: claims by HTTPGuard, writes by a handler, each service a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import httpx2
import pytest

from fencing import Fence, GuardUnavailable, Mark, StaleFence
from storage_guards import AsyncHTTPGuard, HTTPGuard, fenced
from storage_guards.http.problems import UNKNOWN_TOKEN
from storage_guards.testing import GuardContract
from tests.support.http_servers import Service


class OverHTTP(GuardContract):
    """The suite of a client and a kind of server. Marks are compared as the storage has them: answers have no token."""

    transactions = False
    claim_and_write = False
    highest_number = 2**50  # the middleware's bound is 2^49 above the clock
    kind: ClassVar[str]
    client: Any

    @pytest.fixture(autouse=True)
    def _connect(self, services: Callable[[str], Service]) -> Iterator[None]:
        self.service = services(self.kind)
        self.client = self.new_client()
        yield
        self.call(getattr(self.client, "aclose", None) or self.client.close)

    def new_client(self) -> Any:
        return httpx2.Client(base_url=self.service.url)

    def make(self) -> Any:
        return HTTPGuard("/fencing/claims", self.client)

    def read(self, resource: str) -> int:
        return self.service.value(resource)

    def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        with fenced(self.client, fence):
            answered(self.client.put("/data", params={"resource": resource}, content=b"%d" % value))

    def write_unguarded(self, resource: str, value: int) -> None:
        self.service.put(resource, value)

    def _mark(self, resource: str) -> Mark | None:
        stored = self.service.mark(resource)
        answer = super()._mark(resource)
        if stored is None or answer is None or answer.seq != stored.seq:  # a race may have changed it between them
            return stored
        assert answer.token == UNKNOWN_TOKEN
        return stored

    def expect(self, error: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raised = super().expect(error, function, *args, **kwargs)
        if isinstance(raised, StaleFence) and raised.mark is not None:
            assert raised.mark.token == UNKNOWN_TOKEN
            stored = self.service.mark(raised.fence.resource)
            assert stored is not None
            assert stored.number == raised.mark.number
            raised.mark = stored
        return raised


class AsyncOverHTTP(OverHTTP):
    def new_client(self) -> Any:
        return httpx2.AsyncClient(base_url=self.service.url)

    def make(self) -> Any:
        return AsyncHTTPGuard("/fencing/claims", self.client)

    async def write(self, fence: Fence, resource: str, value: int, **options: Any) -> Any:
        with fenced(self.client, fence):
            answered(await self.client.put("/data", params={"resource": resource}, content=b"%d" % value))


def answered(response: httpx2.Response) -> None:
    if response.status_code == 503:
        raise GuardUnavailable(response.text)
    response.raise_for_status()


class TestSyncToASGI(OverHTTP):
    kind = "uvicorn"


class TestAsyncToWSGI(AsyncOverHTTP):
    kind = "waitress"


@pytest.mark.thorough
class TestSyncToWSGI(OverHTTP):
    kind = "waitress"


@pytest.mark.thorough
class TestAsyncToASGI(AsyncOverHTTP):
    kind = "uvicorn"

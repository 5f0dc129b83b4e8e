"""`fenced`: the requests of a block carry its fences, and nobody else's do."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any

import httpx2
import pytest

from fencing import Fence, GuardNotEnforceable, LeaseLost, MemoryCoordinator, StaleFence, UnclaimedFence
from storage_guards import fenced
from storage_guards.http import HEADER, header_of
from tests.support.http_servers import HTTPSide, Service


def new_fence(number: int = 5) -> Fence:
    return Fence(f"r{uuid.uuid4().hex}", number, uuid.uuid4().hex)


class Requests:
    """A client whose requests end here: it keeps their headers."""

    def __init__(self, side: HTTPSide) -> None:
        self.side = side
        self.sent: list[str | None] = []
        self.client = side.client(transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(request.headers.get(HEADER))
        return httpx2.Response(200)

    def send(self, **options: Any) -> None:
        self.side.call(self.client.get, "http://service/", **options)


def put(side: HTTPSide, client: Any, fence: Fence, *held: Any) -> Any:
    with fenced(client, *held):  # a coroutine begins in a copy of this context
        return side.call(client.put, "/data", params={"resource": fence.resource}, content=b"1")


def test_a_service_refuses_and_accepts(side: HTTPSide, service: Service) -> None:
    client = side.client(base_url=service.url)
    guard = side.guard("/fencing/claims", client)
    mine, newer = new_fence(), new_fence()
    newer = Fence(mine.resource, 6, newer.token)
    assert side.expect(UnclaimedFence, put, side, client, mine, mine).mark is None
    side.call(guard.claim, mine)
    assert put(side, client, mine, mine).text == "written"
    side.call(guard.claim, newer)
    refused = side.expect(StaleFence, put, side, client, mine, mine)
    assert refused.fence == mine
    assert refused.mark is not None
    assert refused.mark.number == 6
    another = new_fence()
    assert put(side, client, another, newer).status_code == 428
    assert service.value(mine.resource) == 1


def test_a_lease_learns_that_it_is_lost(service: Service) -> None:
    side = HTTPSide(False)
    client = side.client(base_url=service.url)
    guard = side.guard("/fencing/claims", client)
    lease = MemoryCoordinator(guards=[guard]).acquire(new_fence().resource, timeout=5)
    guard.claim(Fence(lease.fence.resource, lease.fence.number + 1, "a" * 22))
    with pytest.raises(StaleFence), lease:
        put(side, client, lease.fence, lease)
    assert lease.lost.is_set()
    side.close()


def test_only_the_requests_of_the_block_carry_the_fence(side: HTTPSide) -> None:
    one, other, mine, inner = Requests(side), Requests(side), new_fence(), new_fence()
    one.send()
    with fenced(one.client, mine):
        with fenced(other.client, inner):
            other.send()
        with fenced(one.client, inner, mine):
            assert len(one.client.event_hooks["request"]) == 1
        other.send()
    one.send()
    assert (one.sent, other.sent) == ([None, None], [header_of(inner), None])


@pytest.mark.parametrize(
    ("location", "is_followed"),
    [("/other", True), ("http://else.where/", False), ("https://service/", False), ("http://service:81/", False)],
)
def test_a_redirection_to_another_service_gets_no_fence(side: HTTPSide, location: str, is_followed: bool) -> None:
    mine, sent = new_fence(), []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append((str(request.url), request.headers.get(HEADER)))
        return httpx2.Response(307, headers={"Location": location}) if len(sent) == 1 else httpx2.Response(200)

    client = side.client(transport=httpx2.MockTransport(answer), follow_redirects=True)
    with fenced(client, mine):
        if is_followed:
            assert side.call(client.put, "http://service/", content=b"1").status_code == 200
        else:
            refused = side.expect(GuardNotEnforceable, client.put, "http://service/", content=b"1")
            assert "redirects to another one" in str(refused)
    assert [fence for _, fence in sent] == [header_of(mine)] * (1 + is_followed)


def test_nesting_and_headers_of_the_callers_own() -> None:
    side = HTTPSide(False)
    one, mine, inner = Requests(side), new_fence(), new_fence()
    with fenced(one.client, mine):
        one.send()
        with fenced(one.client, inner):
            one.send()
        one.send(headers={HEADER: header_of(inner)})
        one.client.event_hooks = {}
        one.send()
        with fenced(one.client, mine):
            one.send()
    assert one.sent == [header_of(one) if one else None for one in (mine, inner, inner, None, mine)]
    side.close()


def test_threads_do_not_share_fences() -> None:
    side = HTTPSide(False)
    one, mine, inner = Requests(side), new_fence(), new_fence()

    def in_thread() -> None:
        one.send()
        with fenced(one.client, inner):
            one.send()

    with fenced(one.client, mine):
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join(10)
        one.send()
    assert one.sent == [None, header_of(inner), header_of(mine)]
    side.close()


def test_tasks_do_not_share_fences() -> None:
    side = HTTPSide(True)
    one, fences = Requests(side), [new_fence() for _ in range(5)]

    async def send(fence: Fence) -> None:
        with fenced(one.client, fence):
            await asyncio.sleep(0)
            response = await one.client.get("http://service/")
            assert response.request.headers[HEADER] == header_of(fence)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as group:
            for fence in fences:
                group.create_task(send(fence))

    side.call(all_of_them)
    assert len(one.sent) == 5
    side.close()


def test_a_lease_that_has_ended_sends_nothing() -> None:
    side = HTTPSide(False)
    one = Requests(side)
    with MemoryCoordinator().hold("r", timeout=1) as lease:
        block = fenced(one.client, lease)
        block.__enter__()
        one.send()
    with pytest.raises(LeaseLost):
        one.send()
    block.__exit__(None, None, None)
    assert one.sent == [header_of(lease.fence)]
    with pytest.raises(LeaseLost), fenced(one.client, lease):
        pass
    side.close()


def test_wrong_arguments() -> None:
    with httpx2.Client() as client:
        for wrong, holders in ((httpx2, [new_fence()]), (client, []), (client, ["7.x.r"])):
            with pytest.raises(TypeError), fenced(wrong, *holders):  # type: ignore[arg-type]
                pass
        assert client.event_hooks == {"request": [], "response": []}

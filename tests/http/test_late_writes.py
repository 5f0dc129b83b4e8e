"""Requests that write late, or twice, under the fence of a holder that goes on: version conditions, and `reclaim`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fencing import Fence, LeaseLost, MemoryCoordinator, StaleFence
from storage_guards import HTTPGuard, fenced
from storage_guards.http import header_of
from tests.http.late_writes import LOST, VERDICT, Scenario, explore
from tests.support.http_servers import Service, running
from tests.support.servers import Proxy

THOROUGH = pytest.mark.thorough
BOTH = (LOST, VERDICT)


@pytest.mark.parametrize(
    ("scenario", "watched"),
    [
        pytest.param(Scenario(reclaims=False), (LOST,), id="a condition"),
        pytest.param(Scenario(reclaims=False, repeats=1), (LOST,), id="a condition, repeated requests"),
        pytest.param(Scenario(reclaims=False, threads=2, writes=1), (LOST,), id="a condition, two threads"),
        pytest.param(Scenario(condition=None), BOTH, id="reclaim"),
        pytest.param(Scenario(holders=2, writes=1), BOTH, id="both"),
        pytest.param(Scenario(threads=2, writes=1), BOTH, id="both, two threads"),
        pytest.param(Scenario(holders=2, writes=1, repeats=1), BOTH, id="both, repeated requests", marks=THOROUGH),
    ],
)
def test_the_rules_are_safe(scenario: Scenario, watched: tuple[str, ...]) -> None:
    states, violated, trace = explore(scenario, watched=watched)
    assert violated is None, f"TRACE {len(trace)}: {', '.join(trace)}: {violated}"
    assert states > 10


@pytest.mark.parametrize(
    ("scenario", "violated", "steps"),
    [
        pytest.param(Scenario(condition=None, reclaims=False), LOST, 8, id="neither"),
        pytest.param(Scenario(condition=None, repeats=1, unknown=0), LOST, 9, id="reclaim alone, repeated requests"),
        pytest.param(
            Scenario(condition=None, threads=2, writes=1, unknown=0), LOST, 7, id="reclaim alone, two threads"
        ),
        pytest.param(Scenario(reclaims=False), VERDICT, 6, id="a condition alone gives no verdict"),
        pytest.param(Scenario(waits_for_claim=False), VERDICT, 7, id="the new claim is not waited for"),
        pytest.param(
            Scenario(condition="after", threads=2, writes=1, unknown=0),
            LOST,
            9,
            id="the version is read after the data",
        ),
    ],
)
def test_each_rule_is_needed(scenario: Scenario, violated: str, steps: int) -> None:
    _, found, trace = explore(scenario, watched=(violated,))
    assert (found, len(trace)) == (violated, steps), ", ".join(trace)


class Account:
    """A datum of a service, and a worker that adds to it under the fence of its lease."""

    def __init__(self, service: Service, client: httpx2.Client) -> None:
        self.service, self.client = service, client
        self.coordinator = MemoryCoordinator(guards=[HTTPGuard("/fencing/claims", client)])
        self.name = "account"

    def read(self) -> tuple[int, str]:
        answer = self.client.get("/data", params={"resource": self.name})
        return int(answer.text), answer.headers["ETag"]

    def put(self, value: int, condition: str | None) -> httpx2.Response:
        headers = {} if condition is None else {"If-Match": condition}
        return self.client.put("/data", params={"resource": self.name}, content=b"%d" % value, headers=headers)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running("waitress", tmp_path_factory.mktemp("late") / "data.sqlite") as service:
        yield service


@pytest.fixture
def proxy(service: Service) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", service.port) as proxy:
        yield proxy


@pytest.fixture
def account(service: Service, proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Account]:
    with httpx2.Client(base_url=f"http://{proxy.host}:{proxy.port}", timeout=20) as client:
        account = Account(service, client)
        account.name = request.node.name
        yield account
        account.coordinator.close()


def lose_a_put(account: Account, proxy: Proxy, value: int, condition: str | None) -> Any:
    """Send a write whose connection ends without an answer. Its bytes stay in the network, until they are delivered."""
    loss = proxy.stall_connection_when(lambda sent: b"PUT" in sent, cut_when=lambda sent: sent.endswith(b"%d" % value))
    with pytest.raises(httpx2.TransportError):
        account.put(value, condition)
    assert loss.wait(20)
    return loss


@pytest.mark.thorough
@pytest.mark.parametrize("has_condition", [False, True])
def test_a_late_request_of_the_same_fence(account: Account, proxy: Proxy, has_condition: bool) -> None:
    with account.coordinator.hold(account.name) as lease, fenced(account.client, lease):
        value, version = account.read()
        late = lose_a_put(account, proxy, value + 1, version if has_condition else None)
        value, version = account.read()
        assert value == 0
        assert account.put(value + 5, version if has_condition else None).text == "written"
        late.deliver()
        assert account.read()[0] == (5 if has_condition else 1), "without a condition the acknowledged 5 is gone"


def test_a_request_that_a_proxy_sends_again(account: Account, service: Service) -> None:
    with account.coordinator.hold(account.name) as lease, fenced(account.client, lease):
        value, version = account.read()
        request = account.client.build_request(
            "PUT",
            "/data",
            params={"resource": account.name},
            content=b"1",
            headers={"If-Match": version, "Fencing-Token": header_of(lease)},
        )
        assert account.client.send(request).text == "written"
        value, version = account.read()
        assert account.put(value + 5, version).text == "written"
        again = account.client.send(request)
        assert (again.status_code, again.text) == (412, "changed")
        assert account.read()[0] == 6


def test_two_threads_on_one_lease(account: Account) -> None:
    with account.coordinator.hold(account.name) as lease, fenced(account.client, lease):
        first, second = account.read(), account.read()
        assert account.put(first[0] + 1, first[1]).text == "written"
        refused = account.put(second[0] + 5, second[1])
        assert (refused.status_code, refused.text) == (412, "changed"), "read again, then write again"
        value, version = account.read()
        assert account.put(value + 5, version).text == "written"
        assert account.read()[0] == 6


def test_a_lease_is_reclaimed_in_a_block_that_sends_its_fence(account: Account) -> None:
    """The guard claims the new fence over the same client, and sends that one."""
    with account.coordinator.hold(account.name) as lease, fenced(account.client, lease):
        fresh = lease.reclaim(timeout=20)
        with fenced(account.client, fresh):
            assert account.put(1, None).text == "written"
        with pytest.raises(LeaseLost):
            account.read()


def test_after_a_reclaim_the_read_says_whether_the_write_happens(account: Account, proxy: Proxy) -> None:
    with account.coordinator.hold(account.name) as lease:
        sent_under: Fence = lease.fence
        with fenced(account.client, lease):
            value, version = account.read()
            late = lose_a_put(account, proxy, value + 1, version)
        fresh = lease.reclaim(timeout=20)
        with fenced(account.client, fresh):
            assert account.read() == (0, version), "it did not happen, and never will"
            late.deliver()
            assert account.read() == (0, version)
            with pytest.raises(StaleFence), fenced(account.client, sent_under):
                account.put(value + 1, version)
            assert account.put(value + 1, version).text == "written"
            assert account.read()[0] == 1

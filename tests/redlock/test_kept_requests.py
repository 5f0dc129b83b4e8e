"""Requests that are kept on their way to nodes, and arrive after the client went on over new connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fencing.redlock import client_async, exchange
from tests.support.kept_requests import EACH_CALL, TTL, AcquireForLong, Call, Late, Tale, play
from tests.support.redlock import RedlockNodes
from tests.support.servers import Proxy
from tests.support.sides import Side

LATES = [Late(nodes=1, cut=1), Late(nodes=2, cut=1), Late(nodes=2, cut=2)]


class Bench:
    """Three nodes."""

    attempt_seconds = 0.5
    only_named = False

    def __init__(self, side: Side, nodes: RedlockNodes, proxies: list[Proxy]) -> None:
        self.side, self._nodes, self.proxies = side, nodes, proxies
        self._urls = [server.url for server in nodes.servers[:3]]
        self.direct = nodes.coordinator(side, self._urls, ttl=TTL, renew=False)

    def through(self) -> Any:
        urls = [proxy.url(url) for proxy, url in zip(self.proxies, self._urls, strict=True)]
        self._nodes.coordinator(self.side, urls, ttl=TTL, renew=False, node_timeout=0.05)
        return self.side.made.pop()  # the story closes it

    def is_waiting(self, coordinator: Any, name: str) -> bool:
        return True  # it polls


@pytest.fixture
def bench(side: Side, redlock_nodes: RedlockNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for module in (exchange, client_async):  # a connection that owes a reply is soon given up
        monkeypatch.setattr(module, "STALLED_SECONDS", 0.05)
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(server.host, server.port)) for server in redlock_nodes.servers[:3]]
        yield Bench(side, redlock_nodes, proxies)


@pytest.mark.thorough
@pytest.mark.parametrize("late", LATES, ids=str)
@pytest.mark.parametrize("call", EACH_CALL)
def test_no_late_request_breaks_a_promise(bench: Bench, call: type[Call], late: Late) -> None:
    play(bench, call, late)


@pytest.mark.thorough
def test_a_round_that_arrives_behind_a_later_one(bench: Bench) -> None:
    """No majority answered, so a release was sent behind it."""
    play(bench, AcquireForLong, Late(nodes=2, cut=2), [Tale("released", "returned")])

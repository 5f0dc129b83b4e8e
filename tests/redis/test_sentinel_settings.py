"""Sentinels that are away or frozen, a wrong service, and replicas: each is told in one sentence, at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from examples.servers import RedisServer, SentinelServers
from fencing import CoordinatorUnavailable
from tests.support.sentinels import master_for, sentinel_client, started
from tests.support.sides import Side

AT_ONCE = 20.0
"""Seconds. It takes 1.5 s at most, and the machine may be busy. The callers' time is longer."""

TIMEOUTS = [0, 30, None]
Address = tuple[str, int]


def refusal(side: Side, client: Any, timeout: float | None) -> str:
    """Return the text of the error of an acquire, which must come at once."""
    coordinator = side.coordinator(client, ttl=30)
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable) as caught:
        side.call(coordinator.acquire, "r", timeout=timeout)
    assert time.monotonic() - began < AT_ONCE
    text = str(caught.value)
    assert len(text) < 320
    return text


@pytest.fixture
def silent() -> Iterator[Callable[[], Address]]:
    """Makes addresses that accept connections, and never answer."""
    with ExitStack() as stack:

        def make() -> Address:
            listening = stack.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            host, port = listening.getsockname()
            return host, port

        yield make


@pytest.mark.thorough
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_all_sentinels_are_away(side: Side, timeout: float | None) -> None:
    client = master_for(side, [("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)])
    text = refusal(side, client, timeout)
    assert "the Sentinel service 'shop': no Sentinel of 'shop' answers: 127.0.0.1:1 (" in text.replace(" for 'r'", "")


@pytest.mark.thorough
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_all_sentinels_are_frozen(side: Side, timeout: float | None, silent: Callable[[], Address]) -> None:
    assert "(silent)" in refusal(side, master_for(side, [silent(), silent(), silent()]), timeout)


@pytest.mark.thorough
def test_what_was_no_sentinel(side: Side, any_redis: RedisServer) -> None:
    assert "unknown command" in refusal(side, master_for(side, [(any_redis.host, any_redis.port)]), None)


@pytest.mark.thorough
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_service_that_no_sentinel_knows(side: Side, sentinels: SentinelServers, timeout: float | None) -> None:
    text = refusal(side, master_for(side, sentinels.addresses, "shpo"), timeout)
    assert "the Sentinels do not know the service 'shpo'; they know 'shop'" in text


def test_too_few_other_sentinels(side: Side, sentinels: SentinelServers) -> None:
    """redis-py's rule: the answer of a Sentinel that sees too few others does not count."""
    began = time.monotonic()
    with pytest.raises(CoordinatorUnavailable, match="see no primary of 'shop' at the moment"):
        side.call(
            side.coordinator(master_for(side, sentinels.addresses, min_other_sentinels=3)).acquire, "r", timeout=0
        )
    assert time.monotonic() - began < AT_ONCE


@pytest.mark.thorough
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_the_address_of_a_replica(side: Side, sentinels: SentinelServers, timeout: float | None) -> None:
    assert "the server is a replica, which takes no locks" in refusal(
        side, side.client(sentinels.servers[1].url), timeout
    )


def test_a_client_for_replicas(side: Side) -> None:
    client = sentinel_client(side, [("127.0.0.1", 1)]).slave_for("shop")
    with pytest.raises(ValueError, match=r"for replicas of 'shop'.*master_for"):
        side.coordinator(client)


@pytest.mark.thorough
@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_sentinel_that_names_a_replica(side: Side, sentinels: SentinelServers, timeout: float | None) -> None:
    replica = sentinels.servers[1]
    fields = f"name shop ip {replica.host} port {replica.port} flags master num-other-sentinels 2".split()
    reply = f"*1\r\n*{len(fields)}\r\n" + "".join(f"${len(field)}\r\n{field}\r\n" for field in fields)
    with socket.socket() as liar:
        liar.bind(("127.0.0.1", 0))
        liar.listen()

        def lie() -> None:
            while True:
                try:
                    connection, _ = liar.accept()
                except OSError:
                    return
                with connection:
                    while request := connection.recv(4096):
                        connection.sendall(
                            reply.encode() if b"MASTERS" in request else b"+OK\r\n" * request.count(b"SETINFO")
                        )

        threading.Thread(target=lie, daemon=True).start()
        text = refusal(side, master_for(side, [liar.getsockname()]), timeout)
        liar.shutdown(socket.SHUT_RDWR)
    assert "the server is a replica" in text


@pytest.mark.thorough
def test_some_sentinels_are_away_or_frozen(side: Side, sentinels: SentinelServers) -> None:
    """They cost half a second, once: afterwards they are asked last."""
    with ExitStack() as stack:
        frozen = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        frozen.setblocking(False)

        def asked() -> int:
            """Return how often it was asked since the last time."""
            for count in range(100):
                try:
                    stack.enter_context(frozen.accept()[0])
                except BlockingIOError:
                    return count
            raise AssertionError

        coordinator = side.coordinator(master_for(side, [("127.0.0.1", 1), frozen.getsockname(), *sentinels.addresses]))
        for times in (1, 0):
            side.call(side.call(coordinator.acquire, "r", timeout=10).release)
            assert asked() == times
            sentinels.servers[0].client().client_kill_filter(_type="normal", skipme=True)


@pytest.mark.thorough
def test_a_wrong_password_of_a_sentinel(side: Side) -> None:
    with ExitStack() as stack:
        servers = started(stack, sentinels=1)
        admin: Any = servers.sentinels[0].client()
        admin.execute_command("ACL SETUSER default resetpass >secret")
        text = refusal(side, master_for(side, servers.addresses), None)
        assert "refused" in text
        client = master_for(side, servers.addresses, sentinel_kwargs={"password": "secret"})
        side.call(side.call(side.coordinator(client).acquire, "r", timeout=5).release)

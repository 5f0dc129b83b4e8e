"""Faults of connections: those that are broken, those that lose a request or a reply, and those that are silent."""

from __future__ import annotations

import redis

from tests.support.servers import Loss, Proxy
from tests.torture.faults.base import Strike, fault

PROXIED = ("redis", "redis-data", "redlock", "postgresql", "mariadb", "etcd", "zookeeper", "s3", "gcs", "azure", "http")
LONGEST_SILENCE = 0.5
LONGEST_DELIVERY = 5.0
DRIP_SECONDS = 0.02
"""After each byte. A reply of 100 bytes takes two seconds, longer than any attempt."""


def _proxy(strike: Strike) -> Proxy:
    proxies: list[Proxy] = strike.service.proxies
    return proxies[strike.target % len(proxies)]


def _matches(strike: Strike, request: bytes) -> bool:
    return strike.target % 4 == 0 or strike.service.important in request


@fault("cut", *PROXIED, is_alone=False)
def cut(strike: Strike) -> None:
    """Break off every connection."""
    _proxy(strike).cut()


@fault("drop request", *PROXIED, weight=2, is_alone=False)
def drop_request(strike: Strike) -> None:
    """Break off some connections on which a request comes, and lose it."""
    _proxy(strike).drop_request_when(lambda request: _matches(strike, request), times=1 + strike.target % 5)


@fault("drop reply", *PROXIED, weight=3, is_alone=False)
def drop_reply(strike: Strike) -> None:
    """Break off some connections on which a reply would come: the request was carried out."""
    _proxy(strike).drop_reply_when(lambda request: _matches(strike, request), times=1 + strike.target % 5)


@fault("silence", *PROXIED, is_alone=False)
def silence(strike: Strike) -> None:
    """Hold back everything, either way. It arrives later."""
    proxy = _proxy(strike)
    proxy.silence()
    strike.after(min(strike.seconds, LONGEST_SILENCE), proxy.restore)


@fault("keep", "redis", "redlock", "postgresql", "etcd", "zookeeper", "http", weight=2, is_alone=False)
def hold_back(strike: Strike) -> None:
    """Keep what a few connections send, and deliver it later: their clients have gone on over new ones."""
    proxy, late = _proxy(strike), strike.service.late

    def may_be_late(request: bytes) -> bool:
        return late in request and (bool(late) or _matches(strike, request))

    cut_when = (lambda _: True) if strike.target % 2 else None  # or else the client ends the connection, if it does
    kept = [proxy.stall_connection_when(may_be_late, cut_when=cut_when) for _ in range(1 + strike.target % 3)]
    strike.after(strike.seconds, lambda: _deliver(kept))


def _deliver(kept: list[Loss]) -> None:
    for loss in kept:
        try:
            loss.deliver(LONGEST_DELIVERY)
        except TimeoutError:
            pass  # another fault has stopped the server


@fault("drip", "redis", "redis-data", "redlock", "postgresql", "etcd", "zookeeper", is_alone=False)
def drip(strike: Strike) -> None:
    """Pass one byte at a time: of requests, of replies, or of both. No attempt comes to its end meanwhile."""
    _drip(strike, 4 * strike.seconds)


@fault("drip", "http", is_alone=False)
def drip_over_http(strike: Strike) -> None:
    """As `drip`, for a moment: nothing bounds the head of a reply (`HTTPGuard`)."""
    _drip(strike, strike.seconds)


def _drip(strike: Strike, seconds: float) -> None:
    proxy = _proxy(strike)
    requests, replies = [(0.0, DRIP_SECONDS), (DRIP_SECONDS, 0.0), (DRIP_SECONDS, DRIP_SECONDS)][strike.target % 3]
    proxy.drip(requests=requests, replies=replies)
    strike.after(seconds, proxy.drip)


@fault("cut", "sentinel", "cluster", is_alone=False)
def cut_clients(strike: Strike) -> None:
    """Have the servers break off their clients."""
    servers = strike.service.servers
    for server in servers:
        for kind in ("normal", "pubsub"):
            try:
                with server.client(socket_timeout=1, retry=None) as client:
                    client.execute_command("CLIENT", "KILL", "TYPE", kind)
            except redis.RedisError:
                pass  # it is down, or the command has broken off its own connection

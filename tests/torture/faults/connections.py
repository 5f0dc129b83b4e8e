"""Faults of connections: those that are broken, those that lose a request or a reply, and those that are silent."""

from __future__ import annotations

import redis

from tests.support.servers import Proxy
from tests.torture.faults.base import Strike, fault

PROXIED = ("redis", "redis-data", "redlock", "postgresql", "mariadb", "s3", "gcs", "azure", "http")
LONGEST_SILENCE = 0.5


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

"""The addresses of a cluster's members, and which one is in use. No I/O."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from fencing.kernel.errors import CoordinatorUnavailable
from fencing.kernel.retry import NoReply

DEFAULT_PORT = 2379


@dataclass(frozen=True)
class Endpoint:
    """An address."""

    host: str
    port: int
    tls: bool

    @cached_property
    def name(self) -> str:
        """The host and the port, as HTTP names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @cached_property
    def url(self) -> str:
        """The URL."""
        return f"http{'s' * self.tls}://{self.name}"


class Endpoints:
    """The members. All requests go to one of them, until it fails.

    Attributes:
        tls: for ``https``; None: no endpoint has it.
    """

    def __init__(self, endpoints: Iterable[str], tls: ssl.SSLContext | None, kind: str) -> None:
        self.all = _check(endpoints, kind)
        self.tls = _check_tls(self.all, tls)
        self.address = ", ".join(each.url for each in self.all)
        self._index = 0

    @property
    def current(self) -> Endpoint:
        """The one in use."""
        return self.all[self._index]

    def failed(self, endpoint: Endpoint) -> None:
        """Use the next one, unless another request has seen to it."""
        if endpoint is self.current:
            self._index = (self._index + 1) % len(self.all)


def _check(endpoints: Any, kind: str) -> list[Endpoint]:
    if isinstance(endpoints, (str, bytes)) or not isinstance(endpoints, Iterable):
        raise TypeError(f"{kind} takes a list of URLs such as ['http://localhost:2379'], not {endpoints!r:.100}")
    found = []
    for url in endpoints:
        if not isinstance(url, str):
            raise TypeError(f"an endpoint is a URL such as 'http://localhost:2379', not {url!r:.100}")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"an endpoint is a URL such as 'http://localhost:2379': {error}") from None
        if parts.scheme not in ("http", "https") or not host or not host.isascii():
            raise ValueError(f"an endpoint is a URL such as 'http://localhost:2379', not {url!r:.100}")
        if parts.username is not None or parts.password is not None:
            raise ValueError(f"pass user and password as such, and not in the URL of {host!r:.100}")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"an endpoint has no path and no query: 'http://localhost:2379', not {url!r:.100}")
        if port == 0:
            raise ValueError(f"an endpoint has a port of 1 or more, not {url!r:.100}")
        found.append(Endpoint(host, port or DEFAULT_PORT, parts.scheme == "https"))
    if not found:
        raise ValueError("endpoints must name at least one server, such as 'http://localhost:2379'")
    if len({each.tls for each in found}) > 1:
        raise ValueError("endpoints are all http:// or all https://: a password would go in the clear to some of them")
    return found


def _check_tls(endpoints: list[Endpoint], tls: Any) -> ssl.SSLContext | None:
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        if type(tls).__name__ == "SSLContext":  # its sockets would stop all greenlets
            raise TypeError("tls was made before greenlets took the place of threads: patch first, and make it then")
        raise TypeError(f"tls is an ssl.SSLContext, not {type(tls).__name__}; ssl.create_default_context() makes one")
    if not any(each.tls for each in endpoints):
        if tls is not None:
            raise ValueError("tls is given, but no endpoint begins with https://")
        return None
    return ssl.create_default_context() if tls is None else tls


def check_user(user: Any, password: Any) -> tuple[str, str] | None:
    """Return user and password, or None.

    Raises:
        TypeError: one is missing, or no text.
    """
    if user is None and password is None:
        return None
    if not isinstance(user, str) or not isinstance(password, str):
        raise TypeError("user and password are texts: pass both, or none")
    return user, password


def connect_failure(error: Exception, endpoint: Endpoint, address: str) -> Exception:
    """Return what an error of connecting means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = (
            f"the certificate of etcd at {endpoint.url} is not trusted: {error.verify_message}; pass a tls= that "
            f"trusts its authority, and an endpoint with a name that is in the certificate"
        )
        return CoordinatorUnavailable(text, address=address, refused=True)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        text = f"TLS with etcd at {endpoint.url} failed: {reason}; is it http://? Check the client's certificate, too"
        return CoordinatorUnavailable(text, address=address, refused=True)
    if endpoint.tls and isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
        text = f"TLS with etcd at {endpoint.url} was broken off; is it http://? Check the client's certificate, too"
        return NoReply(ConnectionError(text), may_have_run=False)
    return NoReply(error, may_have_run=False)


def reply_failure(error: Exception, endpoint: Endpoint, address: str) -> Exception:
    """Return what an error means that came instead of a reply."""
    if isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return connect_failure(error, endpoint, address)  # with TLS 1.3, a server refuses a certificate late
    return NoReply(error, may_have_run=True)

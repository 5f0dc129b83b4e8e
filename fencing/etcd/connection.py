"""One connection to a member of etcd for threads. One deadline bounds all of a reply, however slowly it comes."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress

from fencing.etcd.endpoints import Endpoint
from fencing.etcd.http import CLOSED, ReplyParser, parser_after, request_of
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.opening import Opening
from fencing.kernel.retry import LEAST_SECONDS
from fencing.kernel.sockets import shut_down
from fencing.kernel.waking import RECHECK_SECONDS

READ_BYTES = 65536

STALE_SECONDS = 1.0
"""After so long without a request, it is looked at whether the server has closed the connection."""


def open_socket(endpoint: Endpoint, tls: ssl.SSLContext | None, opening: Opening[socket.socket]) -> socket.socket:
    """Open a socket in the time that the opening has left. A helper thread calls this."""
    sock = socket.create_connection((endpoint.host, endpoint.port), opening.left)
    try:
        opening.breaks_off_by(lambda: shut_down(sock.fileno))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.tls:
            assert tls is not None
            sock.settimeout(opening.left)
            sock = tls.wrap_socket(sock, server_hostname=endpoint.host)
        return sock
    except BaseException:
        sock.close()
        raise


class Connection:
    """A connection that is opened when it is first needed.

    Attributes:
        used: when it was used last, on ``time.monotonic``; 0: it is not open, or has failed.
        endpoint: to which it is open.
    """

    __slots__ = ("__weakref__", "_parser", "_sock", "endpoint", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self.endpoint: Endpoint | None = None
        self._sock: socket.socket | None = None
        self._parser: ReplyParser | None = None

    def open(self, sock: socket.socket, endpoint: Endpoint) -> None:
        """Use a socket, which is open."""
        self.close()
        self._sock, self.endpoint, self._parser = sock, endpoint, None

    def is_usable(self, endpoint: Endpoint) -> bool:
        """Return whether a request can be sent to this endpoint."""
        if self._sock is None or self.endpoint is not endpoint or not self.used:
            return False
        return time.monotonic() - self.used < STALE_SECONDS or not self._is_stale(self._sock)

    @staticmethod
    def _is_stale(sock: socket.socket) -> bool:
        """Return whether the server has closed it, or has sent what nobody asked for."""
        try:
            sock.settimeout(0.0)
            sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            raise_interruption(error)
        return True

    def ask(self, path: str, body: bytes, credentials: str, deadline: float) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of its reply.

        Raises:
            OSError: the connection is broken, or the whole reply did not come in time.
        """
        self.used = 0.0  # until the reply is there: a connection that was interrupted is never used again
        parser = self.send(path, body, credentials, deadline)
        while not parser.is_whole:
            if not self._receive(parser, deadline):
                raise TimeoutError("the whole reply did not come in time")
        if parser.can_go_on:
            self.used = time.monotonic()
        return parser.status, parser.body()

    def send(self, path: str, body: bytes, credentials: str, deadline: float) -> ReplyParser:
        """Send a request. Return what parses its reply."""
        assert self._sock is not None
        assert self.endpoint is not None
        self._sock.settimeout(max(deadline - time.monotonic(), LEAST_SECONDS))
        self._sock.sendall(request_of(path, body, self.endpoint.name, credentials))
        self._parser = parser_after(self._parser)
        return self._parser

    def next_lines(self, deadline: float) -> list[bytes] | None:
        """Return the next lines of a reply that goes on; None: it has ended. At the deadline there are none."""
        parser = self._parser
        assert parser is not None
        while not (lines := parser.take_lines()):
            if parser.is_whole:
                return None
            if not self._receive(parser, deadline):
                return []
        return lines

    def _receive(self, parser: ReplyParser, deadline: float) -> bool:
        """Add what comes next. Return False if nothing has come until the deadline."""
        assert self._sock is not None
        left = deadline - time.monotonic()
        while left > 0:
            self._sock.settimeout(min(max(left, LEAST_SECONDS), RECHECK_SECONDS))
            try:
                received = self._sock.recv(READ_BYTES)
            except TimeoutError as error:
                raise_interruption(error)
                left = deadline - time.monotonic()
                continue
            if not received:
                raise ConnectionError(CLOSED)
            parser.feed(received)
            return True
        return False

    def close(self) -> None:
        """Close it, if it is open. It can be opened again."""
        sock, self._sock = getattr(self, "_sock", None), None
        self.used = 0.0
        if sock is not None:
            with suppress(OSError):
                sock.close()

    def __del__(self) -> None:
        self.close()

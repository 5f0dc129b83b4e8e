"""One connection to a member of etcd for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time

from fencing.etcd.endpoints import Endpoint
from fencing.etcd.http import CLOSED, ReplyParser, parser_after, request_of

READ_BYTES = 65536


class AsyncConnection:
    """A connection that is opened when it is first needed. The caller bounds its methods.

    Attributes:
        used: when it was used last, on ``time.monotonic``; 0: it is not open, or has failed.
        endpoint: to which it is open.
    """

    __slots__ = ("__weakref__", "_parser", "_reader", "_writer", "endpoint", "used")

    def __init__(self) -> None:
        self.used = 0.0
        self.endpoint: Endpoint | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._parser: ReplyParser | None = None

    async def open(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        """Open it."""
        self.close()
        context, name = (tls, endpoint.host) if endpoint.tls else (None, None)
        self._reader, self._writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=context, server_hostname=name
        )
        self.endpoint, self._parser = endpoint, None

    def is_usable(self, endpoint: Endpoint) -> bool:
        """Return whether a request can be sent to this endpoint."""
        if self._reader is None or self._writer is None or not self.used or self.endpoint is not endpoint:
            return False
        return not (self._reader.at_eof() or self._reader.exception() or self._writer.is_closing())

    async def ask(self, path: str, body: bytes, credentials: str) -> tuple[int, bytes]:
        """Send a request, and return the status and the body of its reply.

        Raises:
            OSError: the connection is broken.
        """
        self.used = 0.0  # until the reply is there
        parser = self.send(path, body, credentials)
        while not parser.is_whole:
            await self._receive(parser)
        if parser.can_go_on:
            self.used = time.monotonic()
        return parser.status, parser.body()

    def send(self, path: str, body: bytes, credentials: str) -> ReplyParser:
        """Send a request. Return what parses its reply."""
        assert self._writer is not None
        assert self.endpoint is not None
        self._writer.write(request_of(path, body, self.endpoint.name, credentials))
        self._parser = parser_after(self._parser)
        return self._parser

    async def next_lines(self) -> list[bytes] | None:
        """Return the next lines of a reply that goes on; None: it has ended."""
        parser = self._parser
        assert parser is not None
        while not (lines := parser.take_lines()):
            if parser.is_whole:
                return None
            await self._receive(parser)
        return lines

    async def _receive(self, parser: ReplyParser) -> None:
        assert self._reader is not None
        received = await self._reader.read(READ_BYTES)
        if not received:
            raise ConnectionError(CLOSED)
        parser.feed(received)

    def close(self) -> None:
        """Close it, if it is open."""
        writer, self._writer, self._reader = self._writer, None, None
        self.used = 0.0
        if writer is not None:
            writer.transport.abort()

"""The coordinator's own connections to etcd for threads, and the performing of its effects."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import Any

from fencing.etcd.calls import Call, Reply, reply_of
from fencing.etcd.connection import Connection, open_socket
from fencing.etcd.endpoints import Endpoint, Endpoints, connect_failure, reply_failure
from fencing.etcd.waiters import Leave, Permit, Wait, end_stream, is_deletion, is_end, permit
from fencing.kernel.errors import CLOSED
from fencing.kernel.interruptions import raise_interruption
from fencing.kernel.lending import Pool
from fencing.kernel.opening import Opener, Openings
from fencing.kernel.retry import NoReply
from fencing.kernel.waking import RECHECK_SECONDS

MAX_CONNECTIONS = 8
OPENING_SECONDS = 10.0
"""How long the opening of a connection may go on when its call has given up."""

STREAM_SECONDS = 5.0
"""How long the opening of a stream may take."""

URGENT = frozenset(("lease/revoke", "lease/keepalive"))
"""The requests that do not wait for others."""


class Stream:
    """A connection that watches a key for a waiter. It is closed when it is collected."""

    __slots__ = ("connection", "key", "permit")

    def __init__(self, key: str, permitted: Permit) -> None:
        self.key, self.permit = key, permitted
        self.connection = Connection()


class Connections:
    """The connections of a coordinator for threads. A forked child opens its own."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._pool = Pool(Connection, MAX_CONNECTIONS, has_reserve=True)
        openings = Openings()
        self._openers = {
            each: Opener(each.url, partial(open_socket, each, endpoints.tls), _close, None, openings)
            for each in endpoints.all
        }

    def perform(self, effect: Call | Wait | Leave) -> Any:
        """Make a request, or wait.

        Raises:
            NoReply: no usable reply; another attempt may succeed.
            CoordinatorUnavailable: etcd refused; another attempt would not help.
            RuntimeError: the coordinator is closed. Make a new one.
        """
        if isinstance(effect, Leave):
            end_stream(effect.waiter)
            return None
        if self._pool.closed and not (isinstance(effect, Call) and effect.is_release):
            raise RuntimeError(CLOSED)
        return self._ask(effect) if isinstance(effect, Call) else self._wait(effect)

    def _ask(self, call: Call) -> Reply:
        deadline = time.monotonic() + call.timeout
        pool = self._pool
        try:
            connection = pool.free.pop()
        except IndexError:
            if call.path in URGENT or call.is_release:
                pool, connection = pool.take_urgently(call.timeout)
            else:
                connection = pool.take(call.timeout)
        try:
            endpoint = self._endpoints.current
            try:
                if not connection.is_usable(endpoint):
                    self._open(connection, endpoint, deadline)
                try:
                    status, body = connection.ask(call.path, call.body, call.credentials, deadline)
                except OSError as error:
                    raise_interruption(error)
                    raise reply_failure(error, endpoint, self._endpoints.address) from error
                return reply_of(status, body, endpoint.url)
            except NoReply:
                self._endpoints.failed(endpoint)
                raise
            finally:
                if not connection.used:
                    connection.close()
        finally:
            pool.give_back(connection)

    def _open(self, connection: Connection, endpoint: Endpoint, deadline: float) -> None:
        seconds = max(deadline - time.monotonic(), 0.0)
        try:
            opened = self._openers[endpoint].open(seconds, max(seconds, OPENING_SECONDS))
        except (OSError, ValueError) as error:
            raise_interruption(error)
            raise connect_failure(error, endpoint, self._endpoints.address) from error
        connection.open(opened, endpoint)

    def _wait(self, wait: Wait) -> bool | None:
        until = time.monotonic() + wait.seconds
        stream: Stream | None = wait.waiter.stream
        endpoint = self._endpoints.current
        try:
            if stream is not None and not (stream.key == wait.key and stream.connection.endpoint is endpoint):
                end_stream(wait.waiter)
                stream = None
            if stream is None:
                permitted = permit()
                if permitted is None:
                    return None
                stream = wait.waiter.stream = Stream(wait.key, permitted)
                self._open(stream.connection, endpoint, min(until, time.monotonic() + STREAM_SECONDS))
                stream.connection.send("watch", wait.body, wait.credentials, until)
            while (lines := stream.connection.next_lines(min(until, time.monotonic() + RECHECK_SECONDS))) is not None:
                if wait.waiter.is_notified:
                    return True
                if not lines and time.monotonic() >= until:
                    return False
                if any(map(is_deletion, lines)):
                    end_stream(wait.waiter)
                    return True
                if any(map(is_end, lines)):
                    break
            end_stream(wait.waiter)
            return None
        except (OSError, NoReply) as error:
            end_stream(wait.waiter)
            self._endpoints.failed(endpoint)
            if isinstance(error, NoReply):
                raise
            raise_interruption(error)
            raise NoReply(error, may_have_run=False) from error
        except BaseException:
            end_stream(wait.waiter)
            raise

    def close(self) -> None:
        """Close all connections. Later calls raise RuntimeError, except releases."""
        self._pool.close()


def _close(opened: socket.socket) -> None:
    opened.close()  # looked up now: greenlets may have other sockets

"""A session of kazoo's client, of the coordinator's own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, GetChildren
from kazoo.protocol.states import KazooState

from fencing.kernel import process
from fencing.zookeeper.touches import Touches

RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}
"""How kazoo connects again: for ever, at least once a second. Its own default goes up to an hour."""


OPENING_SHARE, OPENING_SECONDS = 1 / 4, 0.5
"""How long a connection and its handshake may take: a share of the session's time-out, and at least so many seconds.
kazoo gives one server that does not answer the whole time-out, and then the session is over."""


class Watching(GetChildren):  # type: ignore[misc] # kazoo has no types
    """The request that has kazoo call ``watcher`` when a node is deleted.

    It watches the children, which an ephemeral node never has. A watch on the data would also end when the node is
    granted the lock, and wake all waiters one after the other.

    Attributes:
        is_given_up: whether its waiter does not wait for it any more.
    """

    is_given_up = False


class _Connection(ConnectionHandler):  # type: ignore[misc] # kazoo has no types
    """kazoo's connection, which also notes what it sends, and how long the server keeps the session."""

    def _invoke(self, timeout: float, request: Any, xid: Any = None) -> Any:
        sent_at = process.now()
        if isinstance(request, Connect):
            timeout = min(timeout, self.client.opening_seconds)
        result = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            reply, _ = result
            if reply.time_out > 0:
                self.client.connected_at(sent_at, reply.time_out)
        return result

    def _submit(self, request: Any, timeout: float, xid: Any = None) -> None:
        self.client.touches.sent()
        super()._submit(request, timeout, xid)

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        """Forget a watch whose waiter has left before this reply: kazoo would keep it until its node changes."""
        pending = self.client._pending
        request = pending[0][0] if pending else None
        said = super()._read_response(header, buffer, offset)
        if isinstance(request, Watching) and request.is_given_up:
            self.client.forget_watch(request.path, request.watcher)
        return said

    def _authenticate_with_sasl(self, host: Any, timeout: float) -> None:
        self.client.is_logging_in = True
        super()._authenticate_with_sasl(host, timeout)
        self.client.is_logging_in = False

    def zk_loop(self) -> None:
        """Note when kazoo gives up for good: a log-in failed, or a setting is wrong."""
        try:
            super().zk_loop()
        except Exception as error:  # noqa: BLE001 - kazoo has logged it, and whoever asks next is told
            self.client.failure = error
        finally:
            self.client.has_ended = True
            self.client.settle()

    def _connect(self, host: Any, hostip: Any, port: Any) -> Any:
        """Send pings twice as often as kazoo does, so that a grant after an idle time has more of its session left."""
        client = self.client
        try:
            read_timeout, connect_timeout = super()._connect(host, hostip, port)
        except Exception as error:
            client.refused_with = str(error)
            raise
        client.refused_with = ""
        return read_timeout / 2, connect_timeout


class Session(KazooClient):  # type: ignore[misc]
    """A session with the settings of another client. kazoo makes a new one when it is over.

    Args:
        like: the user's client, of which only the settings are used.
        seconds: the time-out of the session.
        over: is called when the session is over, with its id. It must not block.

    Attributes:
        kept_ms: for how long the server keeps the session, in milliseconds; 0: it was not connected yet.
        away_since: the moment at which it lost its connection; None: it has one.
        has_ended: whether kazoo has given up, so that another session must be made.
        failure: why, if kazoo has failed; None: the log-in failed, or the session was ended.
        refused_with: what came of the last attempt to connect; empty: it has succeeded, or there was none.
        is_logging_in: whether the last log-in with SASL was not answered.
        finalizer: ends it, at the latest when its coordinator is collected.
        settled: is set while it is connected, and when it has ended.
        again: is called with it at each connection, in kazoo's thread. It must not block.
    """

    def __init__(self, like: KazooClient, seconds: float, over: Callable[[int], object]) -> None:
        sasl = like._connection.sasl_options
        handler = _handler_like(like.handler)
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in like.hosts)
        super().__init__(
            hosts=hosts + like.chroot,
            timeout=seconds,
            handler=handler,
            default_acl=like.default_acl,
            auth_data=set(like.auth_data),
            sasl_options=dict(sasl) if sasl else None,
            read_only=False,
            randomize_hosts=like.randomize_hosts,
            connection_retry={**RECONNECT, "sleep_func": handler.sleep_func},
            logger=like.logger,
            keyfile=like.keyfile,
            keyfile_password=like.keyfile_password,
            certfile=like.certfile,
            ca=like.ca,
            use_ssl=like.use_ssl,
            verify_certs=like.verify_certs,
            check_hostname=like.check_hostname,
        )
        self.opening_seconds = max(seconds * OPENING_SHARE, OPENING_SECONDS)
        connect = self.handler.create_connection
        self.handler.create_connection = lambda *args, **options: connect(
            *args, **{**options, "timeout": self.opening_seconds}
        )
        self.touches = Touches(process.now, seconds)
        self.kept_ms = 0
        self.asked_ms: int = self._session_timeout
        self._connection = _Connection(
            self, self._conn_retry.copy(), logger=self.logger, sasl_options=dict(sasl) if sasl else None
        )
        self._over = over
        self.pid = os.getpid()
        self.is_ending = False
        self.away_since: float | None = process.now()
        self.has_ended = False
        self.failure: Exception | None = None
        self.refused_with = ""
        self.is_logging_in = False
        self.finalizer: weakref.finalize[..., Any] | None = None
        self.settled: Any = self.handler.event_object()
        self.waiting: set[Callable[[], object]] = set()
        """What is called when it is settled. Another thread does."""
        self.again: Callable[[Session], object] | None = None
        self.add_listener(self._on_state)

    @property
    def id(self) -> int:
        """The number of the session at ZooKeeper; 0: it has none yet, or not any more."""
        return self._session_id or 0

    def connected_at(self, sent_at: float, kept_ms: int) -> None:
        """Note a handshake."""
        self.kept_ms = kept_ms
        self.touches.connected(sent_at)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.away_since = None
            self.settle()
            if self.again is not None:  # behind what was asked for meanwhile, also if this is another session
                self.again(self)
            return
        if self.away_since is None:
            self.away_since = process.now()
        self.settled.clear()
        if state == KazooState.LOST and self._session_id and not self.is_ending:
            self._over(self._session_id)

    def settle(self) -> None:
        """Have those go on that wait for a connection."""
        self.settled.set()
        for call in list(self.waiting):
            call()

    def send(self, request: Any) -> Any:
        """Send a request. Return kazoo's result, which has the reply later."""
        result = self.handler.async_result()
        self._call(request, result)
        return result

    def forget_watch(self, path: str, watch: Any) -> None:
        """Give up a watch: kazoo keeps it until the node changes."""
        watches = self._child_watchers.get(path)
        if watches is not None:
            watches.discard(watch)
            if not watches:
                self._child_watchers.pop(path, None)


def seconds_of(client: KazooClient) -> float:
    """Return the seconds of the session that a user's client asks for."""
    return float(client._session_timeout) / 1000


def _handler_like(handler: Any) -> Any:
    """Return a handler of the same kind: kazoo has others for gevent and eventlet."""
    return type(handler)()

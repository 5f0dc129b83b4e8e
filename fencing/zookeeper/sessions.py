"""The coordinator's own session in ZooKeeper: what threads and asyncio share."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotReadOnlyCallError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
)
from kazoo.security import OPEN_ACL_UNSAFE

from fencing.kernel import process, quirks
from fencing.kernel.errors import CLOSED, CoordinatorUnavailable
from fencing.kernel.helping import Helpers, Overdue
from fencing.kernel.retry import NoReply
from fencing.kernel.timer import timer
from fencing.kernel.waking import safe_lock
from fencing.kernel.workers import DaemonThread
from fencing.zookeeper.calls import Ask, Reply, Wait, is_missing
from fencing.zookeeper.leftovers import Nodes, sweep
from fencing.zookeeper.session import Session
from fencing.zookeeper.waiters import Watch

CLOSING_SECONDS = 2.0
"""How long the end of a session may take. After that it ends by its time-out."""

AWAY_TTLS = 2
"""After how many times its time-out without a connection a session is given up for another one. It is over long since.
A server that has lost its data refuses it for ever, because it has seen later positions than there are."""

SWEEP_TTLS = 10
"""How many times its time-out passes between two looks at the nodes of a session that is used."""

_PASSED_ON = (NoNodeError, NodeExistsError, BadVersionError, RolledBackError, RuntimeInconsistency, UnimplementedError)
"""What the plans know the meaning of."""

_NO_REPLY = (
    ConnectionLoss,
    ConnectionClosedError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    NotReadOnlyCallError,
)


def check_client(client: object) -> KazooClient:
    """Return the client if it is one of kazoo.

    Raises:
        TypeError: it is not. Pass one.
    """
    if not isinstance(client, KazooClient):
        raise TypeError(
            f"pass a kazoo.client.KazooClient, not {type(client).__name__}; it need not be started, as only its "
            f"settings are used"
        )
    kind = type(client.handler).__module__.removeprefix("kazoo.handlers.")
    if kind in ("gevent", "eventlet") and not _are_greenlets(kind):
        raise TypeError(
            f"the client has kazoo's handler for {kind}, and threads are no greenlets here, so leases would not be "
            f"renewed; patch the threads first, or leave the handler out"
        )
    if kind == "threading" and _are_greenlets("eventlet"):
        raise TypeError(
            "kazoo's handler for threads does not work with eventlet's select; pass "
            "KazooClient(..., handler=kazoo.handlers.eventlet.SequentialEventletHandler())"
        )
    return client


def _are_greenlets(library: str) -> bool:
    """Return whether greenlets of the library take the place of threads."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if library == "gevent":
        return gevent is not None and bool(gevent.is_module_patched("threading"))
    return eventlet is not None and bool(eventlet.is_monkey_patched("thread"))


class Sessions:
    """The session of a coordinator. It begins with the first request. A forked child has its own.

    Args:
        like: the user's client, of which only the settings are used.
        seconds: the time-out of the session.
        nodes: what knows which nodes are in use.
    """

    def __init__(self, like: KazooClient, seconds: float, nodes: Nodes) -> None:
        self._like, self._seconds, self._nodes = like, seconds, nodes
        self.root: str = like.chroot
        self.acl: Any = like.default_acl or OPEN_ACL_UNSAFE
        self.address = ",".join(f"{host}:{port}" for host, port in like.hosts) + like.chroot
        self.closed = False
        self._helpers = Helpers("fencing-zookeeper-closing")
        self._reset()
        process.after_fork(self._reset)

    def _reset(self) -> None:
        self._starting = safe_lock()
        self._session: Session | None = None
        self._sweeps_after = process.now() + SWEEP_TTLS * self._seconds
        self.waits: set[Callable[[Any], object]] = set()
        """What wakes each that waits."""

    def current(self) -> Session:
        """Return the session, which was started. All threads have the same one."""
        process.pid()  # a fork of which Python was not told makes a new one
        session = self._session
        if session is None or self._is_given_up(session):
            with self._starting:
                session = self._session
                if session is not None and self._is_given_up(session):
                    self._drop(session)
                    session = None
                if session is None:
                    session = self._start()
        return session

    def _is_given_up(self, session: Session) -> bool:
        away_since = session.away_since
        return away_since is not None and process.now() - away_since > AWAY_TTLS * self._seconds

    def _start(self) -> Session:
        session = Session(self._like, self._seconds, partial(_is_over, self._nodes))
        session.again = partial(sweep, nodes=self._nodes)
        session.finalizer = weakref.finalize(self, _stop_later, session)
        session.finalizer.atexit = False
        try:
            session.start_async()
            if self._session is None:  # else a signal handler that took a lock has made one meanwhile
                self._session = session
        finally:
            if self._session is not session or self.closed:  # read after the lines above: the closing ends what it sees
                self._drop(session)
        return session if self.closed else self._session

    def _drop(self, session: Session) -> None:
        """End a session that is not used any more."""
        if self._session is session:
            self._session = None
        if session.finalizer is not None:
            _stop_later(session)
            session.finalizer.detach()  # last: if this is interrupted, it ends with the coordinator

    def check(self, session: Session) -> None:
        """Refuse a server that keeps sessions for another time than was asked for."""
        if session.kept_ms not in (session.asked_ms, 0):
            longer = "at least" if session.kept_ms > session.asked_ms else "at most"
            raise CoordinatorUnavailable(
                f"ZooKeeper at {self.address} keeps a session for {longer} {session.kept_ms / 1000:g} s, and the ttl "
                f"is {self._seconds:g} s; pass another timeout to the KazooClient or another ttl to the coordinator, "
                f"or change minSessionTimeout and maxSessionTimeout of the servers",
                address=self.address,
                refused=True,
            )

    def check_connected(self, session: Session) -> None:
        """Refuse a request that cannot be sent."""
        if session.connected:
            return
        if session.has_ended and self._session is session:
            self._drop(session)  # the next request begins another one
            if session.failure is None:
                raise self._refusal(AuthFailedError())
            raise CoordinatorUnavailable(
                f"kazoo cannot use the settings of the client for {self.address}: {session.failure!r}; correct them, "
                f"and make a new coordinator",
                address=self.address,
                refused=True,
            ) from session.failure
        why = f" ({session.refused_with})" if session.refused_with else ""
        raise NoReply(ConnectionError(f"no server of it has accepted a session in time{why}"), may_have_run=False)

    def send(self, session: Session, ask: Ask) -> list[Any]:
        """Send requests. Return kazoo's results, which have the replies later."""
        self.check(session)
        return [session.send(request) for request in ask.requests]

    def no_reply(self, session: Session, seconds: float) -> NoReply:
        """Return the error of requests that were not answered in time."""
        self.sweep_in(self._seconds)  # whoever has asked may have gone, and what it has asked for come all the same
        asked = "; SASL has not answered the log-in either: do the servers have it?" if session.is_logging_in else ""
        return NoReply(TimeoutError(f"no reply within {seconds:.3g} s{asked}"), may_have_run=True)

    def reply_of(self, session: Session, ask: Ask, results: Sequence[Any], sent_at: float, sent_in: int) -> Reply:
        """Return the replies to requests, all of which have theirs.

        Args:
            sent_in: the id of the session in which they were sent. If kazoo has another one by now, this thread stood
                still meanwhile. What lives then is not what the replies are of.
        """
        values = [self._value_of(result.exception or result.value, ask.keeps_refusals) for result in results]
        reply = Reply(values, sent_in, session.touches.proved_by(sent_at), session.last_zxid)
        if session.id != sent_in:  # read after the line above, of which nothing counts then
            raise NoReply(ConnectionError("its session was over before its reply was read"), may_have_run=True)
        if sent_at > self._sweeps_after:  # else nothing more would be looked for at a connection that never breaks
            self._sweeps_after = sent_at + SWEEP_TTLS * self._seconds
            self.sweep_in(0.0)
        return reply

    def _value_of(self, value: Any, keeps_refusals: bool = False) -> Any:
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, _PASSED_ON) or not isinstance(each, Exception):
                continue
            if isinstance(each, _NO_REPLY):
                raise NoReply(
                    ConnectionError(f"{type(each).__name__}: {each}".rstrip(": ")), may_have_run=True
                ) from each
            refusal = self._refusal(each)
            if keeps_refusals and isinstance(each, NoAuthError):
                return refusal
            raise refusal from each
        return value

    def _refusal(self, error: Exception) -> Exception:
        if isinstance(error, NoAuthError):
            what = "the user may not do this: see the table of rights in docs/coordinators/zookeeper.md"
        elif isinstance(error, InvalidACLError):
            what = "the default_acl of the client is refused; pass another one"
        elif isinstance(error, AuthFailedError):
            what = "the log-in failed; correct auth_data or sasl_options of the client, then retry"
        elif isinstance(error, KazooException):
            what = f"{type(error).__name__} {error}".rstrip()
        else:
            return error
        return CoordinatorUnavailable(
            f"ZooKeeper at {self.address} refused the request: {what}",
            address=self.address,
            refused=isinstance(error, (NoAuthError, InvalidACLError, AuthFailedError)),
        )

    def end_watch(self, watch: Watch) -> None:
        """Give up a watch."""
        request, session = watch.request, self._session
        if request is not None:
            self.waits.discard(request.watcher)
            request.is_given_up = True  # if its reply is still to come, kazoo's thread forgets it then
            if session is not None:
                session.forget_watch(request.path, request.watcher)
            watch.request = None  # last: who is interrupted before this does it again

    def sweep_in(self, seconds: float) -> None:
        """Have what nobody uses deleted, in so many seconds. A destructor may call it: it sends nothing itself."""
        session, nodes = self._session, self._nodes
        if session is not None and not self.closed:
            timer().call_at(process.now() + seconds, partial(_sweep, session, nodes), lambda: nodes() is not None)

    def after_closing(self, effect: Ask | Wait) -> Reply:
        """Answer a release: with the session, all of its nodes were deleted."""
        if isinstance(effect, Ask) and effect.is_release:
            return Reply([NoNodeError()] * len(effect.requests), 0, 0.0, 0)
        raise RuntimeError(CLOSED)

    def end(self) -> None:
        """End the session, and with it all that it holds."""
        self.closed = True
        for wake in list(self.waits):
            wake(None)
        session, self._session = self._session, None
        if session is not None:
            try:
                self._helpers.call(partial(_stop, session), CLOSING_SECONDS)
            except Overdue:  # it goes on in the helper's thread
                pass

    def is_gone(self, result: Any) -> bool:
        """Return whether the node that a watch was to be set on is not there."""
        try:
            return is_missing(self._value_of(result.exception or result.value))
        except NoReply:
            return True


def _is_over(nodes: Nodes, session: int) -> None:
    keeper = nodes()
    if keeper is not None:
        keeper.session_is_over(session)


def _sweep(session: Session, nodes: Nodes) -> None:
    if session.connected and not session.is_ending and session.pid == os.getpid():
        sweep(session, nodes)


def _stop(session: Session) -> None:
    if session.pid == os.getpid() and not session.is_ending:  # a child has its parent's connection
        session.is_ending = True
        session.stop()
        session.close()


def _stop_later(session: Session) -> None:
    """End the session of a coordinator that was collected, on any thread."""
    try:
        DaemonThread(partial(_stop, session), "fencing-zookeeper-closing").start()
    except RuntimeError as error:
        if not quirks.is_ending(error):  # there are too many threads, and nobody tries again: its locks would stay
            with suppress(RuntimeError):  # this is one of kazoo's threads, which cannot wait for itself
                _stop(session)

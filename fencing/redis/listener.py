"""For threads: the hub, see ``fencing.redis.hub``."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from redis.exceptions import RedisError

from fencing.kernel.errors import FencingError
from fencing.kernel.retry import NoReply
from fencing.locks.timer import timer
from fencing.redis import hub as redis_hub
from fencing.redis.blueprint import Blueprint
from fencing.redis.calls import Call, release_call
from fencing.redis.direct import Wire
from fencing.redis.hub import DECLINE_SECONDS, Silence, message, not_listening
from fencing.redis.replies import NONE_YET
from fencing.redis.waiters import Enlist, Leave, Wait, Waiter, Waiting

__all__ = ["Wakeups"]


class _ThreadWaiter(Waiter):
    __slots__ = ("_bell",)

    def __init__(self, hub: str, resource: str, token: str) -> None:
        super().__init__(hub, resource, token)
        self._bell = threading.Lock()
        self._bell.acquire()

    def ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it rings already

    def wait(self, seconds: float) -> None:
        self._bell.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Wakeups:
    """For threads: a daemon thread listens while somebody waits. After a fork the child has a hub of its own."""

    def __init__(self, client: redis.Redis, perform: Callable[[Call], Any], clock: Callable[[], float]) -> None:
        self._blueprint = Blueprint(client)
        self._perform = perform
        self._clock = clock
        self._connection: Any = None
        self._closed = False
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._waiting = Waiting(self._clock, self._call_at)

    def after_fork(self) -> None:
        """In the child: its copy of the connection would keep the hub alive in the server's eyes."""
        connection, self._connection = self._connection, None
        if connection is not None and connection._sock is not None:
            connection._sock.close()
        self._reset()

    def listening(self) -> bool:
        """Whether who waits now need not open a connection first. A hint."""
        return self._connection is not None

    def perform(self, effect: Enlist | Wait | Leave) -> Waiter | None:
        if isinstance(effect, Enlist):
            return self._enlist(effect)
        with self._lock:
            if isinstance(effect, Leave):
                self._waiting.remove(effect.waiter, effect.free_at)
                return None
            self._waiting.waits(effect.waiter, effect.look)
        assert isinstance(effect.waiter, _ThreadWaiter)
        effect.waiter.wait(effect.seconds)
        return None

    def close(self) -> None:
        """Listen no more. Who still waits asks, and is told that the coordinator is closed."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            self._waiting.stir()
        if connection is not None:
            connection.disconnect()

    def _enlist(self, effect: Enlist) -> Waiter:
        waiter = effect.waiter or _ThreadWaiter(self._waiting.name, effect.resource, effect.token)
        deadline = time.monotonic() + effect.timeout
        if self._closed:
            raise RuntimeError("this coordinator was closed; make a new one")
        if self._connection is None:
            if not self._connecting.acquire(timeout=effect.timeout):
                raise NoReply(TimeoutError("another thread is still connecting"), may_have_run=False)
            try:
                if self._connection is None:
                    self._connect(deadline)
            finally:
                self._connecting.release()
        with self._lock:
            if self._connection is None:
                raise NoReply(ConnectionError("the connection for waiting broke"), may_have_run=False)
            self._waiting.add(waiter)
        return waiter

    def _connect(self, deadline: float) -> None:
        connection = self._blueprint.make()
        try:
            try:
                connection.socket_connect_timeout = connection.socket_timeout = self._left(deadline)
                connection.connect()
                connection.send_command("SUBSCRIBE", self._waiting.channel, check_health=False)
                connection.read_response(disconnect_on_error=False)
            except (RedisError, OSError) as error:
                raise not_listening(error, self._blueprint.address) from error
            thread = threading.Thread(target=self._listen, args=(connection,), name="fencing-wakeups", daemon=True)
            self._connection = connection
            thread.start()
        except BaseException:
            self._connection = None
            connection.disconnect()
            raise

    def _left(self, deadline: float) -> float:
        return max(min(deadline - time.monotonic(), self._blueprint.user_timeout), 0.001)

    def _listen(self, connection: Any) -> None:
        silence = Silence()
        try:
            wire = Wire(connection, redis_hub.TICK_SECONDS)
            while self._goes_on(silence, connection):
                reply = wire.get()
                if reply is not NONE_YET:
                    silence.broken()
                    text = message(reply)
                    if text is not None:
                        self._heard(text)
                elif silence.to_ask():
                    connection.send_command("PING", check_health=False)
        except (RedisError, OSError, ValueError, TypeError, AttributeError):
            pass  # broken, or closed under our hands
        finally:
            with self._lock:
                if self._connection is connection:
                    self._connection = None
                    self._waiting.stir()
            connection.disconnect()

    def _goes_on(self, silence: Silence, connection: Any) -> bool:
        with self._lock:
            if self._connection is not connection:
                return False
            if not silence.goes_on(bool(self._waiting)):
                self._connection = None
        return self._connection is connection

    def _heard(self, text: bytes) -> None:
        with self._lock:
            declined = self._waiting.heard(text)
        if declined is not None:
            try:
                self._perform(release_call(*declined, self._waiting.name, timeout=DECLINE_SECONDS))
            except (FencingError, NoReply, RuntimeError):
                pass  # it ends by itself

    def _call_at(self, when: float, callback: Callable[[], object], wanted: Callable[[], bool]) -> None:
        timer().call_at(when, partial(self._locked, callback), wanted)

    def _locked(self, callback: Callable[[], object]) -> None:
        with self._lock:
            callback()


_all: weakref.WeakSet[Wakeups] = weakref.WeakSet()


def _after_fork() -> None:
    for wakeups in list(_all):
        wakeups.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
